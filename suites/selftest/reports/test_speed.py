"""The rule for speed: how often it is wrong, how often it finds a change, and what it refuses."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from golden.record import Pair
from reports.model import Timing
from reports.speed import (
    FLOOR,
    PAIRS,
    Floats,
    Limit,
    Phase,
    confirmed,
    critical_value,
    directions,
    flagged,
    interval,
    judge,
    limit_of,
    limits,
)
from suites.bench.paired import Side
from suites.selftest.reports.noise import (
    ENOUGH,
    FOUND_UP_TO,
    INSIDE_A_JOB,
    SHAPES,
    differences,
)

ONE_IN = 10_000  # base-against-base comparisons may be called slower
DEFAULT = Limit(FLOOR, 30)


def generator(shape: str) -> np.random.Generator:
    return np.random.default_rng([*SHAPES].index(shape))


# --- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [INSIDE_A_JOB, 0.03, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_identical_code_is_hardly_ever_slower(shape: str, noise: float) -> None:
    comparisons = 200_000
    screens, confirmations = differences(generator(shape), shape, noise, 0, comparisons)
    slower = confirmed(screens, confirmations, FLOOR) == 1
    assert slower.sum() <= comparisons / ONE_IN
    if noise > INSIDE_A_JOB:  # else the count could be low for want of noise
        screened = directions(screens, FLOOR) == 1
        assert screened.sum() > comparisons / ONE_IN


@pytest.mark.parametrize(
    "magnitudes",
    [
        lambda n: np.arange(1, n + 1),
        lambda n: 1 + np.arange(n) / 1e6,
        lambda n: 1.3 ** np.arange(n),
        np.ones,
    ],
    ids=["even", "alike", "apart", "the same"],
)
def test_of_all_signs_few_are_slower(magnitudes: object) -> None:
    """Where base and head are one, each sign is as likely: the share of them is exact."""
    assert callable(magnitudes)
    shares = []
    for pairs in PAIRS.values():
        signs = np.array([*product([-1, 1], repeat=pairs)])
        shares.append(np.mean(directions(signs * magnitudes(pairs), FLOOR) == 1))
    assert shares[0] <= 2 / 2**8  # the two figures of docs/speed-rule.md
    assert shares[1] <= 33 / 2**12
    assert 0 < math.prod(shares) <= 1 / ONE_IN


@pytest.mark.parametrize("shape", SHAPES)
def test_ten_per_cent_are_found(shape: str) -> None:
    for noise in (INSIDE_A_JOB, FOUND_UP_TO[shape]):
        of = differences(generator(shape), shape, noise, 0.10, 20_000)
        assert np.mean(confirmed(*of, FLOOR) == 1) >= ENOUGH


def base_first(pairs: int) -> Iterator[tuple[int, Side]]:
    for pair in range(pairs):
        yield pair, "base"
        yield pair, "head"


def test_turns_keep_a_drift_out() -> None:
    """The same drift, if base always went first, would be a difference."""
    of = generator("drifting"), "drifting", 0.1, 0, 10_000
    assert np.mean(confirmed(*differences(*of), FLOOR) != 0) < 0.001
    assert np.mean(confirmed(*differences(*of, order=base_first), FLOOR) != 0) > 0.05


@pytest.mark.parametrize("shape", SHAPES)
def test_faster_mirrors_slower(shape: str) -> None:
    screens, confirmations = differences(generator(shape), shape, 0.025, 0.05, 1000)
    found = confirmed(screens, confirmations, FLOOR)
    assert {0, 1} <= {*found}
    assert np.array_equal(confirmed(-screens, -confirmations, FLOOR), -found)


def test_a_change_within_the_limit_is_not_flagged() -> None:
    """However sure it is."""
    screens, _ = differences(generator("normal"), "normal", 0.001, 0.06, 1000)
    assert np.all(directions(screens, 0.05) == 1)
    assert not np.any(directions(screens, 0.07))


# --- the interval --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "value"),
    # The table of the two-sided signed-rank test at 5 %, as printed in textbooks.
    [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)],
)
def test_critical_values_are_those_of_the_tables(pairs: int, value: int) -> None:
    assert critical_value(pairs) == value


@pytest.mark.parametrize("pairs", [0, 1, 5])
def test_too_few_pairs_have_no_interval(pairs: int) -> None:
    with pytest.raises(ValueError, match="too few for an interval; take 6 or more"):
        interval(np.arange(float(pairs)))


def test_the_interval_of_a_worked_example() -> None:
    """Averages of 1 … 8 two by two: the fourth from either end."""
    assert interval(np.arange(1.0, 9.0)) == (2, 7)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    intervals = [interval(draw.normal(1, 0.3, PAIRS["screen"])) for _ in range(1000)]
    held = sum(low <= 1 <= high for low, high in intervals)
    assert 940 <= held <= 980  # 96.1 % exactly, of which 1000 draws are off by 0.6 %


# --- one benchmark -------------------------------------------------------------------------------


def of_phase(phase: Phase, ds: Sequence[float] | Floats, base: float = 100.0) -> list[Pair]:
    """Pairs of these differences."""
    return [
        Pair("test", "torch", phase, number, "a", "b", base, base * math.exp(d))
        for number, d in enumerate(ds, 1)
    ]


def pairs_of(change: float, again: float | None = None, noise: float = 0.01) -> list[Pair]:
    """A screen that shows a change and, with ``again``, a confirmation that shows that one."""
    screen, fresh = (
        math.log1p(of) + noise * np.linspace(-1, 1, pairs)
        for of, pairs in zip((change, again or 0), PAIRS.values(), strict=True)
    )
    return of_phase("screen", screen) + ([] if again is None else of_phase("confirmation", fresh))


def judged(pairs: Sequence[Pair], limit: Limit = DEFAULT) -> Timing:
    return judge(pairs, "cpu", limit)


@pytest.mark.parametrize(
    ("pairs", "verdict", "reason"),
    [
        (pairs_of(0.10, 0.10), "slower", ""),
        (pairs_of(-0.10, -0.10), "faster", ""),
        (pairs_of(0.001), "same", ""),
        (pairs_of(0.10), "inconclusive", "screened, not confirmed: there are no fresh pairs"),
        (pairs_of(0.10, 0.04, 0.1), "inconclusive", "screened, not confirmed"),
        (pairs_of(0.10, -0.10), "inconclusive", "screened, not confirmed"),
        (pairs_of(0.10, 0.001), "same", ""),
        (pairs_of(0.10, noise=0.2), "inconclusive", "beyond 3 %, and noise could explain it"),
        (pairs_of(-0.10, noise=0.2), "inconclusive", "beyond 3 %, and noise could explain it"),
        (pairs_of(0.01, noise=0.1), "inconclusive", "a change of 3 % cannot be ruled out"),
        (pairs_of(0.029, noise=0.01), "inconclusive", "a change of 3 % cannot be ruled out"),
    ],
)
def test_each_verdict_has_its_pairs(pairs: list[Pair], verdict: str, reason: str) -> None:
    found = judged(pairs)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.gates == (verdict == "slower")


def test_what_was_flagged_is_not_what_is_shown() -> None:
    """A screen is picked for being large; the fresh pairs were not."""
    found = judged(pairs_of(0.30, 0.10))
    assert found.ratio == pytest.approx(1.10)
    assert found.pairs == PAIRS["confirmation"]
    assert found.low is not None
    assert found.low < found.ratio < (found.high or 0)
    assert found.base_us == pytest.approx(100)
    assert found.head_us == pytest.approx(110, rel=0.01)


def test_one_bad_process_is_no_conclusion() -> None:
    """The ratio stays what it was; that there is one is no longer sure."""
    pairs = pairs_of(0.10, 0.10)
    for at in (3, 13):  # one of each phase
        found = judged(replaced(pairs, at, head_us=500.0))
        assert found.verdict == "inconclusive"
        assert found.ratio == pytest.approx(1.10, abs=0.01)


def test_a_limit_without_a_history_warns() -> None:
    found = judged(pairs_of(0.2, 0.2), limit_of(()))
    assert (found.verdict, found.gates) == ("slower", False)
    assert (found.limit, found.nights) == (0.10, 0)
    assert judged(pairs_of(0.08, 0.08), limit_of(())).verdict == "same"


def test_what_a_higher_limit_flags_the_floor_flags() -> None:
    """So the tier, which has no history, confirms enough."""
    for shape in SHAPES:
        screens, _ = differences(generator(shape), shape, 0.02, 0.05, 5000)
        higher = directions(screens, 0.05)
        assert higher.any()
        assert np.array_equal(directions(screens, FLOOR)[higher != 0], higher[higher != 0])


def replaced(pairs: list[Pair], number: int, **fields: object) -> list[Pair]:
    changed = msgspec.structs.replace(pairs[number], **fields)
    return [*pairs[:number], changed, *pairs[number + 1 :]]


NO_TIME = "has no time that can be true"


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (pairs_of(0.1)[:1], "1 pairs of the screen, where the rule is for 8"),
        (pairs_of(0.1)[:7], "7 pairs of the screen"),
        (pairs_of(0.1) * 2, "16 pairs of the screen"),
        (pairs_of(0.1, 0.1)[8:], "0 pairs of the screen"),
        (pairs_of(0.1, 0.1)[:19], "11 pairs of the confirmation, where the rule is for 12"),
        (of_phase("screen", [0.0] * 8), "every pair of the screen differs by the same"),
        (of_phase("screen", [0.5] * 8), "the clock is coarser than the noise"),
        (pairs_of(0.1) + of_phase("confirmation", [0.1] * 12), "every pair of the confirmation"),
        (replaced(pairs_of(0.1), 3, throttled="power cap"), "throttled: power cap"),
        (replaced(pairs_of(0.1, 0.1), 15, throttled="power cap"), "throttled: power cap"),
        *(
            (replaced(pairs_of(0.1), 3, **{side: time}), NO_TIME)
            for side in ("base_us", "head_us")
            for time in (0.0, -1.0, math.inf, -math.inf, math.nan, 1e-300, 1e300)
        ),
        ([msgspec.structs.replace(pair, base_us=0.0) for pair in pairs_of(0.1)], NO_TIME),
    ],
)
def test_what_the_rule_is_not_for_is_inconclusive(pairs: list[Pair], reason: str) -> None:
    found = judged(pairs)
    assert found.verdict == "inconclusive"
    assert reason in found.reason
    assert not flagged([pair for pair in pairs if pair.phase == "screen"], DEFAULT) or (
        any(pair.phase == "confirmation" for pair in pairs)
    )
    assert msgspec.json.decode(msgspec.json.encode(found), type=Timing) == found


def test_a_record_of_many_pairs_costs_nothing() -> None:
    """The averages of all pairs two by two would."""
    found = judged(pairs_of(0.1) * 2)
    assert (found.low, found.high) == (None, None)
    assert found.ratio == pytest.approx(1.1)


def test_what_is_flagged_is_confirmed() -> None:
    assert flagged(pairs_of(0.10), DEFAULT)
    assert flagged(pairs_of(-0.10), DEFAULT)
    assert not flagged(pairs_of(0.10), Limit(0.2, 30))


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*PAIRS]),
            st.floats() | st.floats(90, 110) | st.sampled_from([100.0, 101.0]),
            st.floats() | st.floats(90, 110) | st.sampled_from([100.0, 120.0]),
        ),
        min_size=1,
        max_size=24,
    )
)
def test_anything_has_a_verdict(times: list[tuple[Phase, float, float]]) -> None:
    """Warnings are errors here, and a page is JSON, which has no NaN."""
    pairs = [Pair("test", "torch", *each[:1], 1, "a", "b", *each[1:]) for each in times]
    found = judged(pairs)
    assert bool(found.reason) == (found.verdict == "inconclusive")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Timing) == found
    assert isinstance(limits([("cpu", pairs)]), dict)


STEPS = st.sampled_from([-0.1, -0.02, 0.0, 0.01, 0.02, 0.05, 0.1]) | st.floats(-0.3, 0.3)


SURE = [0.09, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.11]


@settings(max_examples=300)
@given(st.lists(STEPS, min_size=8, max_size=8), st.lists(STEPS, min_size=12, max_size=12))
@example(SURE, [*[0.0] * 4, -0.01, *SURE[1:]])  # slower, if differences of 0 did not count,
@example(SURE, [*[0.0] * 5, *SURE[1:]])  # or if they counted half
@example(SURE, [*SURE, *SURE[:4]])
@example([-d for d in SURE], [-d for d in [*SURE, *SURE[:4]]])
def test_what_is_shown_bears_the_verdict_out(screen: list[float], fresh: list[float]) -> None:
    found = judged(of_phase("screen", screen) + of_phase("confirmation", fresh))
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.ratio <= found.high
    if found.verdict == "slower":
        assert found.ratio >= 1 + FLOOR - 1e-12
        assert found.low > 1
    if found.verdict == "faster":
        assert found.ratio <= 1 / (1 + FLOOR) + 1e-12
        assert found.high < 1
    if found.verdict == "same":
        assert 1 / (1 + FLOOR) - 1e-12 <= found.low <= found.high <= 1 + FLOOR + 1e-12


# --- limits --------------------------------------------------------------------------------------


def test_the_limit_is_the_upper_fence_of_a_history() -> None:
    """Of 0.01 … 0.13: quartiles 0.04 and 0.10, so 0.10 and three times 0.06."""
    medians = [(-1) ** n * n / 100 for n in range(1, 14)]
    found = limit_of(medians)
    assert found.value == pytest.approx(math.expm1(0.28))
    assert found.gates


def test_no_limit_is_below_the_floor() -> None:
    assert limit_of([0.001] * 10) == Limit(FLOOR, 10)


@pytest.mark.parametrize("nights", [0, 1, 9])
def test_fewer_than_ten_nights_are_no_history(nights: int) -> None:
    assert limit_of([0.001] * nights) == Limit(0.10, nights)
    assert not limit_of([0.001] * nights).gates


def test_the_last_thirty_nights_count() -> None:
    assert limit_of([5.0] * 30 + [0.01] * 30) == Limit(FLOOR, 30)
    assert limit_of([0.01] * 30 + [5.0] * 30).value > 1


def test_a_median_that_is_none_is_no_night() -> None:
    assert limit_of([math.nan, math.inf, -math.inf] + [0.001] * 9).nights == 9


def night(d: float = 0.01, commit: str = "a", **fields: object) -> list[Pair]:
    pairs = of_phase("screen", [d + n / 1000 for n in range(-4, 4)])
    return [msgspec.structs.replace(pair, base="a", head=commit, **fields) for pair in pairs]


def test_a_history_is_of_one_benchmark_on_one_device() -> None:
    nights = [
        *[("cpu", night() + night(0.05, test="other"))] * 10,
        *[("cuda:0", night(implementation="triton"))] * 3,
    ]
    found = limits(nights)
    other = found.pop(("cpu", "torch", "other"))
    assert other.value == pytest.approx(math.expm1(0.0495))
    assert found == {
        ("cpu", "torch", "test"): Limit(FLOOR, 10),
        ("cuda:0", "triton", "test"): Limit(0.10, 3),
    }


@pytest.mark.parametrize(
    "pairs",
    [
        night(commit="b"),
        night(throttled="power cap"),
        night(base_us=0.0),
        night(phase="confirmation"),
        night()[1:],
    ],
    ids=["two revisions", "throttled", "no time", "confirmation", "cut short"],
)
def test_what_shows_more_than_noise_is_no_night(pairs: list[Pair]) -> None:
    (limit,) = limits([("cpu", night())] * 4 + [("cpu", pairs)]).values()
    assert limit.nights == 4
