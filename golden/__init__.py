"""Contracts, vectors and schemas: data that any language can read."""
