"""Refusals (R-W3, R-W4): ValueError, before anything is written and before any passthrough."""

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import Operation, Tensor
from suites.cases import APPLY, INDICES, ROWS, SERVE, Case
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import MERGES, ROW_OPERATIONS, cases

every_operation = pytest.mark.parametrize("operation", ROW_OPERATIONS)
IntegerType = Literal["int32", "int64"]


# A refusal hangs on one argument; what the others hold matters little.
few = settings(max_examples=15)


def refuse(runner: Runner, case: Case, **changes: Tensor | int) -> None:
    """The case with its inputs changed is refused; so it is where nothing would be done anyway."""
    runner.refuse(Case(case.operation, {**case.inputs, **changes}))


@contract("witness.refusal.learned-dtype", "witness.refusal.writes-nothing")
@every_operation
@given(data=st.data())
@few
def test_learned_entries_of_another_type(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    learned = case.tensor(ROWS[operation])
    wider = Tensor("int64", learned.shape, learned.data, layout=learned.layout)
    refuse(implementation_or_oracle, case, **{ROWS[operation]: wider})


@contract("witness.refusal.learned-dims", "witness.refusal.writes-nothing")
@every_operation
@given(data=st.data())
@few
def test_learned_entries_of_another_rank(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, rows=st.integers(0, 3)))
    learned = case.tensor(ROWS[operation])
    shapes: list[tuple[int, ...]] = [(len(learned.data),), (1, *learned.shape), (*learned.shape, 1)]
    shape = data.draw(st.sampled_from(shapes))
    reshaped = Tensor("int32", shape, learned.data)
    lengths = Tensor("int32", shape[:1], (16,) * shape[0])
    refuse(implementation_or_oracle, case, **{ROWS[operation]: reshaped, "context_lens": lengths})


@contract("witness.refusal.lens-dims", "witness.refusal.writes-nothing")
@every_operation
@given(data=st.data())
@few
def test_context_lengths_of_another_rank(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, rows=st.integers(0, 3)))
    lengths = case.tensor("context_lens")
    shapes: list[tuple[int, ...]] = [(*lengths.shape, 1), (1, *lengths.shape)]
    if lengths.shape == (1,):
        shapes.append(())
    shape = data.draw(st.sampled_from(shapes))
    refuse(implementation_or_oracle, case, context_lens=Tensor(lengths.dtype, shape, lengths.data))


@contract("witness.refusal.lens-count", "witness.refusal.writes-nothing")
@every_operation
@given(data=st.data())
@few
def test_context_lengths_for_other_rows(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    rows = case.tensor("context_lens").shape[0]
    count = data.draw(st.sampled_from([n for n in range(6) if n != rows]))
    dtype: IntegerType = data.draw(st.sampled_from(["int32", "int64"]))
    refuse(implementation_or_oracle, case, context_lens=Tensor(dtype, (count,), (16,) * count))


@contract("witness.refusal.segments", "witness.refusal.writes-nothing")
@pytest.mark.parametrize(
    ("operation", "segments"),
    [
        *[(INDICES, s) for s in (0, -1, -(2**31))],
        *[(APPLY, s) for s in (0, -1, 65, 128, 2**31)],
        *[(SERVE, s) for s in (-1, 65, 128, 2**31)],
    ],
)
@given(data=st.data())
@few
def test_segments_out_of_range(
    implementation_or_oracle: Runner, operation: Operation, segments: int, data: st.DataObject
) -> None:
    refuse(implementation_or_oracle, data.draw(cases(operation)), num_segments=segments)


@contract("witness.refusal.keep", "witness.refusal.writes-nothing")
@operations(APPLY)
@given(case=cases(APPLY), beyond=st.integers(1, 100), below=st.booleans())
@few
def test_a_prefix_that_does_not_fit(
    implementation_or_oracle: Runner, case: Case, beyond: int, below: bool
) -> None:
    topk = case.tensor("learned_indices").shape[1]
    refuse(implementation_or_oracle, case, learned_keep=-beyond if below else topk + beyond)


@contract("witness.refusal.max-replacements", "witness.refusal.writes-nothing")
@operations(APPLY)
@given(case=cases(APPLY), replacements=st.integers(-100, -1))
@few
def test_a_negative_budget(implementation_or_oracle: Runner, case: Case, replacements: int) -> None:
    refuse(implementation_or_oracle, case, max_replacements=replacements)


BAD: list[tuple[str, dict[str, int]]] = [
    ("num_segments", {"num_segments": 65}),
    ("learned_keep", {"learned_keep": -1}),
    ("max_replacements", {"max_replacements": -1}),
]


@contract("witness.refusal.before-passthrough")
@operations(APPLY)
@pytest.mark.parametrize(("argument", "bad"), BAD, ids=[name for name, _ in BAD])
@given(data=st.data())
@few
def test_nothing_to_do_is_no_excuse(
    implementation_or_oracle: Runner, argument: str, bad: dict[str, int], data: st.DataObject
) -> None:
    case = data.draw(cases(APPLY, rows=st.sampled_from([0, 1])))
    idle = (
        {"learned_keep": case.tensor("learned_indices").shape[1]}
        if argument != "learned_keep"
        else {"max_replacements": 0}
    )
    refuse(implementation_or_oracle, case, **idle, **bad)


@contract("witness.refusal.before-passthrough")
@pytest.mark.parametrize("operation", MERGES)
@given(data=st.data())
@few
def test_no_rows_are_no_excuse(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, rows=st.just(0)))
    refuse(implementation_or_oracle, case, num_segments=65)
