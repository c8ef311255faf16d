"""What ties a test to what it is about: markers, and the contract that defines an operation."""

from collections.abc import Mapping
from typing import Final

import pytest

from golden.model import Operation
from suites.cases import (
    APPLY,
    ESTIMATE,
    INDICES,
    MERGE,
    NORMALISE,
    ONE_PASS,
    SCORES,
    SELECT,
    SERVE,
    STATS,
)

# What an operation's result is held against: the contract that says what it is.
DEFINED_BY: Final[Mapping[str, str]] = {
    INDICES: "witness.indices.slot-per-segment",
    APPLY: "witness.merge.ascending",
    SERVE: "witness.serving.parameters",
    SCORES: "xattention.scores.antidiagonal",
    ONE_PASS: "xattention.equivalence.one-pass",
    STATS: "xattention.stats.sum",
    MERGE: "xattention.merge.formula",
    NORMALISE: "xattention.block-sum.weights",
    SELECT: "xattention.select.threshold",
    ESTIMATE: "xattention.estimate.scale",
}


def contract(*ids: str) -> pytest.MarkDecorator:
    """Names the contracts, by their ids in ``golden/contracts.toml``, that a test checks."""
    return pytest.mark.contract(*ids)


def operations(*names: Operation) -> pytest.MarkDecorator:
    """Names the operations that a test calls.

    For a test whose parameters do not say so: neither an ``operation`` nor a ``case``.
    """
    return pytest.mark.operations(*names)
