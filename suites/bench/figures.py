"""From figures to lines of the record, and from these to the table at the end of a run."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich import box
from rich.table import Table

from golden.record import Measurement
from suites.bench.calls import Call
from suites.bench.ceilings import Ceilings
from suites.bench.timing import MICRO, Figure, Timed
from suites.recording import render

WIDTH: Final = 110

# Quantities of the record, each with its unit. Times are of one call.
MEDIAN: Final = "median us"
SPREAD: Final = "quartile spread %"
COPYING: Final = "copying us"
RATIO: Final = "ratio to copying"
BANDWIDTH: Final = "share of copy bandwidth %"
RATE: Final = "share of matrix rate %"
LAUNCH: Final = "launch us"
FLOOR: Final = "floor us"
BYTES: Final = "bytes moved"
PRODUCTS: Final = "multiplications and additions"
THROTTLED: Final = "throttled"  # 1 where a clock was, before or after: not to be believed
COPY_CEILING: Final = "copy GB/s"
RATE_CEILING: Final = "matrix 10^9/s"
PEAK: Final = "peak MiB"
FORMULA: Final = "formula MiB"
THROUGHPUT: Final = "a second"
DEVICE: Final = "device"  # whom the ceilings are of

COLUMNS: Final = {  # of the table of times
    MEDIAN: "us",
    SPREAD: "+- %",
    FLOOR: "floor",
    LAUNCH: "launch",
    RATIO: "x copy",
    BANDWIDTH: "% copy",
    RATE: "% rate",
}
LEGEND: Final = (
    "us: median of a call; +-: between its quartiles; floor: at the published peaks of the board; "
    "launch: eager less replay\nx copy: in relation to copying the same buffer; % copy, % rate: of "
    "the ceilings"
)


def measurements(
    implementation: str, it: Timed, figure: Figure, ceilings: Ceilings
) -> Iterator[Measurement]:
    """Of one benchmark."""
    variant = f"{it.cache} {'replay' if it.outputs else 'eager'}"
    work = it.work
    moved = work.read + work.written
    values = {
        MEDIAN: figure.seconds * MICRO,
        SPREAD: figure.spread * 100,
        THROTTLED: float(bool(figure.throttled)),
        BYTES: float(moved),
        PRODUCTS: float(work.products),
        BANDWIDTH: 100 * moved / figure.seconds / ceilings.bandwidth(),
    }
    if figure.floor is not None:
        values[FLOOR] = figure.floor * MICRO
    if figure.copying is not None:
        values |= {COPYING: figure.copying * MICRO, RATIO: figure.seconds / figure.copying}
    if work.products:
        dtype = "float32" if work.dot == "tf32" else work.dot
        values[RATE] = 100 * work.products / figure.seconds / ceilings.rate(dtype)
    for quantity, value in values.items():
        yield Measurement(implementation, it.call.subject, quantity, variant, value)


def ceiling_lines(ceilings: Ceilings, call: Call) -> Iterator[Measurement]:
    """What the shares of this call are of."""
    yield Measurement(DEVICE, "ceiling", COPY_CEILING, "", ceilings.bandwidth() / 1e9)
    if call.work.products:
        dtype = call.work.dot
        yield Measurement(DEVICE, "ceiling", RATE_CEILING, dtype, ceilings.rate(dtype) / 1e9)


# --- the table -----------------------------------------------------------------------------------

Key = tuple[str, str, str]  # subject, implementation, variant


def report(found: Iterable[Measurement]) -> str:
    """Every figure of a run, as plain text of at most WIDTH columns; empty without any."""
    by_line: dict[Key, dict[str, float]] = defaultdict(dict)
    for each in found:
        by_line[each.subject, each.implementation, each.variant][each.quantity] = each.value
    parts = [*_times(by_line), *_peaks(by_line), *_throughputs(by_line), *_ceilings(by_line)]
    if any(MEDIAN in values and BYTES in values for values in by_line.values()):
        parts.append(LEGEND)
    if any(values.get(THROTTLED) for values in by_line.values()):
        parts.append("throttled: a clock was slowed down, so the figure is not to be believed")
    return "\n".join(parts)


def _times(lines: Mapping[Key, Mapping[str, float]]) -> Iterator[str]:
    """An operation a table, a size and implementation a line."""
    operations: dict[str, dict[Key, Mapping[str, float]]] = defaultdict(dict)
    for key, values in lines.items():
        if MEDIAN in values and BYTES in values:
            operations[key[0].partition(" ")[0]][key] = values
    for operation, of in operations.items():
        columns = [each for each in COLUMNS if any(each in values for values in of.values())]
        rows = []
        for (subject, implementation, variant), values in sorted(of.items(), key=_order):
            cells = [_shown(values.get(each)) for each in columns]
            mark = "throttled" if values.get(THROTTLED) else ""
            size = subject.partition(" ")[2]
            rows.append([size, implementation, variant, *cells, mark])
        headings = ["", "implementation", "how", *(COLUMNS[each] for each in columns), ""]
        yield f"\n{operation}{table(headings, rows, left=3)}"


def _order(item: tuple[Key, object]) -> tuple[int, str, str, str]:
    subject, implementation, variant = item[0]
    return len(subject), subject, variant, implementation  # 64 before 128


def _peaks(lines: Mapping[Key, Mapping[str, float]]) -> Iterator[str]:
    rows = [
        [subject, implementation, way, _shown(values[PEAK]), _shown(values.get(FORMULA))]
        for (subject, implementation, way), values in sorted(lines.items(), key=_order)
        if PEAK in values
    ]
    if rows:
        yield table(["memory", "implementation", "way", PEAK, FORMULA], rows, left=3)


def _throughputs(lines: Mapping[Key, Mapping[str, float]]) -> Iterator[str]:
    rows = [
        [subject, name, _shown(values[MEDIAN]), f"{values[THROUGHPUT]:,.0f} {variant}"]
        for (subject, name, variant), values in lines.items()
        if THROUGHPUT in values
    ]
    if rows:
        yield table(["the suite itself", "by", MEDIAN, THROUGHPUT], rows, left=2)


def _ceilings(lines: Mapping[Key, Mapping[str, float]]) -> Iterator[str]:
    ceilings = {}
    for (_, name, variant), values in lines.items():
        for quantity, value in values.items():
            if name == DEVICE:
                ceilings[f"{quantity.partition(' ')[0]} {variant}".strip()] = (quantity, value)
    for what, (quantity, value) in ceilings.items():
        yield f"ceiling, measured in this run: {what} {value:,.0f} {quantity.partition(' ')[2]}"


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Plain text; the first ``left`` columns are words, the others numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index, heading in enumerate(headings):
        made.add_column(
            heading,
            justify="left" if index < left else "right",
            overflow="fold",
            no_wrap=index >= left,
        )
    for row in rows:
        made.add_row(*row)
    return f"{render(made, width=WIDTH)}\n"
