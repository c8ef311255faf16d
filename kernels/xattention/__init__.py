"""Implementations of the xattention family."""
