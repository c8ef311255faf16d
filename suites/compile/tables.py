"""The tier's tables, as plain text: figures before and after, and the occupancy of kernels."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from suites.compile.architectures import ARCHITECTURES
from suites.compile.compiler import Compiled
from suites.compile.figures import Change, Figures

WIDTH: Final = 120


def changes_table(changes: Iterable[Change]) -> str:
    """A line a figure: what it was and what it is."""
    table = _table("variant", "architecture", "figure", "before", "after")
    for change in changes:
        before, after = (_shown(each) for each in (change.before, change.after))
        table.add_row(change.variant, change.architecture, change.figure, before, after)
    return _text(table)


def occupancy_table(compiled: Mapping[Compiled, Figures]) -> str:
    """A line a kernel: its lowest and highest occupancy, over its variants, by architecture."""
    found: defaultdict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)
    for each, figures in compiled.items():
        by_architecture = found[each.variant.module, each.variant.kernel]
        by_architecture.setdefault(each.architecture, []).append(figures.occupancy)
    table = _table("occupancy", "variants", *ARCHITECTURES)
    for (module, kernel), values in sorted(found.items()):
        count = str(max(len(each) for each in values.values()))
        cells = [_range(values.get(architecture, [])) for architecture in ARCHITECTURES]
        table.add_row(f"{module} {kernel}", count, *cells)
    return _text(table)


def _range(values: list[float]) -> str:
    if not values:
        return ""
    low, high = f"{min(values):.0%}", f"{max(values):.0%}"
    return high if low == high else f"{low.removesuffix('%')}-{high}"


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return "yes" if value is True else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _text(table: Table) -> str:
    text = StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
