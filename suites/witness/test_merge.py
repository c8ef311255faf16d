"""Implementation rule and contracts: what the merge may change, and the two caveats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.model import Operation, Tensor
from suites.cases import APPLY, ROWS, Case
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import MERGES, cases
from suites.witness.rows import Row, rows

merges = pytest.mark.parametrize("operation", MERGES)


@contract("witness.merge.width")
@merges
@given(data=st.data())
def test_rows_keep_their_number_and_width(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    results = implementation_or_oracle.call(case)
    implementation_or_oracle.require(
        case,
        results[0].shape == case.tensor(ROWS[operation]).shape and results[0].dtype == torch.int32,
        "the merged rows have another shape or type",
        results,
    )


@contract("witness.merge.prefix")
@merges
@given(data=st.data())
def test_kept_slots_are_copied(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(row.result[: row.keep] == row.learned[: row.keep], "a kept slot changed")


@contract("witness.merge.budget")
@merges
@given(data=st.data())
def test_no_more_than_b_slots_change(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(
            all(row.keep <= slot < row.keep + row.budget for slot in row.changed),
            "a slot outside [keep, keep + B) changed",
        )


@contract("witness.coordinates.range")
@merges
@given(data=st.data())
def test_what_is_written_lies_in_the_context(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(
            all(0 <= x < row.length for x in row.written), "a slot was given no token of [0, L)"
        )


@contract("witness.merge.ascending")
@merges
@given(data=st.data())
def test_witnesses_ascend_from_the_first_reserved_slot(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    for row in rows(case, implementation_or_oracle.call(case)):
        wanted = _missing_edges(row)[: row.budget]
        written = row.result[row.keep : row.keep + len(wanted)]
        row.require(
            written == wanted,
            f"from slot {row.keep} on stand {written[:6]}, not the edges of the missed segments "
            f"in order, {wanted[:6]}",
        )


def _missing_edges(row: Row) -> list[int]:
    """The left edges of the segments that no learned entry marks."""
    last = row.case.number("num_segments") - 1
    marked = row.covered(row.learned)
    if any(x >= row.length for x in row.learned) and row.effective == last + 1:
        marked.add(last)  # an entry past the context marks the last segment there is
    return [first for s, (first, _) in enumerate(row.intervals) if s not in marked]


@contract("witness.merge.tail")
@merges
@given(data=st.data())
def test_what_no_witness_overwrites_passes_through(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    for row in rows(case, implementation_or_oracle.call(case)):
        after = row.keep + min(len(_missing_edges(row)), row.budget)
        row.require(row.result[after:] == row.learned[after:], "a slot after the witnesses changed")


@contract("witness.out-of-range.passes-through")
@merges
@given(data=st.data())
def test_entries_past_the_context_pass_through(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    for row in rows(case, implementation_or_oracle.call(case)):
        written = range(row.keep, row.keep + min(len(_missing_edges(row)), row.budget))
        row.require(
            all(
                row.result[slot] == x
                for slot, x in enumerate(row.learned)
                if x >= row.length and slot not in written
            ),
            "an entry past the context was changed or removed",
        )


@contract("witness.merge.distinct")
@merges
@given(data=st.data())
def test_distinct_rows_stay_distinct(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, tokens="distinct"))
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(len(set(row.tokens)) == len(row.tokens), "a token appears twice")


@contract("witness.merge.padded-tail-coverage")
@merges
@given(data=st.data())
def test_a_padded_tail_of_s_slots_covers_every_segment(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = _with_padded_tail(data.draw(cases(operation, tokens="legal")))
    for row in rows(case, implementation_or_oracle.call(case)):
        missed = set(range(row.effective)) - row.covered(row.result)
        row.require(not missed, f"no token in segments {sorted(missed)}")


def _with_padded_tail(case: Case) -> Case:
    """The same rows, widened by S slots of padding that the merge may use."""
    name, segments = ROWS[case.operation], case.number("num_segments")
    learned = case.tensor(name)
    count, topk = learned.shape
    widened = [
        x
        for r in range(count)
        for x in (*learned.data[r * topk : (r + 1) * topk], *[-1] * segments)
    ]
    inputs = {
        **case.inputs,
        name: Tensor("int32", (count, topk + segments), tuple(widened), layout=learned.layout),
    }
    if case.operation == APPLY:
        inputs |= {"learned_keep": topk, "max_replacements": segments}
    return Case(case.operation, inputs)


@contract("witness.caveat.coverage-after-merge")
@operations(APPLY)
@given(case=cases(APPLY, tokens="legal"))
def test_an_overwritten_sole_occupant_leaves_its_segment_uncovered(
    implementation_or_oracle: Runner, case: Case
) -> None:
    """Occupancy is read from the whole learned row, so the merged row misses what it overwrote."""
    for row in rows(case, implementation_or_oracle.call(case)):
        left = [x for slot, x in enumerate(row.learned) if slot not in row.changed]
        only_overwritten = row.covered(row.overwritten) - row.covered(left)
        row.require(
            not only_overwritten & row.covered(row.result),
            "a segment whose only learned token was overwritten has a token again",
        )


@contract("witness.caveat.positional-merge")
@operations(APPLY)
@given(data=st.data())
def test_a_permuted_prefix_permutes_the_result_and_nothing_else(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    case = data.draw(cases(APPLY, rows=st.just(1)))
    learned, keep = case.tensor("learned_indices"), case.number("learned_keep")
    (actual,) = implementation_or_oracle.call(case)
    prefix = data.draw(st.permutations(range(keep)), label="order of the prefix")
    order = [*prefix, *range(keep, learned.shape[1])]
    moved = Tensor("int32", learned.shape, tuple(learned.data[i] for i in order))
    permuted = Case(case.operation, {**case.inputs, "learned_indices": moved})
    implementation_or_oracle.judge(permuted, (actual[:, order],))


@contract("witness.caveat.positional-merge")
@operations(APPLY)
def test_a_token_moved_across_the_boundary_changes_the_retained_set(
    implementation_or_oracle: Runner,
) -> None:
    """The source's example: {0, 5, 12} becomes {5, 9, 12}, though the learned set is the same."""
    for learned, retained in (((0, 5, 9, -1), {0, 5, 12}), ((5, 9, 0, -1), {5, 9, 12})):
        case = Case(
            APPLY,
            {
                "learned_indices": Tensor("int32", (1, 4), learned),
                "context_lens": Tensor("int32", (1,), (16,)),
                "learned_keep": 2,
                "num_segments": 4,
                "max_replacements": 2,
            },
        )
        for row in rows(case, implementation_or_oracle.call(case)):
            row.require(set(row.result) - {-1} == retained, f"the merged set is not {retained}")
