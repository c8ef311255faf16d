"""The rule for speed: what pairs of processes conclude of one benchmark.

Noise lies between processes, so the median of a process is one sample, base and head take turns,
and the sample of a pair is ``d = ln(head / base)``. A screen of eight pairs finds what may have
changed, and twelve fresh pairs confirm it or do not: either phase alone would now and then call
identical code slower. docs/speed-rule.md derives how seldom both do, and has the curves.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from golden.record import Pair
from reports.model import Timing

Phase = Literal["screen", "confirmation"]
Benchmark = tuple[str, str, str]  # device, implementation, test
Floats = NDArray[np.float64]

PAIRS: Final[Mapping[Phase, int]] = {"screen": 8, "confirmation": 12}
CONFIDENCE: Final = 0.95  # of the interval
LEVEL: Final = 0.01  # of each of the two tests of a phase, one-sided
FLOOR: Final = 0.03  # no limit is below it
NIGHTS, FEWEST_NIGHTS = 30, 10  # how many count, and how many it takes to have a limit of one's own
WITHOUT_HISTORY: Final = 0.10
WHISKER: Final = 1e-9  # a share that no clock resolves
SHORTEST, LONGEST = 1e-6, 1e12  # microseconds: a picosecond and eleven days bound what is a time


class Limit(msgspec.Struct, frozen=True):
    """What the times of one benchmark may differ by. ``value``: a share, 0.03 is 3 %.

    ``nights``: how many of its history went into it.
    """

    value: float
    nights: int

    @property
    def gates(self) -> bool:
        """Whether a slowdown fails a change; without a history of its own it is a warning."""
        return self.nights >= FEWEST_NIGHTS


# --- the limit of a benchmark --------------------------------------------------------------------


def limit_of(medians: Sequence[float]) -> Limit:
    """From the median ``d`` of each night of base against base, the oldest first.

    Beyond the upper fence of the last thirty: third quartile and three times the distance of the
    quartiles. Fewer than ten say nothing of the quartiles.
    """
    last = np.abs([each for each in medians if math.isfinite(each)][-NIGHTS:])
    if len(last) < FEWEST_NIGHTS:
        return Limit(WITHOUT_HISTORY, len(last))
    first, third = np.quantile(last, [0.25, 0.75])
    return Limit(max(FLOOR, math.expm1(third + 3 * (third - first))), len(last))


def limits(nights: Iterable[tuple[str, Sequence[Pair]]]) -> dict[Benchmark, Limit]:
    """The limit of every benchmark of a history: the device and the pairs of each night.

    The oldest night first. A night counts for a benchmark if its screen is complete and was not
    throttled, and if base and head were one commit: two revisions show more than noise.
    """
    medians: dict[Benchmark, list[float]] = defaultdict(list)
    for device, pairs in nights:
        screens: dict[Benchmark, list[Pair]] = defaultdict(list)
        for pair in pairs:
            if pair.phase == "screen" and pair.base == pair.head:
                screens[device, pair.implementation, pair.test].append(pair)
        for benchmark, screen in screens.items():
            if not _incomplete("screen", screen):
                medians[benchmark].append(float(np.median(_differences(screen))))
    return {benchmark: limit_of(of) for benchmark, of in medians.items()}


# --- one benchmark -------------------------------------------------------------------------------


def judge(pairs: Sequence[Pair], device: str, limit: Limit) -> Timing:
    """What the pairs of one benchmark, of which there is one at least, conclude.

    Of a benchmark that was confirmed, times, ratio and interval are of the fresh pairs alone: what
    a screen flags was picked because it looked large. All three are 0 where no time is one.
    """
    screen, fresh = (_of(phase, pairs) for phase in PAIRS)
    shown = [pair for pair in fresh or screen if _timed(pair)]
    differences = _differences(shown)
    low, high = interval(differences) if len(shown) in PAIRS.values() else (None, None)
    verdict, reason = _conclusion(screen, fresh, limit)
    return Timing(
        test=pairs[0].test,
        implementation=pairs[0].implementation,
        device=device,
        base_us=_median([pair.base_us for pair in shown]),
        head_us=_median([pair.head_us for pair in shown]),
        ratio=math.exp(np.median(differences)) if shown else 0.0,
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        limit=limit.value,
        nights=limit.nights,
        pairs=len(shown),
        verdict=verdict,
        reason=reason,
        gates=verdict == "slower" and limit.gates,
    )


def flagged(screen: Sequence[Pair], limit: Limit) -> bool:
    """Whether a benchmark is to be confirmed, by the pairs of its screen."""
    if _unusable("screen", screen):
        return False
    return bool(directions(_differences(screen)[None], limit.value)[0])


def _conclusion(
    screen: Sequence[Pair], fresh: Sequence[Pair], limit: Limit
) -> tuple[Literal["slower", "faster", "same", "inconclusive"], str]:
    unusable = _unusable("screen", screen) or (fresh and _unusable("confirmation", fresh))
    if unusable:
        return "inconclusive", unusable
    differences = _differences(fresh or screen)
    if fresh:
        direction = confirmed(_differences(screen)[None], differences[None], limit.value)[0]
        if direction:
            return ("slower" if direction > 0 else "faster"), ""
    low, high = interval(differences)
    most, share = math.log1p(limit.value), f"{100 * limit.value:.3g} %"
    if -most <= low and high <= most:
        return "same", ""
    if flagged(screen, limit):
        missing = "" if fresh else ": there are no fresh pairs"
        return "inconclusive", f"screened, not confirmed{missing}"
    if abs(np.median(differences)) < most:
        return "inconclusive", f"a change of {share} cannot be ruled out"
    return "inconclusive", f"beyond {share}, and noise could explain it"


def _unusable(phase: Phase, pairs: Sequence[Pair]) -> str:
    """Why the pairs of a phase are no ground for any verdict; nothing where they are."""
    if incomplete := _incomplete(phase, pairs):
        return incomplete
    if np.ptp(_differences(pairs)) == 0:
        return f"every pair of the {phase} differs by the same: the clock is coarser than the noise"
    return ""


def _incomplete(phase: Phase, pairs: Sequence[Pair]) -> str:
    if len(pairs) != PAIRS[phase]:
        return f"{len(pairs)} pairs of the {phase}, where the rule is for {PAIRS[phase]}"
    if not all(map(_timed, pairs)):
        return f"a process of the {phase} has no time that can be true"
    if throttled := next((pair.throttled for pair in pairs if pair.throttled), ""):
        return f"throttled: {throttled}"
    return ""


def _of(phase: Phase, pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.phase == phase]


def _timed(pair: Pair) -> bool:
    return all(SHORTEST <= time <= LONGEST for time in (pair.base_us, pair.head_us))


def _differences(pairs: Sequence[Pair]) -> Floats:
    return np.array([math.log(pair.head_us / pair.base_us) for pair in pairs])


def _median(times: Sequence[float]) -> float:
    return float(np.median(times)) if times else 0.0


# --- the statistics ------------------------------------------------------------------------------


def confirmed(screens: Floats, confirmations: Floats, limit: float) -> NDArray[np.int64]:
    """Both phases of many comparisons, as `directions`: what they do not agree on is 0."""
    found = directions(screens, limit)
    (flags,) = found.nonzero()
    found[flags[directions(confirmations[flags], limit) != found[flags]]] = 0
    return found


def directions(differences: Floats, limit: float) -> NDArray[np.int64]:
    """The test of one phase, on many comparisons at once: an array (comparisons, pairs) of ``d``.

    1 where head is slower by the limit or more and noise does not explain it, -1 where it is
    faster, 0 elsewhere. The bound of the mean is quick to see what is in all pairs alike, the
    signed-rank test holds whatever the distribution of the noise, if it is that of both sides.
    """
    middle = np.median(differences, axis=1)
    found = np.where(np.abs(middle) >= math.log1p(limit), np.sign(middle), 0).astype(np.int64)
    (beyond,) = found.nonzero()
    if not len(beyond):
        return found
    toward = differences[beyond] * found[beyond, None]
    pairs = toward.shape[1]
    bound = toward.mean(axis=1) - stats.t.ppf(1 - LEVEL, pairs - 1) * stats.sem(toward, axis=1)
    # Ties and differences of 0 speak against a change: then no interval of one holds 0.
    ranks = stats.wilcoxon(toward - WHISKER, alternative="greater", method="exact", axis=1)
    found[beyond[(bound <= 0) | (ranks.pvalue > LEVEL)]] = 0
    return found


def interval(differences: Floats) -> tuple[float, float]:
    """Of the centre of symmetric differences, by the signed-rank test (Hodges and Lehmann).

    It takes every centre that the test does not reject: between the averages of two differences
    that are as far from the ends as the test's critical value. Exact for few samples, whatever
    their distribution. Raises ValueError where there are too few to reject anything.
    """
    rejected = critical_value(len(differences))
    first, second = np.triu_indices(len(differences))
    averages = np.sort((differences[first] + differences[second]) / 2)
    return float(averages[rejected]), float(averages[-1 - rejected])


def critical_value(pairs: int) -> int:
    """The largest sum of ranks that the two-sided signed-rank test rejects at 1 - CONFIDENCE."""
    ways = np.ones(1)  # of all signs, how many give each sum of ranks
    for rank in range(1, pairs + 1):
        ways = np.convolve(ways, [1, *[0] * (rank - 1), 1])
    rejected = np.searchsorted(np.cumsum(ways) / 2**pairs, (1 - CONFIDENCE) / 2, side="right")
    if not rejected:
        raise ValueError(f"{pairs} pairs are too few for an interval; take 6 or more")
    return int(rejected) - 1
