"""Every implementation against the oracle: generated cases, and every small row there is."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import Operation, Tensor
from suites.cases import APPLY, INDICES, SERVE, Case
from suites.contracts import DEFINED_BY, contract
from suites.runner import Runner
from suites.strategies.witness import (
    INT32_MAX,
    assemble,
    cases,
    large_cases,
)

every_operation = pytest.mark.parametrize(
    "operation",
    [pytest.param(o, marks=contract(DEFINED_BY[o])) for o in (INDICES, APPLY, SERVE)],
)


@every_operation
@given(data=st.data())
@settings(max_examples=120)
def test_a_few_rows(implementation: Runner, operation: Operation, data: st.DataObject) -> None:
    implementation.judge(data.draw(cases(operation)))


@every_operation
@given(data=st.data())
@settings(max_examples=12)
def test_around_and_past_the_width_of_a_block(
    implementation: Runner, operation: Operation, data: st.DataObject
) -> None:
    topks = (1023, 1024, 1025, 2047, 2048, 2049, 3 * 1024 + 1, 509, 4093)
    implementation.judge(data.draw(large_cases(operation, rows=1, topks=topks)))


@every_operation
@given(data=st.data())
@settings(max_examples=1)
def test_a_very_wide_row(implementation: Runner, operation: Operation, data: st.DataObject) -> None:
    implementation.judge(data.draw(large_cases(operation, rows=1, topks=(65536,))))


@pytest.mark.parametrize(
    ("operation", "rows"),
    [
        pytest.param(operation, rows, marks=contract(DEFINED_BY[operation]))
        for operation, rows in ((SERVE, 1000), (APPLY, 257), (INDICES, 257))
    ],
)
@given(data=st.data())
@settings(max_examples=1)
def test_many_rows(
    implementation: Runner, operation: Operation, rows: int, data: st.DataObject
) -> None:
    implementation.judge(data.draw(large_cases(operation, rows=rows, topks=(1, 3, 5))))


# --- bounded-exhaustive --------------------------------------------------------------------------

LONGEST = 5
ENTRIES = (-1, *range(LONGEST + 2), INT32_MAX)
SLICE = 2  # rows of a batch that an interpreted implementation is given


@pytest.mark.parametrize("segments", range(1, LONGEST + 2))
@pytest.mark.parametrize("topk", [1, 2, 3])
@every_operation
def test_every_small_row(
    implementation: Runner, operation: Operation, topk: int, segments: int
) -> None:
    """Every row of ENTRIES in every context up to LONGEST, with every keep and budget.

    An interpreted implementation is given a slice of each batch, another one each time.
    """
    rows = list(product(range(-1, LONGEST + 1), product(ENTRIES, repeat=topk)))
    batches = [(0, 0)]
    if operation == APPLY:
        batches = list(product(range(topk + 1), range(topk + 2)))
    # The first few rows tell whether the implementation is interpreted.
    implementation.judge(_batch(operation, rows[:SLICE], segments, *batches[0]))
    step = -(-len(rows) // SLICE) if implementation.interpreted else 1
    for number, (keep, replacements) in enumerate(batches):
        chosen = rows[number % step :: step]
        implementation.judge(_batch(operation, chosen, segments, keep, replacements))


def _batch(
    operation: Operation,
    rows: list[tuple[int, tuple[int, ...]]],
    segments: int,
    keep: int,
    replacements: int,
) -> Case:
    topk = len(rows[0][1])
    return assemble(
        operation,
        learned=Tensor("int32", (len(rows), topk), tuple(x for _, row in rows for x in row)),
        lengths=Tensor("int32", (len(rows),), tuple(length for length, _ in rows)),
        segments=segments,
        keep=keep,
        replacements=replacements,
    )
