"""The identities that the source derives, proved for every length and not sampled.

A proof executes the oracle's own code on z3's terms, so what is proved is what computes the
expected values and not a transcript of it. Every proof first shows that its hypotheses can hold:
nothing here is true for want of a case.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import z3

from oracles import witness as oracle

TIMEOUT = 60_000  # milliseconds

length, segments, effective, s, t, x, a, b = z3.Ints("length segments effective s t x a b")


def inside(value: Any, stop: Any) -> Any:
    """``value`` is in [0, stop)."""
    return z3.And(value >= 0, value < stop)


PARTITION = [effective >= 1, effective <= length]
SEGMENT = [*PARTITION, inside(s, effective)]
TOKEN = [inside(x, length)]
POLICY = [length >= 1, segments >= 1, effective == z3.If(segments <= length, segments, length)]


def sigma(token: Any) -> Any:
    return oracle.segment(token, length, effective)


def e(index: Any) -> Any:
    return oracle.edge(index, length, effective)


def marks(token: Any) -> Any:
    return oracle.segment_of(token, length, segments)


@pytest.fixture(autouse=True)
def oracle_on_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test, let the oracle run on terms: z3 has no ``//``, and min and max need a truth."""

    def branching(builtin: Any, before: Any) -> Callable[..., Any]:
        def choose(*values: Any) -> Any:
            if not any(map(z3.is_expr, values)):
                return builtin(*values)
            first, second = values
            return z3.If(before(first, second), first, second)

        return choose

    monkeypatch.setattr(z3.ArithRef, "__floordiv__", z3.ArithRef.__truediv__, raising=False)
    monkeypatch.setattr(oracle, "min", branching(min, operator.le), raising=False)
    monkeypatch.setattr(oracle, "max", branching(max, operator.ge), raising=False)


# --- what a proof is -----------------------------------------------------------------------------


def find(*conditions: Any) -> Any:
    """A model in which all conditions hold, or None if there is none; not knowing is a failure."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(*conditions)
    verdict = solver.check()
    if verdict == z3.unknown:
        pytest.fail(f"z3 does not know ({solver.reason_unknown()}): state a range it can decide")
    return solver.model() if verdict == z3.sat else None


def prove(claim: Any, *hypotheses: Any) -> None:
    """Fail unless the claim holds wherever the hypotheses do, and they do somewhere."""
    if find(*hypotheses) is None:
        pytest.fail("the hypotheses contradict one another: the claim would hold vacuously")
    counterexample = find(*hypotheses, z3.Not(claim))
    if counterexample is not None:
        pytest.fail(f"refuted, counterexample: {counterexample}")


def refute(claim: Any, *hypotheses: Any) -> Callable[..., list[int]]:
    """Fail unless there is a counterexample; return what reads terms in it, as numbers to check."""
    model = find(*hypotheses, z3.Not(claim))
    if model is None:
        pytest.fail("no counterexample: the claim holds")

    def read(*terms: Any) -> list[int]:
        return [model.eval(term, model_completion=True).as_long() for term in terms]

    return read


def test_a_false_claim_fails_with_its_counterexample() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"counterexample: \[length = 7\]"):
        prove(length != 7, length >= 1)


def test_contradictory_hypotheses_fail() -> None:
    with pytest.raises(pytest.fail.Exception, match="contradict"):
        prove(length == 7, length < s, s < length)


def test_not_knowing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TIMEOUT", 100)
    with pytest.raises(pytest.fail.Exception, match="does not know"):
        prove(a * a * a + b * b * b != x * x * x, a >= 1, b >= 1, x >= 1)


def test_a_true_claim_is_not_refuted() -> None:
    with pytest.raises(pytest.fail.Exception, match="the claim holds"):
        refute(length > 0, length >= 1)


def test_division_of_terms_is_pythons_floor_division() -> None:
    prove(z3.And(b * (a // b) <= a, a < b * (a // b) + b), b >= 1)


# --- the partition (source: Object) --------------------------------------------------------------


def test_an_edge_lies_in_its_own_segment() -> None:
    prove(sigma(e(s)) == s, *SEGMENT)


def test_an_edge_lies_in_the_context() -> None:
    prove(inside(e(s), length), *SEGMENT)


def test_the_edges_begin_at_zero_and_end_at_the_length() -> None:
    prove(z3.And(e(0) == 0, e(effective) == length), *PARTITION)


def test_the_edges_strictly_increase() -> None:
    prove(e(s) < e(t), *PARTITION, s >= 0, s < t, t <= effective)


def test_a_token_is_in_a_segment_when_the_edges_enclose_it() -> None:
    prove((sigma(x) == s) == z3.And(e(s) <= x, x < e(s + 1)), *SEGMENT, *TOKEN)


def test_every_token_of_the_context_has_a_segment() -> None:
    prove(inside(sigma(x), effective), *PARTITION, *TOKEN)


def test_no_segment_is_longer_than_the_rounded_up_mean() -> None:
    prove(e(s + 1) - e(s) <= -(-length // effective), *SEGMENT)


def test_a_kernel_may_round_up_without_a_negative_number() -> None:
    prove(e(s) == (s * length + effective - 1) // effective, *SEGMENT)


def test_an_edge_that_is_rounded_down_leaves_its_segment() -> None:
    found = refute(sigma(s * length // effective) == s, *SEGMENT)
    for tokens, count, index in [found(length, effective, s), (10, 4, 1)]:  # the source's own
        assert 0 <= index < count <= tokens
        assert oracle.segment(index * tokens // count, tokens, count) == index - 1
        assert oracle.segment(oracle.edge(index, tokens, count), tokens, count) == index


def test_more_segments_than_tokens_would_not_round_trip() -> None:
    found = refute(sigma(e(s)) == s, length >= 1, inside(s, effective))
    tokens, count, index = found(length, effective, s)
    assert 0 <= index < count
    assert count > tokens >= 1, "the cap S_eff <= L, which only this proof leaves out"
    assert oracle.segment(oracle.edge(index, tokens, count), tokens, count) != index


# --- the witness set (source: Invariant and consequences) ----------------------------------------

learned = z3.Function("learned", z3.IntSort(), z3.BoolSort())
occupied = z3.Function("occupied", z3.IntSort(), z3.BoolSort())
occupant = z3.Function("occupant", z3.IntSort(), z3.IntSort())  # a learned token, by segment


def test_a_token_of_the_context_marks_the_segment_that_holds_it() -> None:
    prove(marks(x) == sigma(x), *POLICY, *TOKEN)


def test_witnesses_are_disjoint_from_the_learned_row() -> None:
    """x is any learned entry, padding and out-of-range entries included, that does not mark s."""
    prove(x != e(s), *POLICY, *SEGMENT, z3.Or(x < 0, marks(x) != s))


def test_witnesses_are_distinct() -> None:
    prove(e(s) != e(t), *SEGMENT, inside(t, effective), s != t)


def occupancy_of(index: Any) -> Any:
    """A segment is occupied only if a learned token, here ``occupant``, marks it."""
    token = occupant(index)
    return z3.Implies(occupied(index), z3.And(learned(token), token >= 0, marks(token) == index))


def holds_a_selected_token(index: Any) -> Any:
    """The occupant, or else the segment's edge, is in K or in W, and lies in the segment.

    A witness is the edge of an unoccupied segment; an edge lies in its own segment (proved
    above), so sigma says which segment a witness would have to be the witness of.
    """
    token = z3.If(occupied(index), occupant(index), e(index))
    witness = z3.And(z3.Not(occupied(sigma(token))), token == e(sigma(token)))
    selected = z3.Or(learned(token), witness)
    return z3.And(selected, inside(token, length), sigma(token) == index)


def test_every_segment_holds_a_learned_token_or_its_witness() -> None:
    in_range = z3.Implies(learned(occupant(s)), occupant(s) < length)
    prove(holds_a_selected_token(s), *POLICY, *SEGMENT, occupancy_of(s), in_range)


# --- out-of-range entries (source: Out-of-range learned entry) -----------------------------------


def test_an_out_of_range_entry_marks_the_last_segment_or_none() -> None:
    """The last of S: a real one when S <= L, and outside the partition when S_eff < S."""
    out_of_range = [*POLICY, length <= x]
    prove(marks(x) == effective - 1, *out_of_range, segments <= length)
    prove(marks(x) >= effective, *out_of_range, length < segments)


def test_an_out_of_range_entry_hides_no_segment_but_the_last() -> None:
    spared = z3.Or(s < effective - 1, length < segments)
    prove(holds_a_selected_token(s), *POLICY, *SEGMENT, occupancy_of(s), spared)


def test_an_out_of_range_entry_can_hide_the_last_segment() -> None:
    found = refute(holds_a_selected_token(s), *POLICY, *SEGMENT, occupancy_of(s))
    tokens, count, index, token = found(length, segments, s, occupant(s))
    assert index == count - 1 < tokens <= token
    assert oracle.witness_slots([token], tokens, count)[index] == -1


# --- the run bound (R-W7) ------------------------------------------------------------------------

first, last = z3.Ints("first last")  # the segments of a run's first and last token
pick = z3.Function("pick", z3.IntSort(), z3.IntSort())  # a selected token, by segment


def a_run() -> list[Any]:
    ends = [first == sigma(a), last == sigma(b - 1)]
    return [*POLICY, a >= 0, a < b, b <= length, *ends]


def run_spares(index: Any) -> Any:
    """If there is such a segment, its selected token ``pick`` is not in the run [a, b)."""
    token = pick(index)
    spared = z3.And(sigma(token) == index, z3.Or(token < a, b <= token))
    return z3.Implies(inside(index, effective), z3.And(inside(token, length), spared))


def within_run_bound() -> Any:
    return b - a <= oracle.run_bound(length, segments)


def test_a_run_is_in_one_segment_or_crosses_one_edge_or_swallows_a_segment() -> None:
    """The case split of the next three proofs leaves nothing out."""
    prove(z3.Or(last == first, last == first + 1, last > first + 1), *a_run())


def test_a_run_inside_one_segment_keeps_the_bound() -> None:
    prove(within_run_bound(), *a_run(), last == first, run_spares(first))


def test_a_run_that_crosses_one_edge_keeps_the_bound() -> None:
    """It leaves out a token on the left of the first segment and one on the right of the last."""
    prove(within_run_bound(), *a_run(), last == first + 1, run_spares(first), run_spares(last))


def test_no_run_crosses_two_edges() -> None:
    """The segment between them would lie in the run, its selected token too."""
    prove(z3.Not(run_spares(first + 1)), *a_run(), last > first + 1)


def a_run_under_full_coverage() -> list[Any]:
    return [*a_run(), run_spares(first), run_spares(first + 1), run_spares(last)]


def test_a_run_keeps_the_bound_when_every_segment_holds_a_selected_token() -> None:
    prove(within_run_bound(), *a_run_under_full_coverage())


@pytest.mark.parametrize("wording", ["one less than the bound", "L / S, the source's loose one"])
def test_no_smaller_run_bound_holds(wording: str) -> None:
    """The run found is checked with every other token of the context selected."""
    bound = oracle.run_bound(length, segments)
    smaller = bound - 1 if wording.startswith("one less") else length // effective
    small = [segments >= 2, segments < length, length <= 99]
    found = refute(b - a <= smaller, *a_run_under_full_coverage(), *small)
    tokens, count, start, end, claimed = found(length, segments, a, b, smaller)
    selected = [*range(start), *range(end, tokens)]
    assert {oracle.segment(token, tokens, count) for token in selected} == set(range(count))
    assert claimed < oracle.longest_run(selected, tokens) <= oracle.run_bound(tokens, count)


# --- machine words (R-W1) ------------------------------------------------------------------------

# Expressions of [length, effective, s, x], and the largest intermediate of each.
EXPRESSIONS: dict[str, tuple[Callable[..., Any], Callable[..., int]]] = {
    "segment": (
        lambda length, effective, s, x: oracle.segment(x, length, effective),
        lambda length, effective, s, x: x * effective,
    ),
    "edge": (
        lambda length, effective, s, x: oracle.edge(s, length, effective),
        lambda length, effective, s, x: s * length,
    ),
    "edge without a negative number": (
        lambda length, effective, s, x: (s * length + effective - 1) // effective,
        lambda length, effective, s, x: s * length + effective - 1,
    ),
}


def intermediates(term: Any) -> Iterator[Any]:
    """The value of every step of an expression, its operands and its result included."""
    yield term
    for operand in term.children():
        yield from intermediates(operand)


def words_hold(name: str, width: int) -> Any:
    """No step leaves the range of a signed word, so arithmetic on words of this width is exact."""
    steps = list(intermediates(EXPRESSIONS[name][0](length, effective, s, x)))
    assert len(steps) >= 5, "two operations on three operands, at least"
    return z3.And([z3.And(-(2 ** (width - 1)) <= step, step < 2 ** (width - 1)) for step in steps])


INT32_TOKENS = [*SEGMENT, inside(x, 2**31)]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_64_bits_hold_every_intermediate(name: str) -> None:
    """For any S. A context of 2**31 is the longest whose tokens an int32 can name."""
    prove(words_hold(name, 64), *INT32_TOKENS, length <= 2**31)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_32_bits_do_not(name: str) -> None:
    """Not even for the merge, whose S is at most 64, on int32 lengths."""
    found = refute(words_hold(name, 32), *INT32_TOKENS, length < 2**31, effective <= 64)
    numbers = found(length, effective, s, x)
    assert EXPRESSIONS[name][1](*numbers) >= 2**31
