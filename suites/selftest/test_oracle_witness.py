"""The witness oracle against definitions that share nothing with it, and against hand values.

The definitions here are slow on purpose: they scan tokens and segments, and place a segment's
ends with fractions. The values by hand are the source's and the rulings'.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import witness as oracle
from suites.selftest.plain import float64, int32, int32_rows

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


# --- the definitions -----------------------------------------------------------------------------


def marked(token: int, length: int, segments: int) -> int:
    """The first of S segments that ends after the token, else the last one."""
    width = Fraction(length, min(segments, length))
    return next((s for s in range(segments) if token < (s + 1) * width), segments - 1)


def partition(length: int, segments: int) -> list[list[int]]:
    """The tokens of each segment that exists."""
    owners = [marked(token, length, segments) for token in range(length)]
    return [[x for x in range(length) if owners[x] == s] for s in range(min(segments, length))]


def witnesses(learned: Sequence[int], length: int, segments: int) -> list[int]:
    if length <= 0:
        return [-1] * segments
    occupied = [marked(token, length, segments) for token in learned if token >= 0]
    slots = [
        -1 if s in occupied else tokens[0] for s, tokens in enumerate(partition(length, segments))
    ]
    return slots + [-1] * (segments - len(slots))


def merged(
    learned: Sequence[int], length: int, keep: int, segments: int, max_replacements: int
) -> list[int]:
    """Slot by slot: the n-th slot from ``keep`` on takes the n-th witness, if both exist."""
    queue = [token for token in witnesses(learned, length, segments) if token != -1]
    row = []
    for slot, token in enumerate(learned):
        replaced = queue and keep <= slot < keep + max_replacements
        row.append(queue.pop(0) if replaced else token)
    return row


def served(learned: Sequence[int], length: int, segments: int) -> list[int]:
    keep = len(learned) - segments if len(learned) > segments else 0
    return merged(learned, length, keep, segments, segments) if segments else list(learned)


# --- the partition -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, 13))
def test_segment_and_edge_describe_the_scanned_partition(length: int) -> None:
    for effective in range(1, length + 1):
        for s, tokens in enumerate(partition(length, effective)):
            assert oracle.edge(s, length, effective) == tokens[0]
            assert oracle.edge(s + 1, length, effective) == tokens[-1] + 1
            assert {oracle.segment(token, length, effective) for token in tokens} == {s}


@pytest.mark.parametrize("length", range(-2, 9))
def test_segment_of_scans_the_segments(length: int) -> None:
    """A length below 1 is read as 1, and padding marks nothing (R-W2)."""
    for segments in range(1, 11):
        marks = {x: marked(x, max(length, 1), segments) for x in [*range(21), INT32_MAX]}
        assert {x: oracle.segment_of(x, length, segments) for x in marks} == marks
        entries = [INT32_MIN, -2, -1, *marks]
        assert oracle.occupancy(entries, length, segments) == set(marks.values())


# --- the policy ----------------------------------------------------------------------------------


def small_rows(length: int) -> Iterator[tuple[int, ...]]:
    """Every row of up to three of these entries: padding, tokens, and two past the context."""
    entries = [INT32_MIN, -1, *range(max(length, 0) + 1), INT32_MAX]
    for topk in range(4):
        yield from itertools.product(entries, repeat=topk)


@pytest.mark.parametrize("length", range(-1, 6))
def test_every_small_row_has_the_defined_witnesses(length: int) -> None:
    for segments in range(1, 8):
        for learned in small_rows(length):
            expected = witnesses(learned, length, segments)
            assert oracle.witness_slots(learned, length, segments) == expected


@pytest.mark.parametrize("length", range(-1, 4))
def test_every_small_row_merges_as_defined(length: int) -> None:
    for segments in range(1, 5):
        for learned in small_rows(length):
            for keep, limit in itertools.product(range(len(learned) + 1), range(4)):
                expected = merged(learned, length, keep, segments, limit)
                assert oracle.merge(learned, length, keep, segments, limit) == expected


@pytest.mark.parametrize("length", range(-1, 5))
def test_every_small_row_is_served_as_defined(length: int) -> None:
    for segments in range(5):
        for learned in small_rows(length):
            expected = served(learned, length, segments)
            assert oracle.serve(learned, length, segments) == expected


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Rows of one width, and a length for each; entries from padding to far past the context."""
    lengths = draw(st.lists(st.integers(-2, 60), min_size=1, max_size=4))
    topk = draw(st.integers(0, 10))
    entry = st.integers(-1, 70) | st.sampled_from([INT32_MIN, INT32_MAX])
    row = st.lists(entry, min_size=topk, max_size=topk)
    return [draw(row) for _ in lengths], lengths


@settings(deadline=None)
@given(batch=batches(), segments=st.integers(1, 64), data=st.data())
def test_the_operations_work_row_by_row(
    batch: tuple[list[list[int]], list[int]], segments: int, data: st.DataObject
) -> None:
    rows, lengths = batch
    learned, context_lens = int32_rows(*rows), int32(*lengths)
    keep = data.draw(st.integers(0, len(rows[0])), label="learned_keep")
    limit = data.draw(st.integers(0, 70), label="max_replacements")
    assert oracle.topology_witness_indices(context_lens, learned, segments) == [
        witnesses(row, length, segments) for row, length in zip(rows, lengths, strict=True)
    ]
    assert oracle.apply_topology_witnesses(learned, context_lens, keep, segments, limit) == [
        merged(row, length, keep, segments, limit)
        for row, length in zip(rows, lengths, strict=True)
    ]
    assert oracle.scatter_topology_witnesses_(learned, context_lens, segments) == [
        served(row, length, segments) for row, length in zip(rows, lengths, strict=True)
    ]


@pytest.mark.parametrize(
    ("length", "segments", "learned", "expected"),
    [
        (16, 4, [0, 5, 9, -1], [-1, -1, -1, 12]),
        (16, 4, [20, -1], [0, 4, 8, -1]),
        (4, 8, [20, -1], [0, 1, 2, 3, -1, -1, -1, -1]),
        (3, 8, [1, -1, -1], [0, -1, 2, -1, -1, -1, -1, -1]),
    ],
)
def test_witnesses_by_hand(
    length: int, segments: int, learned: list[int], expected: list[int]
) -> None:
    actual = oracle.topology_witness_indices(int32(length), int32_rows(learned), segments)
    assert actual == [expected]


@pytest.mark.parametrize(
    ("length", "segments", "keep", "limit", "learned", "expected"),
    [
        (16, 4, 2, 2, [0, 5, 9, -1], [0, 5, 12, -1]),
        (16, 4, 2, 2, [5, 9, 0, -1], [5, 9, 12, -1]),  # the same tokens: the merge is positional
        (16, 4, 1, 2, [20, -1, -1], [20, 0, 4]),
        (16, 4, 2, 2, [9, -1, 0, 5], [9, -1, 12, 5]),
        (0, 4, 0, 4, [-1, -1, -1, -1], [-1, -1, -1, -1]),
        (-3, 4, 0, 4, [-1, -1, -1, -1], [-1, -1, -1, -1]),
        (16, 4, 0, 0, [20, -1, -1], [20, -1, -1]),
    ],
)
def test_merges_by_hand(
    length: int, segments: int, keep: int, limit: int, learned: list[int], expected: list[int]
) -> None:
    actual = oracle.apply_topology_witnesses(
        int32_rows(learned), int32(length), keep, segments, limit
    )
    assert actual == [expected]


SOLE_OCCUPANT = [0, 1, 2, 3, 12, -1, -1, -1]  # 12 alone is in segment 3, and is overwritten


@pytest.mark.parametrize(
    ("length", "segments", "learned", "expected"),
    [
        (8, 4, [0, 5, -1, -1, -1, -1], [0, 5, 2, 6, -1, -1]),
        (16, 1, [0, 5, 9, -1], [0, 5, 9, -1]),
        (16, 0, [20, -1], [20, -1]),
        (16, 4, SOLE_OCCUPANT, [0, 1, 2, 3, 4, 8, -1, -1]),
    ],
)
def test_served_rows_by_hand(
    length: int, segments: int, learned: list[int], expected: list[int]
) -> None:
    actual = oracle.scatter_topology_witnesses_(int32_rows(learned), int32(length), segments)
    assert actual == [expected]


# --- runs (R-W7) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(8))
def test_the_longest_run_is_that_of_a_scan(length: int) -> None:
    for size in range(length + 4):
        for selected in itertools.combinations(range(-1, length + 2), size):
            row = "".join("x" if token in selected else "." for token in range(length))
            assert oracle.longest_run(selected, length) == max(map(len, row.split("x")))


@pytest.mark.parametrize("length", range(1, 9))
def test_no_policy_row_leaves_a_longer_run_than_the_bound(length: int) -> None:
    for segments in range(1, length + 3):
        rows = [
            learned
            for size in range(length + 1)
            for learned in itertools.combinations(range(length), size)
        ]
        runs = [
            oracle.longest_run({*row, *oracle.witness_slots(row, length, segments)}, length)
            for row in rows
        ]
        assert max(runs) <= oracle.run_bound(length, segments)
        if length % segments == 0 and segments > 1:
            assert max(runs) == oracle.run_bound(length, segments), "the bound is attained"


def test_run_bounds_by_hand() -> None:
    assert oracle.run_bound(8, 2) == 6
    assert oracle.run_bound(10, 4) == 4
    assert oracle.run_bound(4, 8) == 0


# --- nulls (R-W8) --------------------------------------------------------------------------------


def test_the_mixer_by_hand() -> None:
    assert oracle.mix(0) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize(
    ("length", "budget", "seed", "expected"),
    [
        (37, 9, 3, [3, 8, 14, 16, 19, 21, 25, 33, 36]),
        (16, 4, 0, [1, 7, 8, 14]),
        (8, 4, 42, [2, 4, 6, 7]),
        (64, 8, 2**64 - 1, [21, 27, 34, 36, 57, 58, 59, 60]),
    ],
)
def test_random_draws_by_hand(length: int, budget: int, seed: int, expected: list[int]) -> None:
    assert oracle.random_null(length, budget, seed) == expected


lengths_and_budgets = given(st.integers(1, 40), st.integers(0, 45), st.integers(0, 2**64 - 1))


@settings(deadline=None)
@lengths_and_budgets
def test_the_random_null_is_the_last_row_of_a_causal_selector(
    length: int, budget: int, seed: int
) -> None:
    selector = [oracle.random_row(query, budget, seed) for query in range(length)]
    for query, row in enumerate(selector):
        assert row == sorted(set(row)), "distinct and ascending"
        assert len(row) == min(budget, query + 1)
        assert set(row) <= set(range(query + 1)), "causal"
    assert oracle.random_null(length, budget, seed) == selector[-1]


@lengths_and_budgets
def test_the_locality_null_is_the_last_row_of_a_causal_selector(
    length: int, budget: int, seed: int
) -> None:
    selector = [
        [token for token in range(query + 1) if query - token < budget] for query in range(length)
    ]
    assert [oracle.local_row(query, budget) for query in range(length)] == selector
    assert oracle.locality_null(length, budget) == selector[-1]


@pytest.mark.parametrize("length", [0, -3])
def test_an_empty_context_draws_nothing(length: int) -> None:
    assert oracle.random_null(length, 4, 0) == []
    assert oracle.locality_null(length, 4) == []


# --- metrics (R-W9) ------------------------------------------------------------------------------

ATTENTION = float64(0.5, 0.0, 0.25, 0.0, 0.0, 0.125, 0.0625, 0.0625)


@pytest.mark.parametrize(
    ("candidates", "coverage", "recall"),
    [
        ([0, 5, 2, 6, -1, -1], 1.0, 0.9375),
        ([0, 5, 5, -1, 9], 0.5, 0.625),
        (oracle.locality_null(8, 4), 0.5, 0.25),
        ([-1, 8, INT32_MAX], 0.0, 0.0),
    ],
)
def test_metrics_by_hand(candidates: list[int], coverage: float, recall: float) -> None:
    assert oracle.segment_coverage(int32(*candidates), 8, 4) == coverage
    assert oracle.attention_mass_recall(int32(*candidates), ATTENTION) == recall


def test_the_overwritten_sole_occupant_uncovers_its_segment() -> None:
    assert oracle.segment_coverage(int32(*SOLE_OCCUPANT), 16, 4) == 0.5
    assert oracle.segment_coverage(int32(*oracle.serve(SOLE_OCCUPANT, 16, 4)), 16, 4) == 0.75


@pytest.mark.parametrize(("length", "segments"), [(0, 4), (-3, 4), (8, 0)])
def test_coverage_without_segments_is_one(length: int, segments: int) -> None:
    assert oracle.segment_coverage(int32(0, 1), length, segments) == 1.0


@pytest.mark.parametrize("attention", [[], [0.0, 0.0, 0.0]])
def test_recall_without_mass_is_nan(attention: list[float]) -> None:
    assert math.isnan(oracle.attention_mass_recall(int32(0, 1), float64(*attention)))


candidate_rows = st.lists(st.integers(-2, 30) | st.just(INT32_MAX), max_size=12)


@settings(deadline=None)
@given(candidate_rows, st.integers(1, 25), st.integers(1, 30))
def test_coverage_counts_the_segments_that_are_met(
    candidates: list[int], length: int, segments: int
) -> None:
    cells = partition(length, segments)
    met = [cell for cell in cells if not set(candidates).isdisjoint(cell)]
    expected = Fraction(len(met), len(cells))
    assert oracle.segment_coverage(int32(*candidates), length, segments) == float(expected)


@given(candidate_rows, st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=25))
def test_recall_is_the_exact_share_correctly_rounded(
    candidates: list[int], attention: list[float]
) -> None:
    """No double is nearer to the exact share, huge and subnormal weights included."""
    held = sum(Fraction(w) for token, w in enumerate(attention) if token in candidates)
    total = sum(map(Fraction, attention))
    recall = oracle.attention_mass_recall(int32(*candidates), float64(*attention))
    if total == 0:
        assert math.isnan(recall)
        return
    error = abs(Fraction(recall) - held / total)
    for neighbour in (math.nextafter(recall, -1), math.nextafter(recall, 2)):
        assert error <= abs(Fraction(neighbour) - held / total)


def test_recall_does_not_overflow() -> None:
    assert oracle.attention_mass_recall(int32(0), float64(1.7e308, 1.7e308)) == 0.5
