"""What the operations of the witness oracle refuse, and what they just accept (R-W3, R-W4)."""

from typing import Any

import pytest

from oracles import witness as oracle
from suites.selftest.plain import Plain, int32, int32_rows

LEARNED, LENGTHS = int32_rows([0, 5, -1], [3, 1, 7]), int32(8, 16)
NO_ROWS, NO_LENGTHS = Plain("int32", (0, 3), ()), int32()
OPERATIONS: dict[str, tuple[str, dict[str, int]]] = {  # the name of the rows, good numbers
    "topology_witness_indices": ("learned_indices", {"num_segments": 4}),
    "apply_topology_witnesses": (
        "learned_indices",
        {"learned_keep": 1, "num_segments": 4, "max_replacements": 2},
    ),
    "scatter_topology_witnesses_": ("topk_indices", {"num_segments": 4}),
}
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


def call(
    operation: str, rows: Plain = LEARNED, context_lens: Plain = LENGTHS, **numbers: int
) -> list[list[int]]:
    name, good = OPERATIONS[operation]
    arguments = {name: rows, "context_lens": context_lens, **good, **numbers}
    result: list[list[int]] = getattr(oracle, operation)(**arguments)
    return result


@every_operation
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(LEARNED._replace(dtype="int64"), id="int64"),
        pytest.param(LEARNED._replace(dtype="int16"), id="int16"),
        pytest.param(int32(0, 5), id="1-D"),
        pytest.param(Plain("int32", (2, 3, 1), LEARNED.data), id="3-D"),
        pytest.param(NO_ROWS._replace(dtype="int64"), id="int64, no rows"),
    ],
)
def test_learned_entries_are_int32_and_2d(operation: str, rows: Plain) -> None:
    lengths = LENGTHS if rows.shape[0] else NO_LENGTHS
    with pytest.raises(ValueError, match=f"^{OPERATIONS[operation][0]} must"):
        call(operation, rows, lengths)


@every_operation
@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        pytest.param(LEARNED, Plain("int32", (), (8,)), id="0-D"),
        pytest.param(LEARNED, Plain("int32", (2, 1), (8, 16)), id="2-D"),
        pytest.param(LEARNED, int32(8), id="too few"),
        pytest.param(LEARNED, int32(8, 16, 24), id="too many"),
        pytest.param(LEARNED, NO_LENGTHS, id="none"),
        pytest.param(NO_ROWS, int32(8), id="too many, no rows"),
    ],
)
def test_context_lengths_are_1d_and_one_a_row(operation: str, rows: Plain, lengths: Plain) -> None:
    with pytest.raises(ValueError, match=r"^context_lens must"):
        call(operation, rows, lengths)


@pytest.mark.parametrize(
    ("operation", "argument", "value"),
    [
        ("topology_witness_indices", "num_segments", 0),
        ("topology_witness_indices", "num_segments", -1),
        ("apply_topology_witnesses", "num_segments", -1),
        ("apply_topology_witnesses", "num_segments", 0),
        ("apply_topology_witnesses", "num_segments", 65),
        ("apply_topology_witnesses", "learned_keep", -1),
        ("apply_topology_witnesses", "learned_keep", 4),
        ("apply_topology_witnesses", "max_replacements", -1),
        ("scatter_topology_witnesses_", "num_segments", -1),
        ("scatter_topology_witnesses_", "num_segments", 65),
    ],
)
def test_numbers_out_of_range_are_refused(operation: str, argument: str, value: int) -> None:
    for rows, lengths in [(LEARNED, LENGTHS), (NO_ROWS, NO_LENGTHS)]:
        with pytest.raises(ValueError, match=rf"^{argument} must .* got {value}$"):
            call(operation, rows, lengths, **{argument: value})


@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("learned_indices", {"rows": int32(0, 5), "max_replacements": 0}),
        ("context_lens", {"context_lens": NO_LENGTHS, "max_replacements": 0}),
        ("num_segments", {"num_segments": 65, "max_replacements": 0}),
        ("num_segments", {"num_segments": 0, "learned_keep": 3}),
        ("learned_keep", {"learned_keep": 4, "max_replacements": 0}),
        ("max_replacements", {"max_replacements": -1, "learned_keep": 3}),
    ],
)
def test_a_merge_without_a_budget_is_refused_too(argument: str, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{argument} must"):
        call("apply_topology_witnesses", **changed)


def test_the_off_switch_refuses_malformed_tensors_too() -> None:
    with pytest.raises(ValueError, match=r"^topk_indices must"):
        call("scatter_topology_witnesses_", int32(0, 5), num_segments=0)
    with pytest.raises(ValueError, match=r"^context_lens must"):
        call("scatter_topology_witnesses_", context_lens=NO_LENGTHS, num_segments=0)


@pytest.mark.parametrize(
    ("operation", "changed"),
    [
        ("topology_witness_indices", {"num_segments": 1}),
        ("topology_witness_indices", {"num_segments": 1000}),
        ("apply_topology_witnesses", {"num_segments": 1}),
        ("apply_topology_witnesses", {"num_segments": 64}),
        ("apply_topology_witnesses", {"learned_keep": 0, "max_replacements": 10**9}),
        ("apply_topology_witnesses", {"learned_keep": 3, "max_replacements": 0}),
        ("scatter_topology_witnesses_", {"num_segments": 0}),
        ("scatter_topology_witnesses_", {"num_segments": 64}),
        *((name, {"context_lens": LENGTHS._replace(dtype="int64")}) for name in OPERATIONS),
    ],
)
def test_the_ends_of_every_range_are_accepted(operation: str, changed: dict[str, Any]) -> None:
    width = changed.get("num_segments", 4) if operation == "topology_witness_indices" else 3
    assert [len(row) for row in call(operation, **changed)] == [width, width]


@every_operation
def test_no_rows_and_no_columns_pass_through(operation: str) -> None:
    assert call(operation, NO_ROWS, NO_LENGTHS) == []
    numbers = {"learned_keep": 0} if operation == "apply_topology_witnesses" else {}
    width = 4 if operation == "topology_witness_indices" else 0
    no_columns = call(operation, Plain("int32", (2, 0), ()), LENGTHS, **numbers)
    assert [len(row) for row in no_columns] == [width, width]
