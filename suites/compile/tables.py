"""The tier's tables, as plain text: figures before and after, and the occupancy of kernels."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich import box
from rich.table import Table

from suites.compile.architectures import ARCHITECTURES
from suites.compile.compiler import Compiled
from suites.compile.figures import Change, Figures
from suites.recording import render

WIDTH: Final = 120  # at most; what is usual fits 80


def changes_table(changes: Iterable[Change]) -> str:
    """A line a figure: what it was and what it is. Long names of variants take two lines."""
    table = _table()
    table.add_column("variant", max_width=34)
    for column in ("architecture", "figure", "before", "after"):
        table.add_column(column, no_wrap=column == "figure")
    for change in changes:
        before, after = (_shown(each) for each in (change.before, change.after))
        table.add_row(change.variant, change.architecture, change.figure, before, after)
    return render(table, width=WIDTH)


def occupancy_table(compiled: Mapping[Compiled, Figures]) -> str:
    """A line a kernel: its lowest and highest occupancy, over its variants, by architecture."""
    found: defaultdict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)
    for each, figures in compiled.items():
        by_architecture = found[each.variant.module, each.variant.kernel]
        by_architecture.setdefault(each.architecture, []).append(figures.occupancy)
    table = _table()
    for column in ("occupancy, %", *ARCHITECTURES):
        table.add_column(column, no_wrap=True)
    above = ""
    for (module, kernel), values in sorted(found.items()):
        if module != above:
            table.add_row(above := module)
        count = max(len(each) for each in values.values())
        name = f"  {kernel}" + (f" ({count})" if count > 1 else "")
        table.add_row(name, *(_range(values.get(name, [])) for name in ARCHITECTURES))
    return render(table, width=WIDTH)


def _range(values: list[float]) -> str:
    """``12-100``, or one figure where all are alike."""
    return "-".join(dict.fromkeys(f"{100 * each(values):.0f}" for each in (min, max) if values))


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return "yes" if value is True else str(value)


def _table() -> Table:
    return Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
