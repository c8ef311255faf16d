"""Every implementation against the oracle, within the derived bounds (R-X14)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import FloatType, Operation
from suites.cases import ESTIMATE, MERGE, SCORES, Case
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import (
    SOFTMAX,
    Spread,
    cases,
    estimate_cases,
    score_cases,
    softmax_cases,
)

FLOATS: tuple[Operation, ...] = (SCORES, *SOFTMAX, MERGE)
some = settings(max_examples=12)
few = settings(max_examples=6)  # of what takes long in an interpreter


@contract("xattention.bounds.derived")
@pytest.mark.parametrize("operation", FLOATS)
@given(data=st.data())
@settings(max_examples=20)
def test_ordinary_cases(implementation: Runner, operation: Operation, data: st.DataObject) -> None:
    implementation.judge(data.draw(cases(operation)))


@contract("xattention.bounds.derived")
@pytest.mark.parametrize("spread", ["near", "tiny"])
@pytest.mark.parametrize("operation", FLOATS)
@given(data=st.data())
@some
def test_values_that_hardly_differ(
    implementation: Runner, operation: Operation, spread: Spread, data: st.DataObject
) -> None:
    """By few roundings, or by subnormals."""
    implementation.judge(data.draw(cases(operation, spreads=[spread])))


@contract("xattention.bounds.derived")
@pytest.mark.parametrize("operation", [*SOFTMAX, MERGE])
@given(data=st.data())
@some
def test_high_values(implementation: Runner, operation: Operation, data: st.DataObject) -> None:
    """Up to 1e8, where x - m is as coarse as x, and what is not equal has no weight."""
    implementation.judge(data.draw(cases(operation, spreads=["high"])))


@contract("xattention.bounds.derived")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@operations(SCORES)
@given(data=st.data())
@some
def test_scores_of_products_that_cancel(
    implementation: Runner, dtype: FloatType, data: st.DataObject
) -> None:
    """Up to 1e16, of both signs: the bound goes by the products and not by their sum."""
    implementation.judge(data.draw(score_cases(spreads=["huge"], dtype=dtype)))


@contract("xattention.bounds.derived")
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data())
@few
def test_many_keys(implementation: Runner, operation: Operation, data: st.DataObject) -> None:
    """Sums of hundreds of weights, by tiles."""
    implementation.judge(data.draw(softmax_cases(operation, k_blocks=st.just(70))))


@contract("xattention.bounds.derived")
@operations(ESTIMATE)
@given(case=st.one_of(estimate_cases(), estimate_cases(spreads=["tiny"])))
@settings(max_examples=10)
def test_sums_of_an_estimate(implementation: Runner, case: Case) -> None:
    """The mask is no float: which blocks are selected is for other contracts."""
    sums, mask = implementation.call(case)
    expected = case.expected()[0], mask
    bounds = case.bounds(implementation.implementation.dot)
    implementation.require_close(case, expected, (sums, mask), bounds)
