"""Who sees what: positions, offsets of any kind, and nothing of the future (R-X3)."""

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from golden.model import Operation, Value
from suites.cases import ESTIMATE, NORMALISE, ONE_PASS, STATS, Case, real, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import SOFTMAX, estimate_cases, softmax_cases, visible
from suites.xattention import dense

every_operation = pytest.mark.parametrize("operation", SOFTMAX)
widths = st.sampled_from([2, 1, 3, 4, 70])
some = settings(max_examples=12)
few = settings(max_examples=6)  # of what takes long in an interpreter

NEEDLE = 3e4  # next to it nothing else has weight


# --- positions -----------------------------------------------------------------------------------


@contract("xattention.causal.visible")
@every_operation
@given(data=st.data())
@some
def test_a_row_sees_the_keys_up_to_its_own_position(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """A key that outweighs all others says by which rows it is seen; as does a key like all."""
    case = data.draw(softmax_cases(operation, causal=True, k_blocks=widths))
    scores = torch.zeros_like(to_torch(case.tensor("attn_weights_slice")))
    column = data.draw(st.integers(0, scores.shape[3] - 1), label="column")
    scores[..., column] = data.draw(st.sampled_from([8.0, 0.0, -8.0]), label="score")
    case = case.changed(attn_weights_slice=to_golden(scores))
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.causal.off")
@every_operation
@given(data=st.data())
@some
def test_without_a_mask_offsets_hide_nothing(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Every key is seen from every row, and to move either side changes no bit."""
    case = data.draw(softmax_cases(operation, causal=False, k_blocks=widths))
    before = implementation_or_oracle.judge(case, dense.results(case))
    block, rows = case.number("reshaped_block_size"), case.tensor("attn_weights_slice").shape[2]
    start = block * data.draw(st.integers(0, 9), label="chunk_start / block")
    moves: dict[str, Value] = {
        "chunk_start": start,
        "chunk_end": start + rows,
        "real_q_len": start + rows,
        "kv_offset": block * data.draw(st.integers(0, 9), label="kv_offset / block"),
    }
    moved = case.changed(**{name: x for name, x in moves.items() if name in case.inputs})
    after = implementation_or_oracle.call(moved)
    implementation_or_oracle.require_same(moved, before, after, "offsets count without a mask")


@contract("xattention.causal.off")
@operations(ESTIMATE)
@given(case=estimate_cases(causal=False, whole=True))
@few
def test_without_a_mask_every_key_has_its_share(
    implementation_or_oracle: Runner, case: Case
) -> None:
    """Queries of 0 make all scores equal: a row gives each block of keys one part in k_blocks."""
    queries = torch.zeros_like(to_torch(case.tensor("query_states")))
    case = case.changed(query_states=to_golden(queries))
    sums, mask = implementation_or_oracle.call(case)
    share = case.number("block_size") / case.number("stride") / sums.shape[3]
    expected = torch.full(sums.shape, share, dtype=torch.float64).to(queries.dtype)
    bounds = case.bounds(implementation_or_oracle.implementation.dot)
    implementation_or_oracle.require_close(case, (expected, mask), (sums, mask), bounds)


# --- offsets -------------------------------------------------------------------------------------

BLOCK, SEGMENT = 4, 8


def small(operation: Operation, chunk_start: int, kv_offset: int, needle: bool = False) -> Case:
    """8 rows and 12 columns at the offsets; ``needle``: with one just past what each row sees."""
    i, j = np.arange(8)[:, None], np.arange(12)
    scores = (7 * i + 3 * j) % 11 / 2 - 3
    if needle:
        scores = np.where(kv_offset + j == chunk_start + i + 1, NEEDLE, scores)
    case = Case(
        operation,
        {
            "attn_weights_slice": to_golden(torch.from_numpy(scores).float().view(1, 1, 8, 12)),
            "reshaped_block_size": BLOCK,
            "segment_size": SEGMENT,
            "chunk_start": chunk_start,
            "scale": real(0.75),
            "is_causal": True,
        },
    )
    if operation != ONE_PASS:
        case = case.changed(kv_offset=kv_offset)
    if operation != STATS:
        case = case.changed(real_q_len=chunk_start + 8)
    if operation == ONE_PASS:
        case = case.changed(chunk_end=chunk_start + 8)
    if operation == NORMALISE:
        m, total = torch.full((1, 1, 8), 1.5), torch.full((1, 1, 8), 6.0)
        case = case.changed(m_global=to_golden(m), l_global=to_golden(total))
    return case


def offsets(operation: Operation, kv_offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Every chunk_start up to 11, with these of the keys; one pass has all keys, from 0 on."""
    return product(range(12), [0] if operation == ONE_PASS else kv_offsets)


@contract("xattention.causal.every-offset")
@every_operation
def test_each_of_the_first_offsets(implementation_or_oracle: Runner, operation: Operation) -> None:
    """Rows that see none of the keys, some, and all of them; offsets in blocks, segments or not."""
    for chunk_start, kv_offset in offsets(operation, range(9)):
        case = small(operation, chunk_start, kv_offset)
        implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.causal.every-offset")
@every_operation
@given(data=st.data())
@some
def test_any_offset(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(
        softmax_cases(operation, causal=True, aligned=False, empty=True, k_blocks=widths)
    )
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.causal.every-offset")
@pytest.mark.parametrize("operation", [STATS, NORMALISE])
@pytest.mark.parametrize("far", [2**8, 2**11, 2**24])
def test_positions_that_a_float_does_not_have(
    implementation_or_oracle: Runner, operation: Operation, far: int
) -> None:
    """Past these, bf16, fp16 and fp32 lack every other integer."""
    for ahead in (BLOCK, 1, 3):
        case = small(operation, far + ahead, far)
        if implementation_or_oracle.accepts(case):
            implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.causal.alignment-refused")
@every_operation
def test_offsets_are_refused_or_heeded(
    implementation_or_oracle: Runner, operation: Operation
) -> None:
    """A call that is refused has written nothing; one that is accepted is right."""
    for chunk_start, kv_offset in offsets(operation, [0, 3]):
        case = small(operation, chunk_start, kv_offset)
        if kv_offset <= chunk_start and implementation_or_oracle.accepts(case):
            implementation_or_oracle.judge(case, dense.results(case))


# --- the future ----------------------------------------------------------------------------------


@contract("xattention.causal.no-future-leak")
@every_operation
def test_a_needle_one_column_ahead_is_not_seen(
    implementation_or_oracle: Runner, operation: Operation
) -> None:
    for chunk_start in range(12):
        case = small(operation, chunk_start, 0, needle=True)
        if implementation_or_oracle.accepts(case):
            implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.causal.no-future-leak")
@every_operation
@given(data=st.data(), future=st.sampled_from([NEEDLE, 2.5, -NEEDLE]))
@some
def test_the_future_may_be_anything(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject, future: float
) -> None:
    case = data.draw(softmax_cases(operation, causal=True, aligned=False, k_blocks=widths))
    scores = to_torch(case.tensor("attn_weights_slice"))
    past = torch.from_numpy(visible(case))
    other = case.changed(attn_weights_slice=to_golden(scores.where(past, future)))
    before, after = (implementation_or_oracle.call(each) for each in (case, other))
    implementation_or_oracle.require_same(other, before, after, "a key of the future counts")


@contract("xattention.causal.no-future-leak")
@operations(ESTIMATE)
@given(case=estimate_cases(causal=True), data=st.data(), future=st.sampled_from([40.0, -3.0]))
@few
def test_blocks_of_queries_owe_nothing_to_later_keys(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject, future: float
) -> None:
    """What comes after the last position of a block of queries changes neither sums nor blocks."""
    block, keys = case.number("block_size"), to_torch(case.tensor("key_states"))
    q_len = case.tensor("query_states").shape[2]
    assume(q_len > block)
    rows = data.draw(st.integers(1, (q_len - 1) // block), label="blocks of queries")
    token = torch.arange(keys.shape[2]).unsqueeze(1)
    past = token < keys.shape[2] - q_len + rows * block
    other = case.changed(key_states=to_golden(keys.where(past, future)))
    before, after = (
        tuple(result[:, :, :rows] for result in implementation_or_oracle.call(each))
        for each in (case, other)
    )
    implementation_or_oracle.require_same(other, before, after, "a key of the future counts")
