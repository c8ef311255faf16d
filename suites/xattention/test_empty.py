"""Rows without keys: (-inf, 0) is their state, what the merge ignores, and worth nothing (R-X4)."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.cases import MERGE, NORMALISE, ONE_PASS, STATS, Case, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import (
    INF,
    chunks_of,
    logits,
    merge_cases,
    merge_of,
    softmax_cases,
    visible,
)
from suites.xattention import dense

widths = st.sampled_from([2, 1, 3, 4, 70])
some = settings(max_examples=12)


# --- statistics ----------------------------------------------------------------------------------


@contract("xattention.empty.stats")
@operations(STATS)
@given(case=softmax_cases(STATS, causal=True, k_blocks=widths), late=st.integers(1, 3))
@some
def test_a_row_before_all_keys_is_empty(
    implementation_or_oracle: Runner, case: Case, late: int
) -> None:
    """Keys that start some blocks after the first row: the rows before them see none."""
    start, block = case.number("chunk_start"), case.number("reshaped_block_size")
    case = case.changed(kv_offset=start + late * block)
    empty = torch.from_numpy(~visible(case).any(-1))
    _require_empty(implementation_or_oracle, case, empty)


@contract("xattention.empty.stats")
@operations(STATS)
@given(case=softmax_cases(STATS, k_blocks=widths), row=st.integers(0, 9), rest=st.booleans())
@some
def test_a_row_of_minus_inf_alone_is_empty(
    implementation_or_oracle: Runner, case: Case, row: int, rest: bool
) -> None:
    """``rest``: where the mask begins, there are finite scores again."""
    scores = to_torch(case.tensor("attn_weights_slice"))
    empty = torch.arange(scores.shape[2]) == row % scores.shape[2]
    hidden = torch.from_numpy(~visible(case)) & rest
    scores = scores.where(~empty.unsqueeze(1) | hidden, -INF)
    case = case.changed(attn_weights_slice=to_golden(scores))
    _require_empty(implementation_or_oracle, case, empty)


def _require_empty(runner: Runner, case: Case, empty: torch.Tensor) -> None:
    """Require (-inf, 0) of these rows, of every head."""
    actual = runner.call(case)
    m, total = (statistic[..., empty] for statistic in actual)
    runner.require(case, bool((m == -INF).all()), "m of an empty row is not -inf", actual)
    runner.require(case, bool((total == 0).all()), "l of an empty row is not 0", actual)


# --- merges --------------------------------------------------------------------------------------


@contract("xattention.empty.merge-identity")
@operations(MERGE)
@given(case=merge_cases(chunks=st.just(1)), before=st.integers(0, 1), after=st.integers(0, 3))
@some
def test_identities_leave_a_chunk_as_it_is(
    implementation_or_oracle: Runner, case: Case, before: int, after: int
) -> None:
    """Before it or after it. Two before it would merge with each other first: see below."""
    (chunk,) = chunks_of(case)
    among = merge_of(*[_identity(chunk)] * before, chunk, *[_identity(chunk)] * after)
    implementation_or_oracle.judge(among, chunk)


@contract("xattention.empty.merge-identity")
@operations(MERGE)
@given(case=merge_cases(chunks=st.integers(2, 4)), data=st.data())
@some
def test_a_chunk_that_some_rows_do_not_see(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """Each row merges as if the chunks that are empty for it were not in the list."""
    chunks = chunks_of(case)
    rows = chunks[0][0].shape[-1]
    alone = data.draw(
        st.lists(st.integers(0, 1), min_size=rows, max_size=rows),
        label="the chunk that is left of each row",
    )
    left = [torch.tensor(alone) == c for c in range(len(chunks))]
    with_empty = [
        (m.where(here, -INF), total.where(here, 0))
        for here, (m, total) in zip(left, chunks, strict=True)
    ]
    m, total = (torch.stack(each) for each in zip(*chunks, strict=True))
    kept = m[alone, ..., range(rows)].movedim(0, -1), total[alone, ..., range(rows)].movedim(0, -1)
    implementation_or_oracle.judge(merge_of(*with_empty), kept)


@contract("xattention.empty.merge-only-identities")
@operations(MERGE)
@given(case=merge_cases(chunks=st.just(1)), count=st.integers(1, 5))
@some
def test_identities_alone_merge_to_one(
    implementation_or_oracle: Runner, case: Case, count: int
) -> None:
    identity = _identity(chunks_of(case)[0])
    implementation_or_oracle.judge(merge_of(*[identity] * count), identity)


@contract("xattention.empty.merge-only-identities")
@operations(MERGE)
@given(case=merge_cases(chunks=st.just(1)), before=st.integers(2, 4), after=st.integers(0, 2))
@some
def test_several_identities_before_a_chunk_leave_it_as_it_is(
    implementation_or_oracle: Runner, case: Case, before: int, after: int
) -> None:
    (chunk,) = chunks_of(case)
    among = merge_of(*[_identity(chunk)] * before, chunk, *[_identity(chunk)] * after)
    implementation_or_oracle.judge(among, chunk)


def _identity(chunk: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    m, total = chunk
    return torch.full_like(m, -INF), torch.zeros_like(total)


# --- block sums ----------------------------------------------------------------------------------


@contract("xattention.empty.contributes-zero")
@operations(NORMALISE)
@given(case=softmax_cases(NORMALISE, k_blocks=widths), data=st.data())
@some
def test_a_row_without_mass_adds_nothing(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """Whatever its scores are; all rows of a block may be such."""
    m, total = (to_torch(case.tensor(name)) for name in ("m_global", "l_global"))
    rows = m.shape[-1]
    empty = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    case = case.changed(
        m_global=to_golden(m.where(~empty, -INF)), l_global=to_golden(total.where(~empty, 0))
    )
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.empty.contributes-zero")
@operations(NORMALISE)
@given(case=softmax_cases(NORMALISE, causal=True, k_blocks=widths), late=st.integers(1, 3))
@some
def test_a_row_before_all_keys_adds_nothing(
    implementation_or_oracle: Runner, case: Case, late: int
) -> None:
    """By the state of these keys alone, which of such a row is empty."""
    start, block = case.number("chunk_start"), case.number("reshaped_block_size")
    case = case.changed(kv_offset=start + late * block)
    m, total = (torch.from_numpy(each).float() for each in dense.statistics(logits(case)))
    case = case.changed(m_global=to_golden(m), l_global=to_golden(total))
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.empty.contributes-zero")
@operations(ONE_PASS)
@given(case=softmax_cases(ONE_PASS, k_blocks=widths), every=st.integers(1, 3))
@some
def test_a_row_of_minus_inf_alone_adds_nothing(
    implementation_or_oracle: Runner, case: Case, every: int
) -> None:
    """Where all rows of a block are such, its sums are 0."""
    scores = to_torch(case.tensor("attn_weights_slice"))
    empty = torch.arange(scores.shape[2]) % every == 0
    case = case.changed(attn_weights_slice=to_golden(scores.where(~empty.unsqueeze(1), -INF)))
    implementation_or_oracle.judge(case, dense.results(case))
