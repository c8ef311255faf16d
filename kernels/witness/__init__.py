"""Implementations of the witness family."""
