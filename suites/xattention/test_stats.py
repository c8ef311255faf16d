"""Statistics of a chunk of keys: m, l, and the sizes that no result depends on (R-X2, R-X21)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import Operation
from suites.cases import STATS, Case, Results, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import INF, SOFTMAX, logits, softmax_cases, visible
from suites.xattention import dense

# From one block of keys to more than any tile of a kernel.
widths = st.sampled_from([2, 1, 3, 4, 70])
some = settings(max_examples=12)


def require_of_m(runner: Runner, case: Case, expected: dense.Array, actual: Results) -> None:
    """Require m to be as expected, within the bound, whatever l is."""
    wanted = (*dense.to_results(case, expected), actual[1])
    runner.require_close(case, wanted, actual, case.bounds(runner.implementation.dot))


def require_of_l(runner: Runner, case: Case, expected: dense.Array, actual: Results) -> None:
    """Require l to be as expected, within the bound, whatever m is."""
    wanted = (actual[0], *dense.to_results(case, expected))
    runner.require_close(case, wanted, actual, case.bounds(runner.implementation.dot))


# --- m -------------------------------------------------------------------------------------------


@contract("xattention.stats.maximum")
@operations(STATS)
@given(case=softmax_cases(STATS, k_blocks=widths))
@some
def test_m_is_the_largest_visible_x(implementation_or_oracle: Runner, case: Case) -> None:
    actual = implementation_or_oracle.call(case)
    require_of_m(implementation_or_oracle, case, logits(case).max(-1), actual)


@contract("xattention.stats.maximum")
@operations(STATS)
@given(case=softmax_cases(STATS, k_blocks=widths), where=st.integers(0, 349), below=st.booleans())
@some
def test_m_is_found_in_any_column(
    implementation_or_oracle: Runner, case: Case, where: int, below: bool
) -> None:
    """One key above all others, which are alike; ``below``: and less than 0, as they are."""
    low, high = (-5.0, -2.0) if below else (0.0, 3.0)
    scores = torch.full_like(to_torch(case.tensor("attn_weights_slice")), low)
    column = where % scores.shape[3]
    scores[..., column] = high
    case = case.changed(attn_weights_slice=to_golden(scores))
    m = np.where(visible(case)[:, column], high, low) * float(case.tensor("scale").data[0])
    actual = implementation_or_oracle.call(case)
    require_of_m(implementation_or_oracle, case, np.broadcast_to(m, actual[0].shape), actual)


# --- l -------------------------------------------------------------------------------------------


@contract("xattention.stats.sum")
@operations(STATS)
@given(case=softmax_cases(STATS, k_blocks=widths))
@some
def test_l_is_the_sum_of_weights(implementation_or_oracle: Runner, case: Case) -> None:
    actual = implementation_or_oracle.call(case)
    require_of_l(implementation_or_oracle, case, dense.statistics(logits(case))[1], actual)


@contract("xattention.stats.sum")
@operations(STATS)
@given(case=softmax_cases(STATS, spreads=["equal"], k_blocks=widths))
@some
def test_equal_scores_count_the_keys(implementation_or_oracle: Runner, case: Case) -> None:
    actual = implementation_or_oracle.call(case)
    count = visible(case).sum(-1, dtype=np.float64)
    require_of_l(implementation_or_oracle, case, np.broadcast_to(count, actual[1].shape), actual)


@contract("xattention.stats.sum")
@operations(STATS)
@given(case=softmax_cases(STATS, causal=False, k_blocks=widths), seed=st.integers(0, 2**32 - 1))
@some
def test_l_is_the_same_in_any_order_of_keys(
    implementation_or_oracle: Runner, case: Case, seed: int
) -> None:
    scores = to_torch(case.tensor("attn_weights_slice"))
    order = np.random.default_rng(seed).permutation(scores.shape[3])
    other = case.changed(attn_weights_slice=to_golden(scores[..., order]))
    before, after = (implementation_or_oracle.call(each) for each in (case, other))
    implementation_or_oracle.require_close(
        other, before, after, dense.apart(case, other), "the order of keys counts"
    )


# --- sizes ---------------------------------------------------------------------------------------


@contract("xattention.sizes.stats-any-length")
@operations(STATS)
@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (4, 0), (0, 0), (5, 7), (1, 1), (7, 131)])
@given(case=softmax_cases(STATS, k_blocks=st.just(132)))
@settings(max_examples=4)
def test_any_number_of_rows_and_keys(
    implementation_or_oracle: Runner, rows: int, columns: int, case: Case
) -> None:
    """Whole blocks or not, and none at all: rows without keys are empty rows."""
    scores = to_torch(case.tensor("attn_weights_slice"))
    scores = scores.repeat(1, 1, 7, 1)[:, :, :rows, :columns]
    case = case.changed(attn_weights_slice=to_golden(scores))
    actual = implementation_or_oracle.judge(case, dense.results(case))
    if columns == 0:
        m, total = actual
        empty = bool((m == -INF).all() and (total == 0).all())
        implementation_or_oracle.require(case, empty, "a row without keys is not empty", actual)


@contract("xattention.sizes.segment-hint")
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data())
@settings(max_examples=3)
def test_segment_size_changes_nothing(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Neither one that divides nothing nor one that is longer than the row."""
    case = data.draw(softmax_cases(operation, k_blocks=widths))
    before, bounds = implementation_or_oracle.call(case), dense.apart(case, case)
    for size in (1, 2, 3, 5, 7, 11, 64, 127, 1000, 2**20):
        other = case.changed(segment_size=size)
        after = implementation_or_oracle.call(other)
        implementation_or_oracle.require_close(
            other, before, after, bounds, f"segment_size {size} counts"
        )
