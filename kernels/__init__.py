"""Implementations of the specification's operations, and the ways to plug one in."""
