"""Kernels in CUDA C++, sanitized: on the golden vectors, on generated cases, and on large ones."""

from typing import Final

import pytest
import torch
from hypothesis import given, settings

from golden import files
from golden.model import Operation
from kernels.xattention.torch_reference import softmax_compute_partial_stats
from suites.cases import (
    MERGE,
    ONE_PASS,
    STATS,
    Case,
    real,
    to_golden,
)
from suites.contracts import DEFINED_BY, contract
from suites.runner import Runner
from suites.sanitize.conftest import Launches
from suites.strategies import witness, xattention
from suites.xattention.stages import of_keys

# Vectors of what a call does; a refusal launches nothing.
VECTORS: Final = {
    operation: [
        vector
        for name, vector in files.all_vectors()
        if name == operation and vector.refusal is None
    ]
    for operation in DEFINED_BY
}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(
            operation, marks=contract(*sorted({id_ for v in vectors for id_ in v.contracts}))
        )
        for operation, vectors in VECTORS.items()
        if vectors
    ],
)
def test_vectors(implementation: Runner, operation: Operation, launches: Launches) -> None:
    for vector in VECTORS[operation]:
        implementation.judge_vector(Case(operation, vector.inputs), vector)
    launches.require()


def defined(*operations: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "operation", [pytest.param(each, marks=contract(DEFINED_BY[each])) for each in operations]
    )


@defined(*DEFINED_BY)
def test_generated_cases(implementation: Runner, operation: Operation, launches: Launches) -> None:
    family = witness if operation in witness.ROW_OPERATIONS else xattention

    @given(case=family.cases(operation, layouts=True))
    def generated(case: Case) -> None:
        implementation.judge(case)

    generated()
    launches.require()


@defined(*witness.ROW_OPERATIONS)
def test_long_rows(implementation: Runner, operation: Operation, launches: Launches) -> None:
    """Several quadruples of slots a thread, before and after the first 16-byte boundary."""

    @given(case=witness.large_cases(operation, rows=3, topks=(511, 1029, 2048)))
    @settings(max_examples=6)
    def generated(case: Case) -> None:
        implementation.judge(case)

    generated()
    launches.require()


# --- softmax over more than fits a block of threads ----------------------------------------------

# Rows, keys, and the size of a block: what takes several rounds, of whatever size they are.
SHAPES: Final = {
    "a row in several rounds": (2, 1030, 2),
    "more rows a block than a warp each": (72, 144, 72),
    "more blocks of keys than a block of threads takes": (16, 400, 16),
    "a block wider than a block of threads": (258, 258, 258),
}


def softmax(operation: Operation, rows: int, keys: int, block: int) -> Case:
    """The last queries of a sequence, causal, in two heads; the last row is padding."""
    scores = torch.randn(1, 2, rows, keys, generator=torch.Generator().manual_seed(rows))
    start, scale = keys - rows, 0.5
    whole = Case(
        ONE_PASS,
        {
            "attn_weights_slice": to_golden(scores, "padded"),
            "reshaped_block_size": block,
            "segment_size": block,
            "chunk_start": start,
            "chunk_end": keys,
            "real_q_len": keys - 1,
            "scale": real(scale),
            "is_causal": True,
        },
    )
    if operation == ONE_PASS:
        return whole
    stage = of_keys(whole, operation, 0, keys)
    if operation == STATS:
        return stage
    m, total = softmax_compute_partial_stats(scores, block, block, scale, start, 0, True)
    return stage.changed(m_global=to_golden(m), l_global=to_golden(total))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@defined(*xattention.SOFTMAX)
def test_several_rounds(
    implementation: Runner, operation: Operation, launches: Launches, shape: tuple[int, int, int]
) -> None:
    implementation.judge(softmax(operation, *shape))
    launches.require()


@defined(MERGE)
def test_more_rows_than_a_block_of_threads(
    implementation: Runner, operation: Operation, launches: Launches
) -> None:
    chunks = [(torch.full((1, 2, 150), m), torch.full((1, 2, 150), 2.0)) for m in (0.0, 3.0, -1.0)]
    implementation.judge(xattention.merge_of(*chunks))
    launches.require()
