"""The figures of speed-rule.md: two tables, and a picture beside this file.

    python -m docs.speed_rule

prints the tables and writes speed-rule.svg. Everything is simulated, with fixed seeds, by the
noise that the tests of the rule are held to; it takes a minute or two.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.typing import FillStyleType

from docs.pages import begin_pictures, markdown, save
from reports.speed import FLOOR, confirmed, directions
from suites.selftest.reports.noise import FOUND_UP_TO, INSIDE_A_JOB, SHAPES, differences

HERE = Path(__file__).parent
CHUNK: Final = 100_000  # comparisons at once: 40 turns of each are 32 MB
COMPARISONS: Final = 1_000_000  # of identical code, a figure
CHANGES: Final = np.arange(0, 0.1501, 0.005)
MARKERS: Final = "os^Dv"
FILLS: Final[tuple[FillStyleType, ...]] = ("none", "full")
THIN: Final[dict[str, Any]] = {"color": "black", "linewidth": 0.7, "markersize": 4}


def found(shape: str, noise: float, change: float, comparisons: int) -> float:
    """The share of comparisons that the whole rule calls slower."""
    of = differences(np.random.default_rng(0), shape, noise, change, comparisons)
    return float(np.mean(confirmed(*of, FLOOR) == 1))


def false_alarms(shape: str, noise: float) -> tuple[int, int]:
    """Of a million comparisons of identical code: how many a screen calls slower, and the rule."""
    draw, counts = np.random.default_rng(0), np.zeros(2, dtype=int)
    for _ in range(COMPARISONS // CHUNK):
        screens, confirmations = differences(draw, shape, noise, 0, CHUNK)
        counts[0] += np.sum(directions(screens, FLOOR) == 1)
        counts[1] += np.sum(confirmed(screens, confirmations, FLOOR) == 1)
    return int(counts[0]), int(counts[1])


# --- the tables ----------------------------------------------------------------------------------


def detection() -> str:
    """What share of +5 % and +10 % is found, by shape and noise, in Markdown."""
    noises = (INSIDE_A_JOB, 0.01, 0.02, 0.03)
    columns = [(noise, change) for noise in noises for change in (0.05, 0.10)]
    headings = [f"{100 * noise:.3g} %, +{100 * change:.0f} %" for noise, change in columns]
    rows = [
        [
            shape,
            *(f"{100 * found(shape, *column, 20_000):.1f} %" for column in columns),
            f"{100 * most:.2g} %",
        ]
        for shape, most in FOUND_UP_TO.items()
    ]
    return markdown(["noise", *headings, "95 % of +10 % up to"], rows, left=1)


def identical_code(alarms: dict[str, dict[float, tuple[int, int]]]) -> str:
    """How many of a million comparisons are called slower, by shape and noise, in Markdown."""
    noises = [*next(iter(alarms.values()))]
    rows = [
        [shape, *(f"{screen:,} → {both:,}" for screen, both in of.values())]
        for shape, of in alarms.items()
    ]
    return markdown(["noise", *(f"{100 * noise:.3g} %" for noise in noises)], rows, left=1)


# --- the picture ---------------------------------------------------------------------------------


def draw_detection(axis: Axes, noises: Sequence[float]) -> None:
    for noise, marker in zip(noises, MARKERS, strict=True):
        shares = [100 * found("normal", noise, change, 5000) for change in CHANGES]
        label = f"noise {100 * noise:.3g} %"
        axis.plot(100 * CHANGES, shares, marker=marker, label=label, **THIN)
    axis.axvline(100 * FLOOR, color="black", linestyle=":", linewidth=1)
    axis.axhline(95, color="black", linestyle=":", linewidth=1)
    axis.set(xlabel="true change of head, %", ylabel="called slower, % of comparisons")
    axis.set_title("what is found, normal noise\ndotted: the limit, and 95 %")
    axis.legend(loc="lower right", fontsize="small")


def draw_false_alarms(axis: Axes, alarms: dict[str, dict[float, tuple[int, int]]]) -> None:
    for (shape, of), marker in zip(alarms.items(), MARKERS, strict=True):
        for phase, style, fill in zip((0, 1), ("--", "-"), FILLS, strict=True):
            points = [
                (100 * noise, counts[phase] * 10_000 / COMPARISONS)
                for noise, counts in of.items()
                if counts[phase]
            ]
            label = shape if phase else None
            x, y = zip(*points, strict=True)
            axis.plot(x, y, marker=marker, linestyle=style, fillstyle=fill, label=label, **THIN)
    axis.axhline(1, color="black", linewidth=2)
    axis.text(18, 1.2, "allowed", va="bottom")
    axis.text(0.9, 110, "hollow, dashed: by the screen alone", va="bottom")
    axis.set(xscale="log", yscale="log", xlim=(0.8, 40), ylim=(0.0005, 300))
    axis.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axis.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axis.set(xlabel="noise of a process, %", ylabel="of 10,000 called slower")
    axis.set_title(
        "identical code called slower, by shape of the noise\nno mark: none in a million"
    )
    axis.legend(loc="lower left", fontsize="small")


def main() -> None:
    alarms = {
        shape: {noise: false_alarms(shape, noise) for noise in (0.003, 0.01, 0.03, 0.1, 0.3)}
        for shape in SHAPES
    }
    print(detection(), identical_code(alarms), sep="\n\n")
    begin_pictures("speed")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6))
    draw_detection(left, (INSIDE_A_JOB, 0.01, 0.02, 0.03, 0.05))
    draw_false_alarms(right, alarms)
    figure.tight_layout()
    save(figure, HERE / "speed-rule.svg")


if __name__ == "__main__":
    main()
