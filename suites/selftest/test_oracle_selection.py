"""Block selection by hand, by its definition, and by intervals against what they contain."""

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import selection as oracle
from oracles.selection import Decision, Result

NAN = math.nan
MUST, MUST_NOT, OPEN = Decision.MUST, Decision.MUST_NOT, Decision.UNDECIDABLE


def sums(*rows: Sequence[float], dtype: str = "float32") -> Result:
    """One batch entry, one head."""
    return Result(dtype, (1, 1, len(rows), len(rows[0])), tuple(itertools.chain(*rows)))


def chosen(mask: Result) -> list[str]:
    """Rows as text: "1" for a selected block."""
    return ["".join(str(int(bit)) for bit in row) for row in oracle.rows_of(mask)]


# --- by hand (R-X12, R-X17) ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "index", "threshold", "expected"),
    [
        # mandatory blocks hold 2 of 8; 3 goes first, 2 next, 1 last
        ([1, 3, 2, 1, 1], 4, 0.25, "10001"),  # 2 is not below 2
        ([1, 3, 2, 1, 1], 4, 0.2500001, "11001"),
        ([1, 3, 2, 1, 1], 4, 0.625, "11001"),  # 5 is not below 5: exactly at a cumulative mass
        ([1, 3, 2, 1, 1], 4, 0.75, "11101"),
        ([1, 3, 2, 1, 1], 4, 0.875, "11101"),
        ([1, 3, 2, 1, 1], 4, 1.0, "11111"),
        # sink and diagonal coincide: one block, counted once
        ([4, 0, 0], 0, 0.9, "100"),
        ([0, 0, 0], 0, 0.9, "100"),
        # mandatory without mass; visible without mass
        ([0, 5, 3, 0], 3, 0.5, "1101"),
        ([0, 5, 0, 0], 3, 1.0, "1101"),
        # past the diagonal nothing counts and nothing is selected
        ([1, 1, 1, 100], 2, 0.5, "1010"),
        ([1, 2, 1, NAN], 2, 1.0, "1110"),
        # a NaN that is seen
        ([1, NAN, 1, 5], 2, 0.5, "1110"),
        # total mass that fp32 cannot add up: the small block counts all the same
        ([1, 2**-60, 1], 2, 1.0, "111"),
    ],
)
def test_causal_rows_by_hand(row: list[float], index: int, threshold: float, expected: str) -> None:
    assert chosen(oracle.find_blocks_chunked(sums(row), index, threshold)) == [expected]


@pytest.mark.parametrize(
    ("row", "threshold", "expected"),
    [
        ([1, 4, 2, 1], 0.4, "0100"),
        ([1, 4, 2, 1], 0.5, "0100"),  # 4 is not below 4
        ([1, 4, 2, 1], 0.75, "0110"),
        ([1, 4, 2, 1], 1.0, "1111"),
        ([0, 4, 2, 0], 1.0, "0110"),
        ([0, 0, 0, 0], 1.0, "0000"),
        ([7], 0.1, "1"),
        ([0, NAN], 0.1, "11"),
    ],
)
def test_rows_without_a_mask_by_hand(row: list[float], threshold: float, expected: str) -> None:
    for mode in ("prefill", "both"):
        mask = oracle.find_blocks_chunked(sums(row), 0, threshold, mode=mode, causal=False)
        assert chosen(mask) == [expected]
        assert mask.dtype == "bool"


def test_each_row_has_its_diagonal_and_no_row_another() -> None:
    data = Result("float32", (2, 1, 2, 3), (1, 9, 0, 1, 1, 9, 1, 1, 0, 1, 9, 1))
    assert chosen(oracle.find_blocks_chunked(data, 1, 0.5)) == ["110", "101", "110", "111"]


@pytest.mark.parametrize("ties", [1, 2, 3, 4])
def test_how_many_equal_blocks_are_selected_does_not_depend_on_their_order(ties: int) -> None:
    mask = oracle.find_blocks_chunked(sums([0, *[2] * ties, 1, 0]), ties + 2, 0.5)
    assert sum(mask.data) - 2 == (2 * ties + 1 + 3) // 4


# --- refusals ------------------------------------------------------------------------------------

FOUR = sums(*[[1.0] * 4] * 4)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("input_tensor", {"input_tensor": Result("float32", (4, 4), (1.0,) * 16)}),
        ("input_tensor", {"input_tensor": sums([1.0], dtype="float64")}),
        ("input_tensor", {"input_tensor": Result("float32", (1, 1, 0, 0), ())}),
        ("current_index", {"current_index": -1}),
        ("current_index", {"current_index": 1}),
        ("threshold", {"threshold": 0.0}),
        ("threshold", {"threshold": 1.0000001}),
        ("threshold", {"threshold": NAN}),
        ("num_to_choose", {"num_to_choose": 3}),
        ("decoding", {"decoding": True}),
        ("mode", {"mode": "decode"}),
    ],
)
def test_refusals_name_the_argument(argument: str, changes: dict[str, Any]) -> None:
    call: dict[str, Any] = {"input_tensor": FOUR, "current_index": 0, "threshold": 0.9}
    oracle.find_blocks_chunked(**call)
    with pytest.raises(ValueError, match=rf"^{argument}\b"):
        oracle.find_blocks_chunked(**call | changes)


def test_without_a_mask_the_index_may_be_anything() -> None:
    assert chosen(oracle.find_blocks_chunked(sums([1.0]), 7, 1.0, causal=False)) == ["1"]


# --- intervals: hand values ----------------------------------------------------------------------


def decide(
    low: Sequence[float],
    high: Sequence[float],
    threshold: float,
    diagonal: int | None = None,
) -> list[Decision]:
    return oracle.decide_row(low, high, threshold, diagonal)


@pytest.mark.parametrize(
    ("low", "high", "threshold", "expected"),
    [
        # sums known: the decision is that of the row but for the exact margin
        ([1, 4, 2, 1], None, 0.4, [MUST_NOT, MUST, MUST_NOT, MUST_NOT]),
        ([1, 4, 2, 1], None, 0.5, [MUST_NOT, MUST, OPEN, MUST_NOT]),
        # 3 or 5 of at least 7: the first is a must, the others hang on it
        ([1, 3, 2, 1], [1, 5, 2, 1], 0.5, [MUST_NOT, MUST, OPEN, MUST_NOT]),
        # either of the two may be first, and one is enough
        ([3, 3.5, 1], [4, 4, 1], 0.4, [OPEN, OPEN, MUST_NOT]),
        # ties go either way
        ([2, 2], None, 0.4, [OPEN, OPEN]),
        ([0, 0], None, 1.0, [MUST_NOT, MUST_NOT]),
        # tau = 1: mass, whatever rounding does; none for sure, or perhaps none
        ([1, 2**-60, 0, 0], [1, 2**-60, 0, 1e-9], 1.0, [MUST, MUST, OPEN, OPEN]),
        # an end below 0 is read as 0; a sum without an upper end leaves the others open
        ([-1, 0], [0, 0], 0.9, [MUST_NOT, MUST_NOT]),
        ([1, 1], [1, math.inf], 0.9, [OPEN, OPEN]),
        ([1, NAN], None, 0.1, [MUST, MUST]),
    ],
)
def test_intervals_by_hand(
    low: list[float], high: list[float] | None, threshold: float, expected: list[Decision]
) -> None:
    assert decide(low, high or low, threshold) == expected


def test_mandatory_blocks_must_and_blocks_past_the_diagonal_must_not() -> None:
    low, high = [0.0, 1.0, 0.0, 5.0], [9.0, 2.0, 9.0, NAN]
    assert decide(low, high, 0.9, 2) == [MUST, OPEN, MUST, MUST_NOT]
    assert decide([1.0, 9.0], [1.0, 9.0], 0.9, 0) == [MUST, MUST_NOT]
    assert decide([NAN, 1.0, 1.0], [NAN, 1.0, 1.0], 0.1, 1) == [MUST, MUST, MUST_NOT]


# --- intervals against what they contain ---------------------------------------------------------


def by_definition(
    row: Sequence[float], order: Sequence[int], threshold: float, diagonal: int | None
) -> set[int]:
    """Selected blocks when the candidates come in ``order``."""
    visible = range(len(row) if diagonal is None else diagonal + 1)
    mandatory = set() if diagonal is None else {0, diagonal}
    selected, mass = set(mandatory), sum(Fraction(row[j]) for j in mandatory)
    total = sum(Fraction(row[j]) for j in visible)
    for j in order:
        if mass < Fraction(threshold) * total:
            selected.add(j)
        mass += Fraction(row[j])
    return selected


def in_fp32(
    row: Sequence[float], order: Sequence[int], threshold: float, diagonal: int | None
) -> set[int]:
    """The same in fp32: the mass in the order of selection, the total by place."""
    visible = range(len(row) if diagonal is None else diagonal + 1)
    mandatory = [] if diagonal is None else sorted({0, diagonal})
    values, total, mass = np.array(row, np.float32), np.float32(0), np.float32(0)
    for j in visible:
        total += values[j]
    for j in mandatory:
        mass += values[j]
    selected = set(mandatory)
    for j in order:
        # with tau = 1 the contract is the mass itself
        if mass < np.float32(threshold) * total or (threshold == 1 and values[j] > 0):
            selected.add(j)
        mass += values[j]
    return selected


@st.composite
def interval_rows(draw: st.DrawFn) -> tuple[list[float], list[float], float, int | None, int]:
    """Bounds of up to six blocks, of few distinct numbers so that they touch and overlap."""
    size = draw(st.integers(1, 6))
    number = st.integers(0, 8).map(lambda n: n / 4) | st.floats(0, 2, width=32)
    pairs = [sorted(draw(st.tuples(number, number))) for _ in range(size)]
    pairs = [[a, a] if draw(st.booleans()) else [a, b] for a, b in pairs]
    diagonal = draw(st.none() | st.integers(0, size - 1))
    threshold = draw(st.sampled_from([0.25, 0.5, 0.75, 0.9, 1.0]))
    return [a for a, _ in pairs], [b for _, b in pairs], threshold, diagonal, draw(st.integers(0))


@given(interval_rows())
def test_no_sums_within_the_intervals_disagree(
    drawn: tuple[list[float], list[float], float, int | None, int],
) -> None:
    """Brute force over their ends, middles and ties, with equal sums in every order."""
    low, high, threshold, diagonal, seed = drawn
    decisions = decide(low, high, threshold, diagonal)
    draw = random.Random(seed)
    candidates = [
        j
        for j in range(len(low) if diagonal is None else diagonal + 1)
        if diagonal is None or j not in (0, diagonal)
    ]
    for _ in range(12):
        points = [*low, *high]
        row = [
            draw.choice([a, b, *(p for p in points if a <= p <= b), draw.uniform(a, b)])
            for a, b in zip(low, high, strict=True)
        ]
        row = [min(max(float(np.float32(v)), a), b) for v, a, b in zip(row, low, high, strict=True)]
        draw.shuffle(candidates)
        order = sorted(candidates, key=lambda j: -row[j])
        selections = [by_definition(row, order, threshold, diagonal)]
        selections.append(in_fp32(row, order, threshold, diagonal))
        for selected in selections:
            for j, decision in enumerate(decisions):
                assert decision != (MUST_NOT if j in selected else MUST), (row, order, selected)


@given(interval_rows())
def test_what_is_undecidable_goes_both_ways_but_for_rounding(
    drawn: tuple[list[float], list[float], float, int | None, int],
) -> None:
    """Tightness: the two extremes that the derivation names lie within the intervals, and they
    disagree, unless one of them is as close as rounding is to the threshold.
    """
    low, high, threshold, diagonal, _ = drawn
    visible = range(len(low) if diagonal is None else diagonal + 1)
    mandatory = set() if diagonal is None else {0, diagonal}
    others = [j for j in visible if j not in mandatory]
    for j, decision in enumerate(decide(low, high, threshold, diagonal)):
        if decision != OPEN:
            continue
        before = [i for i in others if i != j and high[i] >= low[j]]
        late = [high[i] if i in mandatory or i in before else low[i] for i in range(len(low))]
        after = [i for i in others if i != j and low[i] <= high[j]]
        early = [
            min(high[i], high[j]) if i in after else high[i] if i == j else low[i]
            for i in range(len(low))
        ]
        margins = []
        for row, ahead in ((late, before), (early, set(others) - {j, *after})):
            mass = math.fsum(row[i] for i in {*mandatory, *ahead})
            margins.append(mass - threshold * math.fsum(row[i] for i in visible))
        rounding = 4 * (len(low) + 3) * 2.0**-24 * math.fsum(high)
        assert margins[0] > -rounding
        assert margins[1] < rounding


@pytest.mark.parametrize("width", [0.0, 2.0**-22])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.95])
def test_few_decisions_on_random_sums_are_undecidable(
    threshold: float, causal: bool, width: float
) -> None:
    """R-X12: below 0.1 % for continuous fp32 sums, known exactly or to a few roundings."""
    draw = np.random.default_rng(7)
    shape = (1, 8, 64, 64)
    values = draw.exponential(size=shape).astype(np.float32)
    values = np.tril(values) if causal else values
    low, high = (
        Result("float64", shape, tuple((values.astype(np.float64) * f).ravel().tolist()))
        for f in (1 - width, 1 + width)
    )
    decisions = oracle.decide_blocks(low, high, 0, threshold, causal)
    share = oracle.undecidable_share(decisions, 0, causal)
    assert share < 1e-3
    known = Result("float32", shape, tuple(values.ravel().tolist()))
    mask = oracle.find_blocks_chunked(known, 0, threshold, causal=causal)
    for decision, bit in zip(decisions.data, mask.data, strict=True):
        assert decision in (OPEN, bit)


def test_the_share_counts_what_mass_decides() -> None:
    """Of 3 rows, causal, the blocks (2, 1) alone; without a mask all nine."""
    decisions = Result("int8", (1, 1, 3, 3), (1, 0, 0, 1, 1, 0, 1, 2, 1))
    assert oracle.undecidable_share(decisions, 0) == 1
    assert oracle.undecidable_share(decisions, 0, causal=False) == 1 / 9
    assert oracle.undecidable_share(Result("int8", (1, 1, 1, 1), (1,)), 0) == 0


# --- the measures of the source's tables ---------------------------------------------------------


def test_density_and_mask_difference_are_shares_of_the_visible_blocks() -> None:
    mask = Result("bool", (1, 1, 2, 3), (1, 1, 0, 1, 0, 1))
    other = Result("bool", (1, 1, 2, 3), (1, 1, 1, 1, 1, 1))
    assert oracle.density(mask, 1) == 4 / 5
    assert oracle.density(mask, causal=False) == 4 / 6
    assert oracle.mask_difference(mask, other, 1) == 1 / 5
    assert oracle.mask_difference(mask, other, causal=False) == 2 / 6
    assert oracle.mask_difference(mask, mask, 1) == 0
    empty = Result("bool", (0, 1, 2, 3), ())
    assert (oracle.density(empty), oracle.mask_difference(empty, empty)) == (1, 0)
