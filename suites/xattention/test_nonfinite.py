"""Scores that are not finite: a NaN makes its row NaN, -inf has no weight (R-X11, R-X18)."""

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
    chunks_of,
    logits,
    merge_cases,
    merge_of,
    softmax_cases,
    visible,
)
from suites.xattention import dense

NAN = float("nan")
widths = st.sampled_from([2, 1, 3, 4, 70])
some = settings(max_examples=12)


# --- NaN -----------------------------------------------------------------------------------------


def with_nan(case: Case, data: st.DataObject) -> tuple[Case, torch.Tensor]:
    """A NaN among the visible scores of one row of one head; and which row that is."""
    scores = to_torch(case.tensor("attn_weights_slice"))
    batch, head, row = (data.draw(st.integers(0, n - 1), label="NaN at") for n in scores.shape[:3])
    column = data.draw(st.sampled_from(np.flatnonzero(visible(case)[row]).tolist()), label="column")
    scores[batch, head, row, column] = NAN
    nan = torch.zeros(scores.shape[:3], dtype=torch.bool)
    nan[batch, head, row] = True
    return case.changed(attn_weights_slice=to_golden(scores)), nan


@contract("xattention.nonfinite.nan-row")
@operations(STATS)
@given(case=softmax_cases(STATS, k_blocks=widths), data=st.data())
@some
def test_a_visible_nan_makes_m_and_l_nan(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    case, nan = with_nan(case, data)
    actual = implementation_or_oracle.call(case)
    spread = all(bool(statistic[nan].isnan().all()) for statistic in actual)
    implementation_or_oracle.require(case, spread, "a NaN is seen, and m or l is a number", actual)


@contract("xattention.nonfinite.nan-row")
@pytest.mark.parametrize("operation", BLOCK_SUMS)
@given(data=st.data(), elsewhere=st.booleans())
@some
def test_a_visible_nan_makes_the_block_sums_of_its_row_nan(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject, elsewhere: bool
) -> None:
    """Those of all keys that it sees, whichever is NaN; ``elsewhere``: a key of another chunk."""
    plain = data.draw(softmax_cases(operation, k_blocks=widths))
    case, nan = with_nan(plain, data)
    if operation == NORMALISE:
        statistics = {
            name: to_golden(to_torch(case.tensor(name)).where(~nan, NAN))
            for name in ("m_global", "l_global")
        }
        case = (plain if elsewhere else case).changed(**statistics)
    actual = implementation_or_oracle.call(case)
    sees = visible(case) & nan.numpy()[..., None]
    seen = torch.from_numpy(dense.by_block(1.0 * sees, case.number("reshaped_block_size")) > 0)
    spread = bool(actual[0][seen].isnan().all())
    implementation_or_oracle.require(
        case, spread, "a NaN is seen, and a block sum is a number", actual
    )


@contract("xattention.nonfinite.nan-row")
@operations(MERGE)
@given(case=merge_cases(), data=st.data())
@some
def test_a_merge_keeps_a_nan(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """Wherever its chunk stands in the list."""
    chunks = chunks_of(case)
    place = data.draw(st.integers(0, len(chunks) - 1), label="chunk with the NaN")
    m, total = chunks[place]
    row = data.draw(st.integers(0, m.shape[-1] - 1), label="row")
    m[..., row] = total[..., row] = NAN
    case = merge_of(*chunks)
    actual = implementation_or_oracle.call(case)
    kept = all(bool(statistic[..., row].isnan().all()) for statistic in actual)
    implementation_or_oracle.require(case, kept, "the merge loses a NaN", actual)


# --- -inf ----------------------------------------------------------------------------------------


@contract("xattention.nonfinite.minus-inf-weight")
@pytest.mark.parametrize("place", ["before", "between", "after", "every other"])
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data())
@settings(max_examples=6)
def test_minus_inf_has_no_weight(
    implementation_or_oracle: Runner, operation: Operation, place: str, data: st.DataObject
) -> None:
    """The first or the last visible key stays finite, and whole segments of -inf come before it."""
    case = data.draw(softmax_cases(operation, k_blocks=widths))
    scores, column = to_torch(case.tensor("attn_weights_slice")), np.arange(logits(case).shape[3])
    last = visible(case).sum(-1)[:, None] - 1
    gone = {
        "before": column < last,
        "between": (column > 0) & (column < last),
        "after": column > 0,
        "every other": (column != last) & (column % 2 == 0),
    }[place]
    minus_inf = scores.masked_fill(torch.from_numpy(gone), -INF)
    case = case.changed(attn_weights_slice=to_golden(minus_inf))
    implementation_or_oracle.judge(case, dense.results(case))
