"""The page performance.md and its pictures, from the records of runs of the benchmark tier.

    python -m docs.performance .conformance/record.jsonl

writes all of it beside this file. What was measured says where; what is computed from published
peaks says so.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from docs.pages import begin_pictures, complete, markdown, revision, save
from golden.record import Header, Measurement
from oracles import storage
from suites.bench import figures
from suites.bench.calls import (
    GEOMETRIES,
    ROW_COUNTS,
    estimate_calls,
    stage_calls,
    witness_call,
)
from suites.cases import APPLY, INDICES, SERVE
from suites.devices import DEVICES

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "performance.md"
ROWS: Final = "performance-rows.svg"
ROOFLINE: Final = "performance-roofline.svg"
MEMORY: Final = "performance-memory.svg"
MARKS: Final = "osD^vPX*"  # readable without colour
REFERENCE: Final = "H200 SXM"  # of the predicted times that are drawn
MIB: Final = 2**20

Values = dict[str, float]  # by quantity


@dataclass(frozen=True)
class Run:
    """One record: where it came from, and its figures by subject, implementation and variant."""

    header: Header
    date: str
    lines: Mapping[tuple[str, str, str], Values]

    @property
    def on_gpu(self) -> bool:
        return not self.header.device.startswith("cpu")

    @property
    def place(self) -> str:
        device = self.header.device if self.on_gpu else f"{self.header.device}, one thread, no GPU"
        return f"{device}; {revision(self.header)}; {self.date}"

    def of(self, quantity: str) -> Iterator[tuple[str, str, str, Values]]:
        for (subject, implementation, variant), values in self.lines.items():
            if quantity in values:
                yield subject, implementation, variant, values


def read(path: Path) -> Run:
    """Raises ValueError, in one line, for what is no complete record of a run of benchmarks."""
    header, lines = complete(path, "tox -e bench")
    found: dict[tuple[str, str, str], Values] = defaultdict(dict)
    for line in lines:
        if isinstance(line, Measurement):
            found[line.subject, line.implementation, line.variant][line.quantity] = line.value
    run = Run(header, f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}", found)
    if not any(run.of(figures.BYTES)):
        raise ValueError(f"{path}: no benchmark in it; run `tox -e bench`")
    return run


# --- tables --------------------------------------------------------------------------------------


def times(run: Run) -> str:
    """Of every benchmark; what was throttled is marked, not left out."""
    columns = [each for each in figures.COLUMNS if any(run.of(each))]
    rows = []
    for subject, implementation, variant, values in sorted(
        run.of(figures.BYTES), key=lambda line: (line[0].split()[0], len(line[0]), line[:3])
    ):
        operation, _, size = subject.partition(" ")
        cells = [_shown(values.get(each)) for each in columns]
        mark = " (throttled)" if values.get(figures.THROTTLED) else ""
        rows.append([f"`{operation}`", size, implementation, variant + mark, *cells])
    return markdown(["operation", "size", "by", "how", *columns], rows, left=4)


def memory(run: Run) -> str:
    rows = [
        [subject, implementation, _shown(values[figures.PEAK]), _shown(values[figures.FORMULA])]
        for subject, implementation, _, values in sorted(
            run.of(figures.PEAK), key=lambda line: (len(line[0]), line[:2])
        )
    ]
    return markdown(["way and length", "by", figures.PEAK, figures.FORMULA], rows, left=2)


def suite(run: Run) -> str:
    rows = [
        [subject, implementation, _shown(values[figures.MEDIAN]), f"{value:,.0f} {variant}"]
        for subject, implementation, variant, values in run.of(figures.THROUGHPUT)
        for value in [values[figures.THROUGHPUT]]
    ]
    return markdown(["what", "by", figures.MEDIAN, figures.THROUGHPUT], rows, left=2)


def ceilings(run: Run) -> str:
    found = []
    for quantity in (figures.COPY_CEILING, figures.RATE_CEILING):
        for _, _, variant, values in run.of(quantity):
            what, _, unit = quantity.partition(" ")
            found.append(f"{what} {variant}".strip() + f" {values[quantity]:,.0f} {unit}")
    return "; ".join(found)


def floors() -> str:
    """By board, microseconds, of every call at the sizes of a GPU; nothing is measured."""
    calls = [
        *(
            witness_call(operation, rows)
            for operation in (SERVE, APPLY, INDICES)
            for rows in (32, 512, 16384)
        ),
        *stage_calls(True),
        *estimate_calls(True),
    ]
    rows = [
        [
            f"`{call.operation}`",
            call.label,
            *(_shown(call.work.floor(board) * 1e6) for board in DEVICES.values()),
        ]
        for call in sorted(calls, key=lambda call: call.operation)
    ]
    return markdown(["operation", "size", *DEVICES], rows, left=2)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


# --- pictures ------------------------------------------------------------------------------------


def draw_rows(runs: Sequence[Run], path: Path) -> None:
    """Time against rows, cold; beside it what no H200 can be below."""
    chart, axes = plt.subplots(1, 3, figsize=(12, 4.6), sharey=True, layout="constrained")
    for axis, operation in zip(axes, (SERVE, APPLY, INDICES), strict=True):
        for run in runs:
            for mark, (name, points) in zip(
                MARKS, sorted(_against_rows(run, operation).items()), strict=False
            ):
                where = "GPU" if run.on_gpu else "CPU"
                axis.plot(*zip(*points, strict=True), marker=mark, label=f"{name}, {where}")
        counts = ROW_COUNTS[True]
        seconds = [witness_call(operation, rows).work.floor(DEVICES[REFERENCE]) for rows in counts]
        axis.plot(
            counts,
            [each * 1e6 for each in seconds],
            "k:",
            label=f"{REFERENCE}: computed, not measured",
        )
        axis.set(xscale="log", yscale="log", xlabel="rows", title=operation)
    axes[0].set_ylabel("us a call, cold")
    chart.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(chart, path)


def _against_rows(run: Run, operation: str) -> dict[str, list[tuple[int, float]]]:
    """By implementation, and of copying by way of the first one."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for subject, implementation, variant, values in run.of(figures.RATIO):
        name, _, size = subject.partition(" ")
        cache, _, launch = variant.partition(" ")
        if name == operation and cache == "cold":
            rows = int(size.rpartition(" ")[2])
            found[f"{implementation} {launch}"].append((rows, values[figures.MEDIAN]))
            if implementation == "torch":
                found[f"copying {launch}"].append((rows, values[figures.COPYING]))
    return {name: sorted(points) for name, points in found.items()}


def draw_roofline(run: Run, path: Path) -> None:
    """What was achieved, under the ceilings of the same run."""
    chart, axis = plt.subplots(figsize=(8, 5))
    bandwidth = next(run.of(figures.COPY_CEILING))[3][figures.COPY_CEILING]
    ends = (1e-1, 1e4)
    styles = ("-", "--", "-.")
    for style, (_, _, dtype, values) in zip(styles, run.of(figures.RATE_CEILING), strict=False):
        roof = [min(bandwidth * x, values[figures.RATE_CEILING]) for x in _between(*ends)]
        axis.plot(_between(*ends), roof, "k" + style, label=f"measured ceilings, {dtype}")
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for subject, implementation, variant, values in run.of(figures.PRODUCTS):
        if values[figures.PRODUCTS] and variant.startswith("cold"):
            of = subject.partition(" ")[0], implementation
            intensity = values[figures.PRODUCTS] / values[figures.BYTES]
            groups[of].append((intensity, values[figures.PRODUCTS] / values[figures.MEDIAN] / 1e3))
    for mark, ((operation, name), points) in zip(MARKS, sorted(groups.items()), strict=False):
        axis.scatter(*zip(*points, strict=True), marker=mark, label=f"{operation}, {name}")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="multiplications and additions a byte",
        ylabel="10^9 of them a second, cold",
        title=run.header.device,
    )
    axis.legend(fontsize="small")
    save(chart, path)


def _between(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (step / 200) for step in range(201)]


def draw_memory(runs: Sequence[Run], path: Path) -> None:
    """What was measured beside the formulas, and the formulas at the sizes of the source."""
    chart, axes = plt.subplots(1, 2, figsize=(12, 4.4))
    _draw_formulas(axes[1], True)
    axes[1].set_title("at the sizes of a GPU: formulas, nothing measured")
    for run in runs:
        axis = axes[1] if run.on_gpu else axes[0]
        _draw_peaks(axis, run)
        if run.on_gpu:
            axis.set_title(f"measured on {run.header.device}")
    _draw_formulas(axes[0], False)
    axes[0].set_title("small sizes, on a CPU")
    for axis in axes:
        axis.set(yscale="log", xlabel="S, tokens", ylabel="peak MiB")
        axis.set_xscale("log", base=2)
        axis.legend(fontsize="small")
    save(chart, path)


def _draw_peaks(axis: Axes, run: Run) -> None:
    groups: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for subject, implementation, way, values in run.of(figures.PEAK):
        groups[way, implementation].append((int(subject.rpartition(" ")[2]), values[figures.PEAK]))
    for mark, ((way, name), points) in zip(MARKS, sorted(groups.items()), strict=False):
        axis.plot(*zip(*sorted(points), strict=True), marker=mark, label=f"{way}, {name}: measured")


def _draw_formulas(axis: Axes, full_size: bool) -> None:
    g = GEOMETRIES[full_size]
    one_pass = [storage.peak_one_pass(1, g.heads, s, g.storage_stride) / MIB for s in g.lengths]
    stages = [
        storage.peak_three_stages(1, g.heads, s, g.storage_stride, g.tokens) / MIB
        for s in g.lengths
    ]
    axis.plot(g.lengths, one_pass, "k--", label="one pass: formula")
    axis.plot(g.lengths, stages, "k:", label="three stages: formula")


# --- the page ------------------------------------------------------------------------------------

OUTSTANDING: Final = (
    "**Device figures are outstanding.** There was no GPU: nothing on this page was measured on "
    "one. What follows are times of the torch implementation and of the suite itself on a CPU, at "
    "small sizes, and times that are computed from published peaks. Neither says how fast a kernel "
    "is on a GPU; `tox -e bench -- --device cuda` does, on a machine that has one."
)
HOW: Final = """\
Times are medians of calls whose results were verified, each one: by the torch reference in all,
and by the oracle with its bounds where it is farthest from that and at a place at random. *Cold*
calls find nothing in the cache, *warm* ones what the same call left there before. *Eager* is what a
caller waits for, *replay* a CUDA graph on a busy device: `launch us` is what launching costs.
`quartile spread %` is the distance between the quartiles in relation to the median. The ratio to
copying is that to a copy of the buffer beside each call, and shares are of the ceilings that were
measured in the same run."""


def page(runs: Sequence[Run]) -> str:
    parts = ["# How fast", ""]
    if not any(run.on_gpu for run in runs):
        parts += [OUTSTANDING, ""]
    parts += [" ".join(HOW.split()), "", f"![time against rows]({ROWS})", ""]
    parts += [
        "*" + "; ".join(_caption(run) for run in runs) + ". The dotted line is computed.*",
        "",
    ]
    for run in runs:
        parts += _measured(run)
    parts += [
        "## Memory against length",
        "",
        f"![memory against length]({MEMORY})",
        "",
        "The source counts the raw scores in fp32, of all keys or of one chunk of them; an "
        "implementation that is written with torch holds several such arrays at once. "
        "*estimate* is the operation as a whole, by chunks of keys.",
        "",
        "## What no device can be below",
        "",
        "Microseconds, **computed, not measured**: the bytes that a call must move and the "
        "products that it must make ([suites/roofline.py](../suites/roofline.py)), at the peaks "
        "that vendors publish ([suites/devices.py](../suites/devices.py)). A time below is "
        "refused as impossible.",
        "",
        floors(),
        "",
        "`python -m docs.performance RECORD...` writes this page and its pictures.",
        "",
    ]
    return "\n".join(parts)


def _caption(run: Run) -> str:
    return f"Measured on {run.place}"


def _measured(run: Run) -> Iterator[str]:
    where = f"*Measured on {run.place}. Ceilings of this run: {ceilings(run)}.*"
    yield from (f"## On {run.header.device}", "", times(run), "", where, "")
    yield from (f"![roofline]({ROOFLINE})", "", where, "")
    if any(run.of(figures.PEAK)):
        yield from (memory(run), "", f"*Peaks measured on {run.place}.*", "")
    if any(run.of(figures.THROUGHPUT)):
        yield from ("## The suite itself", "", suite(run), "", f"*Measured on {run.place}.*", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path, nargs="+", help="records of runs of `tox -e bench`")
    arguments = parser.parse_args()
    try:
        runs = [read(path) for path in arguments.record]
    except ValueError as error:
        parser.error(str(error))
    begin_pictures("performance")
    draw_rows(runs, HERE / ROWS)
    draw_roofline(max(runs, key=lambda run: run.on_gpu), HERE / ROOFLINE)
    draw_memory(runs, HERE / MEMORY)
    PAGE.write_text(page(runs), encoding="utf-8")


if __name__ == "__main__":
    main()
