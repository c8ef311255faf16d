"""What is masked reaches no bit, and no score is so low as to be taken for a mask (R-X6)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import Operation
from suites.cases import MERGE, NORMALISE, STATS, Case, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import (
    BLOCK_SUMS,
    INF,
    SOFTMAX,
    logits,
    merge_of,
    softmax_cases,
    visible,
)
from suites.xattention import dense

widths = st.sampled_from([2, 1, 3, 4, 70])
some = settings(max_examples=12)

# Just below and far below what kernels use as a mask: -1e4, the least fp16, -1e6 in either base.
LOW = [-1.1e4, -6.5504e4, -1.2e6, -2e6, -1e8]
lows = st.lists(st.sampled_from(LOW), min_size=1, max_size=3)


@contract("xattention.masked.garbage")
@pytest.mark.parametrize("garbage", [float("nan"), INF, -INF, 1e30, -1e30])
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data())
@settings(max_examples=4)
def test_what_a_masked_position_holds_reaches_no_bit(
    implementation_or_oracle: Runner, operation: Operation, garbage: float, data: st.DataObject
) -> None:
    case = data.draw(softmax_cases(operation, causal=True, k_blocks=widths))
    scores, seen = to_torch(case.tensor("attn_weights_slice")), torch.from_numpy(visible(case))
    spoiled = case.changed(attn_weights_slice=to_golden(scores.where(seen, garbage)))
    before, after = (implementation_or_oracle.call(each) for each in (case, spoiled))
    implementation_or_oracle.require_same(spoiled, before, after, "a masked position counts")


# --- low scores ----------------------------------------------------------------------------------


def lowered(case: Case, data: st.DataObject) -> Case:
    """The case with scores of ``LOW`` alone, m and l being those of its rows."""
    values = data.draw(lows, label="scores")
    scores = to_torch(case.tensor("attn_weights_slice"))
    picked = torch.tensor(values)[torch.arange(scores.numel()).view(scores.shape) % len(values)]
    scores = picked.clamp(min=torch.finfo(scores.dtype).min).to(scores.dtype)
    case = case.changed(attn_weights_slice=to_golden(scores))
    if case.operation != NORMALISE:
        return case
    m, total = (torch.from_numpy(each).float() for each in dense.statistics(logits(case)))
    return case.changed(m_global=to_golden(m), l_global=to_golden(total))


@contract("xattention.masked.no-sentinel")
@operations(STATS)
@given(case=softmax_cases(STATS, k_blocks=widths), data=st.data())
@some
def test_low_scores_have_their_m_and_l(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """Beside masked positions or without any. How large l is, its bound leaves open far from 0."""
    case = lowered(case, data)
    actual = implementation_or_oracle.judge(case, dense.results(case))
    some_mass = bool((actual[1] > 0).all())
    implementation_or_oracle.require(case, some_mass, "a row that sees keys has none", actual)


@contract("xattention.masked.no-sentinel")
@pytest.mark.parametrize("operation", BLOCK_SUMS)
@given(data=st.data())
@some
def test_low_scores_have_the_mass_and_masked_positions_none(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """A block that holds the largest visible score of a row has mass, one that is masked none."""
    case = lowered(data.draw(softmax_cases(operation, k_blocks=widths)), data)
    actual = implementation_or_oracle.judge(case, dense.results(case))
    x, seen = logits(case), visible(case)
    block = case.number("reshaped_block_size")
    largest = dense.by_block(1.0 * (seen & (x == x.max(-1, keepdims=True))), block) > 0
    masked = dense.by_block(np.broadcast_to(1.0 * seen, x.shape), block) == 0
    sums = actual[0].double().numpy()
    implementation_or_oracle.require(
        case,
        bool((sums[largest] > 0).all() and (sums[masked] == 0).all()),
        "mass is not where the largest visible scores are",
        actual,
    )


@contract("xattention.masked.no-sentinel")
@operations(MERGE)
@given(low=st.lists(st.sampled_from(LOW), min_size=1, max_size=4))
@some
def test_low_maxima_merge(implementation_or_oracle: Runner, low: list[float]) -> None:
    """Chunks of the largest m add up, and those of another are too far below to count."""
    ones = torch.ones(1, 1, 2)
    case = merge_of(*((m * ones, 1.5 * ones) for m in low))
    expected = max(low) * ones, 1.5 * low.count(max(low)) * ones
    implementation_or_oracle.judge(case, expected)
