"""The pictures of a page, as SVG that can stand inside HTML, in light and in dark."""

import io
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from golden.record import Measurement
from reports import text
from reports.model import Accuracy, Kill, Report

# Quantities by the names that they have in a record.
MEDIAN: Final = "median us"
SPREAD: Final = "quartile spread %"
THROTTLED: Final = "throttled"
BYTES: Final = "bytes moved"
PRODUCTS: Final = "multiplications and additions"
COPY_CEILING: Final = "copy GB/s"
RATE_CEILING: Final = "matrix 10^9/s"
PEAK: Final = "peak MiB"
FORMULA: Final = "formula MiB"

ROWS: Final = re.compile(r"(.+) rows ([0-9]{1,9})", re.DOTALL)  # a subject that names them
LENGTH: Final = re.compile(r"(.+) S ([0-9]{1,9})", re.DOTALL)
LABEL: Final = 44  # characters
LINES: Final = 40  # contracts, or mutants, of one picture
POINTS: Final = 64  # of one series
PANELS: Final = 4
SMALLEST, LARGEST = 1e-12, 1e15  # beyond these nothing was measured
MARKS: Final = "osD^vPX*"  # readable without colour; one a series
COLOURS: Final = (  # all have contrast on white and on black
    "#0072b2",
    "#c8500a",
    "#0d8a63",
    "#b0559b",
    "#8a7200",
    "#7a6ad8",
    "#c0392b",
    "#4f7f8f",
)
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same picture, the same bytes
    "text.parse_math": False,  # a dollar is a dollar
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
}

Points = list[tuple[float, ...]]
Drawn = Iterator[tuple[str, str, Figure]]  # title, caption, chart
Values = dict[str, float]  # by quantity
Key = tuple[str, str, str]  # subject, implementation, variant


class Picture(NamedTuple):
    """``svg`` is mark-up that needs no escaping; ``caption`` is text that does."""

    title: str
    caption: str
    svg: str


def pictures(report: Report) -> list[Picture]:
    """Those of which the report has something to show."""
    measured = _by_line(report.measured)
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The browser has fonts for what matplotlib's has no glyph for.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Of labels that leave no room for a picture there is one without room.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        drawn = (
            *draw_errors(report.accuracy),
            *draw_rows(measured),
            *draw_roofline(measured),
            *draw_memory(measured),
            *draw_kills(report.mutants),
        )
        return [
            Picture(title, caption, _inline(chart, f"picture-{number}-", f"{title}. {caption}"))
            for number, (title, caption, chart) in enumerate(drawn)
        ]


def _by_line(measured: Iterable[Measurement]) -> dict[Key, Values]:
    found: dict[Key, Values] = defaultdict(dict)
    for each in measured:
        if each.value == 0 or SMALLEST < each.value < LARGEST:
            found[each.subject, each.implementation, each.variant][each.quantity] = each.value
    return found


# --- error against bound -------------------------------------------------------------------------

LEAST: Final = 1e-3  # of a bound: what is smaller is drawn there


def draw_errors(accuracy: Sequence[Accuracy]) -> Drawn:
    """A line a contract, the largest errors first; base is hollow, head is full."""
    worst: dict[str, float] = defaultdict(float)
    for each in accuracy:
        worst[each.contract] = max(worst[each.contract], _finite(each.head), _finite(each.base))
    shown = sorted(worst, key=lambda contract: -worst[contract])[:LINES]
    if not shown:
        return
    places = sorted({(each.implementation, each.device) for each in accuracy})
    drawn = places[: len(MARKS)]
    chart, axis = _lines_of(shown, height=0.26)
    for number, ((mark, colour), place) in enumerate(zip(_styles(), drawn, strict=False)):
        aside = 0.8 * ((number + 0.5) / len(drawn) - 0.5)  # of a line: equal errors are all seen
        for side, face in (("base", "none"), ("head", colour)):
            points: Points = [
                (max(_finite(ratio), LEAST), shown.index(each.contract) + aside)
                for each in accuracy
                if (each.implementation, each.device) == place
                and each.contract in shown
                and (ratio := getattr(each, side)) is not None
            ]
            if points:
                name = _label(", ".join(place)) if side == "head" else None
                axis.plot(
                    *zip(*points, strict=True), mark, ms=4.5, color=colour, mfc=face, label=name
                )
    axis.axvline(1, color="black", linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel="|error| / bound; the dashed line is the limit")
    _plain(axis.xaxis)
    _legend(chart, [axis])
    hollow = " Hollow marks are base." if any(each.base is not None for each in accuracy) else ""
    yield (
        "Largest error against its bound",
        f"By contract, the largest first{_left(worst, LINES, 'contracts')}"
        f"{_left(places, len(MARKS), 'series')}.{hollow} "
        f"What is smaller than {LEAST:g} is drawn at it.",
        chart,
    )


def _finite(ratio: float | None) -> float:
    """Something that can be drawn; an infinite error stands at the right end."""
    return min(ratio, 1e6) if ratio is not None and ratio > 0 else 0.0


# --- what was measured ---------------------------------------------------------------------------


def draw_rows(measured: Mapping[Key, Values]) -> Drawn:
    """Time against rows, an operation a panel."""
    cold = _cold(measured)
    panels: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(list))
    for (subject, implementation, variant), values in measured.items():
        if (match := ROWS.fullmatch(subject)) and _timed(values) and variant in cold:
            half = min(values.get(SPREAD, 0.0) / 200, 0.99)
            point = (float(match[2]), values[MEDIAN], half * values[MEDIAN])
            panels[match[1]][f"{implementation}, {variant}"].append(point)
    if not panels:
        return
    shown = sorted(panels)[:PANELS]
    names = sorted({name for operation in shown for name in panels[operation]})
    chart = Figure(figsize=(8, 3.2 * math.ceil(len(shown) / 2)), layout="constrained")
    grid = chart.subplots(math.ceil(len(shown) / 2), min(len(shown), 2), squeeze=False)
    axes: list[Axes] = list(grid.flat)
    for axis, operation in zip(axes, shown, strict=False):
        for (mark, colour), name in zip(_styles(), names, strict=False):
            if points := sorted(panels[operation].get(name, []))[:POINTS]:
                rows, times, halves = zip(*points, strict=True)
                axis.errorbar(
                    rows, times, halves, marker=mark, color=colour, capsize=3, label=_label(name)
                )
        axis.set(xscale="log", yscale="log", xlabel="rows", ylabel="us a call")
        axis.set_title(_label(operation))
        _plain(axis.xaxis)
        _plain(axis.yaxis)
    for axis in axes[len(shown) :]:
        axis.remove()
    _legend(chart, axes[: len(shown)])
    yield (
        "Time against rows",
        f"Medians of head; a bar is as long as the distance between the quartiles"
        f"{_left(panels, PANELS, 'operations')}"
        f"{_left(names, len(MARKS), 'series')}. Throttled figures are left out.",
        chart,
    )


def draw_roofline(measured: Mapping[Key, Values]) -> Drawn:
    """What was achieved, under the ceilings of the same run."""
    bandwidth = max((values.get(COPY_CEILING, 0.0) for values in measured.values()), default=0.0)
    roofs = {
        variant: values[RATE_CEILING]
        for (_, _, variant), values in measured.items()
        if values.get(RATE_CEILING)
    }
    cold = _cold(measured)
    groups: dict[str, Points] = defaultdict(list)
    for (subject, implementation, variant), values in measured.items():
        if _timed(values) and values.get(PRODUCTS) and values.get(BYTES) and variant in cold:
            products = values[PRODUCTS]
            name = f"{subject.partition(' ')[0]}, {implementation}"
            groups[name].append((products / values[BYTES], products / values[MEDIAN] / 1e3))
    if not (bandwidth and roofs and groups):
        return
    chart = Figure(figsize=(8, 4.6), layout="constrained")
    axis = chart.subplots()
    intensities = [x for points in groups.values() for x, _ in points]
    ends = min(intensities) / 10, max(max(intensities), max(roofs.values()) / bandwidth) * 10
    for style, (dtype, rate) in zip(("-", "--", "-.", ":"), sorted(roofs.items()), strict=False):
        corners = sorted({*ends, min(max(rate / bandwidth, ends[0]), ends[1])})
        roof = [min(bandwidth * x, rate) for x in corners]
        axis.plot(corners, roof, color="black", linestyle=style, label=_label(f"ceiling, {dtype}"))
    for (mark, colour), (name, points) in zip(_styles(), sorted(groups.items()), strict=False):
        kept = zip(*points[:POINTS], strict=True)
        axis.plot(*kept, mark, color=colour, label=_label(name))
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="multiplications and additions a byte moved",
        ylabel="10^9 of them a second",
    )
    _plain(axis.xaxis)
    _plain(axis.yaxis)
    _legend(chart, [axis])
    yield (
        "Roofline",
        f"What head achieved, under the ceilings that the same run measured"
        f"{_left(groups, len(MARKS), 'series')}. Throttled figures are left out.",
        chart,
    )


def draw_memory(measured: Mapping[Key, Values]) -> Drawn:
    """What was held at the peak against S, beside the formula."""
    peaks: dict[str, Points] = defaultdict(list)
    formulas: dict[str, Points] = defaultdict(list)
    for (subject, implementation, way), values in measured.items():
        if (match := LENGTH.fullmatch(subject)) and values.get(PEAK):
            peaks[f"{way or match[1]}, {implementation}"].append((float(match[2]), values[PEAK]))
            if values.get(FORMULA):
                formulas[way or match[1]].append((float(match[2]), values[FORMULA]))
    if not peaks:
        return
    chart = Figure(figsize=(8, 4), layout="constrained")
    axis = chart.subplots()
    for (mark, colour), (name, points) in zip(_styles(), sorted(peaks.items()), strict=False):
        kept = zip(*sorted(points)[:POINTS], strict=True)
        axis.plot(*kept, marker=mark, color=colour, label=_label(name))
    styles = ("--", ":", "-.", (0, (1, 5)))
    for style, (name, points) in zip(styles, sorted(formulas.items()), strict=False):
        kept = zip(*sorted(set(points))[:POINTS], strict=True)
        axis.plot(*kept, color="black", linestyle=style, label=_label(f"{name}: formula"))
    axis.set(xscale="log", yscale="log", xlabel="S, tokens", ylabel="peak MiB")
    lengths = sorted({length for points in peaks.values() for length, _ in points})
    _plain(axis.xaxis)
    axis.set_xticks(lengths[:: math.ceil(len(lengths) / 8)])
    _plain(axis.yaxis)
    _legend(chart, [axis])
    yield (
        "Peak memory against length",
        f"Marks were measured of head, lines without marks are formulas"
        f"{_left(peaks, len(MARKS), 'series')}.",
        chart,
    )


def _cold(measured: Mapping[Key, Values]) -> set[str]:
    """Variants of calls that find nothing in the cache; all, where a run knows no such thing."""
    variants = {variant for (_, _, variant), values in measured.items() if MEDIAN in values}
    return {each for each in variants if each.startswith("cold")} or variants


def _timed(values: Values) -> bool:
    return bool(values.get(MEDIAN)) and not values.get(THROTTLED)


# --- mutants -------------------------------------------------------------------------------------


def draw_kills(mutants: Sequence[Kill]) -> Drawn:
    """Mutant by contract, a picture an implementation; those that few contracts kill come first."""
    by_implementation: dict[str, list[Kill]] = defaultdict(list)
    for each in mutants:
        by_implementation[each.implementation].append(each)
    for implementation, found in sorted(by_implementation.items())[:PANELS]:
        shown = sorted(found, key=lambda kill: (len(kill.contracts), kill.mutant))[:LINES]
        killers = list(dict.fromkeys(name for kill in shown for name in kill.contracts))
        contracts = killers[:LINES]
        if not contracts:
            continue
        names = [_label(name) for name in contracts]
        lines = [f"{kill.mutant} ({kill.outcome})" for kill in shown]
        chart, axis = _lines_of(lines, below=0.06 * max(map(len, names)))
        points: Points = [
            (contracts.index(name), line)
            for line, kill in enumerate(shown)
            for name in kill.contracts
            if name in contracts
        ]
        axis.plot(*zip(*points, strict=True), "x", color="black")
        axis.set_xticks(range(len(contracts)), names, rotation=60, ha="right", fontsize=7)
        axis.set_xlim(-1, len(contracts))
        axis.grid(alpha=0.25)
        yield (
            f"Which contract kills which mutant of {text.line(implementation, LABEL)}",
            "A cross: a test of that contract killed that mutant. First come those that the fewest "
            f"contracts kill{_left(found, LINES, 'mutants')}{_left(killers, LINES, 'contracts')}.",
            chart,
        )


# --- what all of them share ----------------------------------------------------------------------


def _lines_of(names: Sequence[str], height: float = 0.2, below: float = 1.4) -> tuple[Figure, Axes]:
    """A line each, the first one on top; inches of a line, and of what is below them."""
    chart = Figure(figsize=(8, height * len(names) + below), layout="constrained")
    axis = chart.subplots()
    axis.set_yticks(range(len(names)), [_label(name) for name in names], fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", alpha=0.25)
    return chart, axis


def _styles() -> Iterator[tuple[str, str]]:
    return zip(MARKS, COLOURS, strict=True)


def _left(all_of: Collection[object], drawn: int, what: str) -> str:
    """What a caption says of those for which there was no room."""
    left = len(all_of) - drawn
    return f"; {left:,} more {what} are not drawn" if left > 0 else ""


def _label(name: str) -> str:
    """A legend leaves out what starts with an underscore."""
    shown = text.line(name, LABEL)
    return f" {shown}" if shown.startswith("_") else shown


def _plain(axis: Axis) -> None:
    """Ticks of a logarithmic axis, as figures that need no mathematics."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def _legend(chart: Figure, axes: Sequence[Axes]) -> None:
    named: dict[str, Artist] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        named |= zip(labels, handles, strict=True)
    chart.legend(list(named.values()), list(named), loc="outside lower center", ncols=2)


def _inline(chart: Figure, prefix: str, label: str) -> str:
    """As part of a page: ids that no other picture has, and the page's own colour for black."""
    out = io.BytesIO()
    chart.savefig(out, format="svg", transparent=True)
    root = ElementTree.fromstring(out.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.items()}
        element.attrib.clear()
        element.attrib.update({n: _attribute(n, v, prefix) for n, v in attributes.items()})
    for name in ("width", "height", "version"):
        del root.attrib[name]
    root.attrib |= {"role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "href":  # matplotlib refers to what is in the same picture, and to nothing else
        return f"#{prefix}{value.removeprefix('#')}"
    return value.replace("url(#", f"url(#{prefix}").replace("#000000", "currentColor")
