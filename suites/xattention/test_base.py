"""Units: exponentials to base e, x = scale * score, and base 2 at an interface that says so (R-X2).

The runner converts for an implementation that declares base 2, so these tests fail as well where
what is declared is not what is computed.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from golden.model import Operation
from suites.cases import MERGE, NORMALISE, ONE_PASS, STATS, Case, Results, real, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import INF, SOFTMAX, logits, merge_of, softmax_cases, visible
from suites.xattention import dense

some = settings(max_examples=12)
both = contract("xattention.base.natural", "xattention.base.declared")

# The one-pass kernel keeps its statistics to itself: there is no unit to declare.
by_operation = pytest.mark.parametrize(
    "operation",
    [
        pytest.param(ONE_PASS, marks=contract("xattention.base.natural")),
        pytest.param(STATS, marks=both),
        pytest.param(NORMALISE, marks=both),
    ],
)


# --- exponentials --------------------------------------------------------------------------------


@by_operation
@given(data=st.data())
@some
def test_at_a_scale_of_ln_2_whole_scores_weigh_powers_of_2(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """exp(n ln 2) = 2**n: what is expected takes no exponential to base e."""
    drawn = data.draw(softmax_cases(operation))
    scores = to_torch(drawn.tensor("attn_weights_slice"))
    powers = -(torch.arange(scores.numel()).view(scores.shape) * 5 % 7)
    case = drawn.changed(
        attn_weights_slice=to_golden(powers.to(scores.dtype)), scale=real(math.log(2))
    )
    if operation == NORMALISE:  # an m of 0 and an l of 2 are the same in any base
        m, total = (torch.full(scores.shape[:3], value) for value in (0.0, 2.0))
        case = case.changed(m_global=to_golden(m), l_global=to_golden(total))
    implementation_or_oracle.judge(case, _of_powers(case, powers.numpy()))


def _of_powers(case: Case, powers: dense.Array) -> Results:
    power = np.where(visible(case), powers, -INF)
    most = power.max(-1, keepdims=True)
    total = np.exp2(power - most).sum(-1)
    if case.operation == STATS:
        return dense.to_results(case, most[..., 0] * math.log(2), total)
    weight = np.exp2(power) / 2
    if case.operation == ONE_PASS:
        weight = np.exp2(power - most) / total[..., None]
    return dense.to_results(case, dense.by_block(weight, case.number("reshaped_block_size")))


@both
@operations(MERGE)
def test_a_chunk_decays_by_e_for_each_unit_that_its_m_is_lower(
    implementation_or_oracle: Runner,
) -> None:
    units = torch.arange(8.0).view(1, 2, 4)
    ones = torch.ones_like(units)
    case = merge_of((3 - units, 2 * ones), (3 * ones, ones))
    total = 1 + 2 * np.exp(-units.double().numpy())
    implementation_or_oracle.judge(case, (3 * ones, torch.from_numpy(total).float()))


# --- x -------------------------------------------------------------------------------------------


@contract("xattention.base.natural")
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data(), factor=st.sampled_from([2.0, 0.5, -1.0, 8.0]))
@some
def test_scores_and_scale_count_by_their_product(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject, factor: float
) -> None:
    """Powers of 2 and signs move from one to the other without a rounding, so to the bit."""
    case = data.draw(softmax_cases(operation))
    scores, scale = to_torch(case.tensor("attn_weights_slice")), case.tensor("scale").data[0]
    moved = scores * factor
    assume(torch.equal(moved / factor, scores))  # half of an odd subnormal is rounded
    other = case.changed(attn_weights_slice=to_golden(moved), scale=real(float(scale) / factor))
    before, after = (implementation_or_oracle.call(each) for each in (case, other))
    implementation_or_oracle.require_same(other, before, after, "x is not scale * score")


@by_operation
@given(
    data=st.data(),
    scale=st.sampled_from([1.0, 0.5, 0.125]),
    shift=st.integers(-20, 20).filter(bool),
)
@some
def test_a_shift_of_all_scores_shifts_m_by_as_much_and_moves_no_weight(
    implementation_or_oracle: Runner,
    operation: Operation,
    data: st.DataObject,
    scale: float,
    shift: int,
) -> None:
    """Whole scores, and m in eighths, so that the shift itself is exact."""
    drawn = data.draw(softmax_cases(operation))
    scores = to_torch(drawn.tensor("attn_weights_slice")).round()
    case = drawn.changed(attn_weights_slice=to_golden(scores), scale=real(scale))
    other = case.changed(attn_weights_slice=to_golden(scores + shift))
    if operation == NORMALISE:
        m = (to_torch(case.tensor("m_global")) * 8).round() / 8
        case = case.changed(m_global=to_golden(m))
        other = other.changed(m_global=to_golden(m + shift * scale))
    before, after = (implementation_or_oracle.call(each) for each in (case, other))
    bounds = dense.apart(case, other)
    if operation == STATS:
        before = (*dense.to_results(other, logits(other).max(-1)), before[1])
    implementation_or_oracle.require_close(other, before, after, bounds)


@both
@operations(MERGE)
@given(shift=st.integers(-100, 100))
@some
def test_a_shift_of_all_chunks_shifts_m_by_as_much_and_leaves_l(
    implementation_or_oracle: Runner, shift: int
) -> None:
    m = torch.arange(24.0).view(3, 1, 2, 4) * 7 % 5
    total = torch.full((1, 2, 4), 1.5)
    case, other = (merge_of(*((each, total) for each in chunks)) for chunks in (m, m + shift))
    before, after = (implementation_or_oracle.call(each) for each in (case, other))
    expected = ((m + shift).amax(0), before[1])
    implementation_or_oracle.require_close(other, expected, after, dense.apart(case, other))
