"""The page as one HTML file that needs nothing beside it and runs nothing."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup, escape

from reports import text
from reports.model import Report
from reports.pictures import pictures
from reports.sections import Column, Section, context, figure, ratio, sections

LARGEST: Final = 5_000_000  # bytes
ROWS: Final = (500, 100, 20, 5)  # lines of a table, and failures: as many as leave it that small
COLUMNS: Final = 16
OPEN: Final = 3  # failures that need no click
STATEMENT: Final = 1000  # characters of what is worth more than a line
COMMAND: Final = 4000
NAMED: Final = 12  # contracts in one cell
TONES: Final = {  # by the word that a cell begins with, which says it without colour
    **dict.fromkeys(("failed", "crashed", "timed-out", "harness-error", "stale-deviation"), "bad"),
    **dict.fromkeys(("new failure", "fails differently", "no longer tested"), "bad"),
    **dict.fromkeys(("newly unsupported", "stale deviation", "slower", "spills"), "bad"),
    **dict.fromkeys(("unusable", "survived", "more"), "bad"),
    **dict.fromkeys(("unsupported", "not-run", "not run", "fails as before", "risen"), "odd"),
    **dict.fromkeys(("warned", "undecided", "inconclusive"), "odd"),
    **dict.fromkeys(("passed", "deviates", "fixed", "faster", "less", "killed"), "good"),
}


def render(report: Report) -> str:
    """HTML, at most LARGEST bytes: what does not fit is left out, and counted where it was."""
    found = [*sections(report), *filter(lambda section: section.rows, _details(report))]
    values = {
        "report": report,
        "context": context(report),
        "sections": [section for section in found if not section.folded],
        "folded": [section for section in found if section.folded],
        "pictures": [(each.title, each.caption, Markup(each.svg)) for each in pictures(report)],
        "open": OPEN,
        "columns": COLUMNS,
    }
    template = _environment().get_template("page.html.jinja")
    for rows in ROWS:
        page = template.render(values, rows=rows)
        if len(page.encode()) <= LARGEST:
            break
    return page


# --- what only this page has room for ------------------------------------------------------------


def _details(report: Report) -> Iterator[Section]:
    yield _errors(report)
    yield _mutants(report)
    yield _measured(report)


def _errors(report: Report) -> Section:
    columns = (
        Column("contract", "code"),
        Column("implementation"),
        Column("device"),
        Column("base", "number"),
        Column("head", "number"),
    )
    rows = [
        (line.contract, line.implementation, line.device, ratio(line.base), ratio(line.head))
        for line in report.accuracy
    ]
    return Section("All largest |error| / bound", columns, rows, folded=True)


def _mutants(report: Report) -> Section:
    columns = Column("mutant", "code"), Column("implementation"), Column(""), Column("killed by")
    rows = []
    for line in report.mutants:
        left = len(line.contracts) - NAMED
        names = ", ".join(line.contracts[:NAMED]) + (f" and {left} more" if left > 0 else "")
        rows.append((line.mutant, line.implementation, line.outcome, names))
    return Section("All mutants", columns, rows, folded=True)


def _measured(report: Report) -> Section:
    """A line all figures of one thing."""
    lines: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for line in report.measured:
        key = line.subject, line.implementation, line.variant
        lines[key].append(f"{line.quantity} {figure(line.value)}")
    columns = (
        Column("subject", "code"),
        Column("implementation"),
        Column("variant"),
        Column("figures"),
    )
    rows = [(*key, "; ".join(figures)) for key, figures in lines.items()]
    return Section("All that was measured and nothing judges", columns, rows, folded=True)


# --- text into mark-up ---------------------------------------------------------------------------


def _environment() -> jinja2.Environment:
    """Every expression of a template is one line, cut and escaped, unless a filter says more."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=line,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        block=lambda shown: escape(text.block(shown)),
        command=lambda shown: escape(text.line(shown, COMMAND)),
        sentence=sentence,
        tone=tone,
    )
    return environment


def line(value: object) -> object:
    return text.line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def sentence(said: str) -> Markup:
    """What stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text.line(said, STATEMENT)))))


def tone(cell: str) -> str:
    """The class of a cell that begins with a word on how something went; empty of others."""
    words = re.split(r", | \(", cell)[0]
    return TONES.get(words) or TONES.get(words.partition(" ")[0], "")
