"""Simulated noise between processes, in the order in which they run."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter

from reports.speed import PAIRS, Floats
from suites.bench.paired import Side, turns

INSIDE_A_JOB: Final = 0.003  # the noise that others report between processes of one job
TURNS: Final = 2 * sum(PAIRS.values())
Order = Callable[[int], Iterator[tuple[int, Side]]]
Shape = Callable[[Generator, int], Floats]


def _normal(draw: Generator, comparisons: int) -> Floats:
    return draw.standard_normal((comparisons, TURNS))


def _heavy_tailed(draw: Generator, comparisons: int) -> Floats:
    """Student's t with two degrees of freedom, of no variance; the quartiles of a normal one."""
    return draw.standard_t(2, (comparisons, TURNS)) * (0.6745 / 0.8165)


def _bimodal(draw: Generator, comparisons: int) -> Floats:
    """One process in five is slower by three: another layout of memory, say."""
    slow = draw.random((comparisons, TURNS)) < 0.2
    return _normal(draw, comparisons) + 3 * slow


def _drifting(draw: Generator, comparisons: int) -> Floats:
    """A device that warms up or cools down: a unit from turn to turn."""
    slope = draw.choice([-1, 1], (comparisons, 1))
    return _normal(draw, comparisons) + slope * np.arange(TURNS)


def _autocorrelated(draw: Generator, comparisons: int) -> Floats:
    """A neighbour that comes and goes: three units, of which a turn keeps 95 %."""
    steps = _normal(draw, comparisons)
    steps[:, 0] /= np.sqrt(1 - 0.95**2)  # so that it starts as it goes on
    wandering: Floats = lfilter([np.sqrt(1 - 0.95**2)], [1, -0.95], steps, axis=1)
    return _normal(draw, comparisons) + 3 * wandering


SHAPES: Final[Mapping[str, Shape]] = {  # of a unit: what a process is off by, of its own
    "normal": _normal,
    "heavy-tailed": _heavy_tailed,
    "bimodal": _bimodal,
    "drifting": _drifting,
    "autocorrelated": _autocorrelated,
}

ENOUGH: Final = 0.95  # of the changes of 10 % are to be found,
FOUND_UP_TO: Final[Mapping[str, float]] = {  # up to this noise, at the floor of the limit
    "normal": 0.03,
    "heavy-tailed": 0.009,
    "bimodal": 0.02,
    "drifting": 0.025,
    "autocorrelated": 0.025,
}


def differences(
    draw: Generator,
    shape: str,
    noise: float,
    change: float,
    comparisons: int,
    order: Order = turns,
) -> tuple[Floats, Floats]:
    """``d`` of all pairs of both phases: arrays (comparisons, 8) and (comparisons, 12).

    ``noise``: the unit of the shape, a share of the time. ``change``: that of head, a share too.
    """
    turn_of = {
        (phase, pair, side): turn
        for turn, (phase, pair, side) in enumerate(
            chain.from_iterable(
                ((phase, *each) for each in order(pairs)) for phase, pairs in PAIRS.items()
            )
        )
    }
    offsets = noise * SHAPES[shape](draw, comparisons)
    screen, confirmation = (
        offsets[:, [turn_of[phase, pair, "head"] for pair in range(pairs)]]
        - offsets[:, [turn_of[phase, pair, "base"] for pair in range(pairs)]]
        + np.log1p(change)
        for phase, pairs in PAIRS.items()
    )
    return screen, confirmation
