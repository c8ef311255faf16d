"""Invariant and consequences: what the witness set is, whatever the learned row holds."""

from hypothesis import given

from golden.model import Tensor
from oracles.witness import longest_run
from suites.cases import INDICES, Case
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import cases
from suites.witness.rows import rows

pytestmark = operations(INDICES)


@contract("witness.indices.slot-per-segment")
@given(case=cases(INDICES))
def test_a_slot_without_a_segment_is_empty(implementation_or_oracle: Runner, case: Case) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(
            all(x == -1 for x in row.result[row.effective :]),
            "a slot past the row's last segment is not -1",
        )


@contract("witness.coordinates.range")
@given(case=cases(INDICES))
def test_a_slot_holds_a_token_of_the_context_or_nothing(
    implementation_or_oracle: Runner, case: Case
) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(
            all(x == -1 or 0 <= x < row.length for x in row.result),
            "a slot holds neither -1 nor a token of [0, L)",
        )


@contract("witness.edge.lands-in-segment")
@given(case=cases(INDICES))
def test_a_witness_is_the_first_token_of_its_segment(
    implementation_or_oracle: Runner, case: Case
) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        for s, token in enumerate(row.result):
            row.require(
                token < 0 or (row.segment(token) == s and token == row.intervals[s][0]),
                f"the witness in slot {s} is not the left edge of segment {s}",
            )


@contract("witness.set.disjoint")
@given(case=cases(INDICES))
def test_no_witness_is_a_learned_token(implementation_or_oracle: Runner, case: Case) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(
            not set(row.tokens) & set(row.learned), "the learned row already holds a witness"
        )


@contract("witness.set.distinct")
@given(case=cases(INDICES))
def test_no_witness_appears_twice(implementation_or_oracle: Runner, case: Case) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        row.require(len(set(row.tokens)) == len(row.tokens), "a witness appears twice")


@contract("witness.set.complete")
@given(case=cases(INDICES, tokens="legal"))
def test_every_segment_holds_a_learned_token_or_a_witness(
    implementation_or_oracle: Runner, case: Case
) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        missed = set(range(row.effective)) - row.covered(row.learned + row.result)
        row.require(not missed, f"no selected token in segments {sorted(missed)}")


@contract("witness.set.run-bound")
@given(case=cases(INDICES, tokens="legal", shortest=1))
def test_no_long_run_is_left_unselected(implementation_or_oracle: Runner, case: Case) -> None:
    for row in rows(case, implementation_or_oracle.call(case)):
        bound = 2 * -(-row.length // row.effective) - 2
        longest = longest_run(row.learned + row.result, row.length)
        row.require(longest <= bound, f"{longest} unselected tokens in a row, not {bound} at most")


@contract("witness.set.permutation-invariant")
@given(case=cases(INDICES))
def test_the_order_of_learned_entries_does_not_matter(
    implementation_or_oracle: Runner, case: Case
) -> None:
    actual = implementation_or_oracle.call(case)
    learned = case.tensor("learned_indices")
    count, topk = learned.shape
    backwards = tuple(
        x for r in range(count) for x in reversed(learned.data[r * topk : (r + 1) * topk])
    )
    turned = Tensor(learned.dtype, learned.shape, backwards, layout=learned.layout)
    implementation_or_oracle.judge(
        Case(case.operation, {**case.inputs, "learned_indices": turned}), actual
    )
