"""Implementations in processes of their own, in any language: docs/worker-protocol.md."""
