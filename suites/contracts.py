"""The marker that ties a test to the contracts it checks."""

import pytest


def contract(*ids: str) -> pytest.MarkDecorator:
    """Names the contracts, by their ids in ``golden/contracts.toml``, that a test checks."""
    return pytest.mark.contract(*ids)
