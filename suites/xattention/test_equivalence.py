"""Three stages are one pass, one pass is dense softmax, however queries and keys are cut (R-X9)."""

from collections.abc import Iterator
from itertools import chain, combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import Operation, Value
from suites.cases import (
    MERGE,
    NORMALISE,
    ONE_PASS,
    SCORES,
    STATS,
    Case,
    real,
    to_golden,
)
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import SOFTMAX, score_cases, softmax_cases
from suites.xattention import dense
from suites.xattention.stages import chunks, of_rows, require_stages

STAGES: tuple[Operation, ...] = (STATS, MERGE, NORMALISE)

# More keys than one tile of a kernel holds, in numbers that no warp, tile or segment divides.
many = softmax_cases(
    ONE_PASS,
    blocks=st.sampled_from([1, 3, 5]),
    k_blocks=st.sampled_from([29, 67, 131]),
)


def _columns(case: Case) -> int:
    return case.tensor("attn_weights_slice").shape[3]


# --- one pass ------------------------------------------------------------------------------------


@contract("xattention.equivalence.one-pass")
@operations(ONE_PASS)
@given(case=softmax_cases(ONE_PASS))
@settings(max_examples=25)
def test_one_pass_is_dense_softmax(implementation_or_oracle: Runner, case: Case) -> None:
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.equivalence.one-pass")
@operations(ONE_PASS)
@given(case=many)
@settings(max_examples=8)
def test_one_pass_over_many_keys(implementation_or_oracle: Runner, case: Case) -> None:
    implementation_or_oracle.judge(case, dense.results(case))


# --- three stages --------------------------------------------------------------------------------


@contract("xattention.equivalence.three-stages")
@operations(*STAGES)
@given(data=st.data())
@settings(max_examples=15)
def test_chunks_of_whole_blocks(implementation_or_oracle: Runner, data: st.DataObject) -> None:
    case = data.draw(softmax_cases(ONE_PASS))
    ends = data.draw(chunks(_columns(case), case.number("reshaped_block_size")), label="chunks")
    require_stages(implementation_or_oracle, case, dense.results(case), ends)


@contract("xattention.equivalence.three-stages")
@operations(*STAGES)
@given(data=st.data())
@settings(max_examples=6)
def test_chunks_of_many_keys(implementation_or_oracle: Runner, data: st.DataObject) -> None:
    case = data.draw(many)
    ends = data.draw(chunks(_columns(case), case.number("reshaped_block_size")), label="chunks")
    require_stages(implementation_or_oracle, case, dense.results(case), ends)


@contract("xattention.equivalence.three-stages")
@operations(*STAGES)
@given(data=st.data())
@settings(max_examples=10)
def test_statistics_of_chunks_that_end_anywhere(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    """Blocks bind block sums and nothing else. (No mask: chunks are not aligned to positions.)"""
    case = data.draw(st.one_of(softmax_cases(ONE_PASS, causal=False), many))
    case = case.changed(is_causal=False)
    columns, block = _columns(case), case.number("reshaped_block_size")
    require_stages(
        implementation_or_oracle,
        case,
        dense.results(case),
        data.draw(chunks(columns, block), label="chunks of block sums"),
        data.draw(chunks(columns), label="chunks of statistics"),
    )


@contract("xattention.equivalence.three-stages")
@operations(ONE_PASS, *STAGES)
@given(data=st.data())
@settings(max_examples=8)
def test_three_stages_are_the_one_pass_kernel(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    case = data.draw(softmax_cases(ONE_PASS))
    ends = data.draw(chunks(_columns(case), case.number("reshaped_block_size")), label="chunks")
    sums = require_stages(implementation_or_oracle, case, dense.results(case), ends)
    one = implementation_or_oracle.call(case)
    (bound,), (staged,) = case.bounds(), case.bounds(staged=True)
    assert bound is not None
    assert staged is not None
    implementation_or_oracle.require_close(
        case, sums, one, (bound + staged,), "one pass differs from three stages"
    )


# --- every chunking in a small scope -------------------------------------------------------------

BLOCK, BLOCKS = 2, 3


def _small(causal: bool, dtype: torch.dtype) -> Case:
    """A sequence that attends to itself: with a mask, some chunks are in the future of some rows.

    Some logits are equal, and the largest one of a row is in any chunk.
    """
    size = BLOCK * BLOCKS
    scores = torch.tensor([(5 * n * n + 3 * n) % 23 for n in range(size * size)]) / 4 - 3
    inputs: dict[str, Value] = {
        "attn_weights_slice": to_golden(scores.reshape(1, 1, size, size).to(dtype)),
        "reshaped_block_size": BLOCK,
        "segment_size": BLOCK,
        "chunk_start": 0,
        "chunk_end": size,
        "real_q_len": size,
        "scale": real(0.7),
        "is_causal": causal,
    }
    return Case(ONE_PASS, inputs)


small = pytest.mark.parametrize(
    ("causal", "dtype"),
    [(True, torch.float32), (False, torch.float16)],
    ids=["causal-fp32", "all-fp16"],
)


def _every_chunking() -> Iterator[list[int]]:
    """Where its chunks begin and end, for every cut of the sequence into whole blocks."""
    inner = range(BLOCK, BLOCK * BLOCKS, BLOCK)
    for cuts in chain.from_iterable(combinations(inner, n) for n in range(BLOCKS)):
        yield [0, *cuts, BLOCK * BLOCKS]


def _every_chunk() -> Iterator[tuple[int, int]]:
    """Every chunk of queries that some chunking has."""
    yield from dict.fromkeys(chunk for ends in _every_chunking() for chunk in pairwise(ends))


@contract("xattention.equivalence.three-stages", "xattention.equivalence.query-split")
@operations(*STAGES)
@small
def test_every_chunking_of_queries_and_of_keys(
    implementation_or_oracle: Runner, causal: bool, dtype: torch.dtype
) -> None:
    for rows in _every_chunk():
        case = of_rows(_small(causal, dtype), *rows)
        for ends in _every_chunking():
            require_stages(implementation_or_oracle, case, dense.results(case), ends)


@contract("xattention.equivalence.one-pass", "xattention.equivalence.query-split")
@operations(ONE_PASS)
@small
def test_every_chunking_of_queries_in_one_pass(
    implementation_or_oracle: Runner, causal: bool, dtype: torch.dtype
) -> None:
    for rows in _every_chunk():
        case = of_rows(_small(causal, dtype), *rows)
        implementation_or_oracle.judge(case, dense.results(case))


# --- queries -------------------------------------------------------------------------------------


def _require_same_rows(runner: Runner, whole: Case, ends: list[int], rows: int) -> None:
    """Require parts of the queries, cut at ``ends``, to give what the whole gives.

    ``rows``: how many query rows make one row of a result.
    """
    together = runner.call(whole)
    for first, end in pairwise(ends):
        case = of_rows(whole, first, end)
        expected = tuple(each[:, :, first // rows : end // rows] for each in together)
        runner.require_close(
            case,
            expected,
            runner.call(case),
            dense.apart(case, case, dot=runner.implementation.dot),
            f"rows [{first}, {end}) alone are not what they are among the others",
        )


@contract("xattention.equivalence.query-split")
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data())
@settings(max_examples=12)
def test_rows_are_the_same_among_fewer(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Statistics without a mask may be cut anywhere; block sums, and aligned offsets, in blocks."""
    case = data.draw(softmax_cases(operation, blocks=st.sampled_from([2, 1, 3, 5, 17])))
    block, rows = (
        case.number("reshaped_block_size"),
        case.tensor("attn_weights_slice").shape[2],
    )
    anywhere = operation == STATS and not case.inputs["is_causal"]
    ends = data.draw(chunks(rows, 1 if anywhere else block), label="chunks of queries")
    _require_same_rows(implementation_or_oracle, case, ends, 1 if operation == STATS else block)


@contract("xattention.equivalence.query-split")
@operations(SCORES)
@given(data=st.data())
@settings(max_examples=6)
def test_scores_are_the_same_among_fewer(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    case = data.draw(score_cases())
    positions = case.tensor("query_states").shape[2] // case.number("stride")
    ends = data.draw(chunks(positions), label="chunks of queries")
    _require_same_rows(implementation_or_oracle, case, ends, 1)
