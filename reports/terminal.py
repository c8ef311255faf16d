"""The page as plain text, in a terminal or in a log."""

import io
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports import text
from reports.model import Decision, Report
from reports.sections import Column, Failure, Section, context, sections

ROWS, FAILURES = 40, 5  # what is shown of a section; the HTML page has all of it
STYLES: Final[dict[Decision, str]] = {
    "passed": "bold green",
    "warned": "bold yellow",
    "failed": "bold red",
    "undecided": "bold yellow",
    "unusable": "bold red",
}


def render(report: Report, *, width: int = 120, colour: bool = False) -> str:
    """What is not folded: tables at most ``width`` columns wide, the first lines whole."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        no_color=not colour,
        markup=False,
        highlight=False,
    )
    style = STYLES[report.decision]
    headline = Text(f"{report.decision.upper()}: {_line(report.headline)}", style=style)
    for each in (headline, f"next: {_line(report.next)}", _line(context(report))):
        if each:
            console.print(each, soft_wrap=True)
    for section in sections(report):
        if not section.folded:
            _print_section(console, section)
    lines = (line.rstrip() for line in out.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def _print_section(console: Console, section: Section) -> None:
    console.print(f"\n{section.title}")
    console.print(_table(section.columns, section.rows[:ROWS]))
    _print_more(console, len(section.rows) - ROWS, "lines")
    for failure in section.failures[:FAILURES]:
        _print_failure(console, failure)
    _print_more(console, len(section.failures) - FAILURES, "failures")


def _print_failure(console: Console, failure: Failure) -> None:
    console.print(f"{_line(failure.contract)}: {_line(failure.title)}")
    console.print(f"{_line(failure.where)}\n")
    for each in (text.block(failure.shown), "", *map(_command, failure.commands), ""):
        console.print(each, soft_wrap=True)


def _command(command: str) -> str:
    return f"    {text.line(command, 1000)}"


def _print_more(console: Console, count: int, what: str) -> None:
    if count > 0:
        console.print(f"{count:,} more {what}: `--format html` has them")


def _table(columns: tuple[Column, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number = column.kind == "number"
        table.add_column(
            column.heading,
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(_line, row))
    return table


def _line(value: str) -> str:
    return text.line(value)
