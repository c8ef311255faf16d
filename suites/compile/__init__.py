"""The compile tier: every kernel to machine code, for each architecture, without a GPU.

An operation is called as its users call it, what it would launch is compiled instead, and the
machine code is read: how many registers, what spills, how wide its loads are. Bounds must hold
whatever the toolchain; other figures are compared with those in golden/compiled.
"""
