"""Implementations that are not wrong by accident: each looks right to a careless suite.

Each is a module for ``--impl`` with one operation, and an ``honest`` function of the same
parameters that differs from it in nothing but the cheat.
"""
