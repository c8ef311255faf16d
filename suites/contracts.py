"""The markers that tie a test to what it is about."""

import pytest

from golden.model import Operation


def contract(*ids: str) -> pytest.MarkDecorator:
    """Names the contracts, by their ids in ``golden/contracts.toml``, that a test checks."""
    return pytest.mark.contract(*ids)


def operations(*names: Operation) -> pytest.MarkDecorator:
    """Names the operations that a test calls.

    For a test whose parameters do not say so: neither an ``operation`` nor a ``case``.
    """
    return pytest.mark.operations(*names)
