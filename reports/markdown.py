"""The page as Markdown, for a comment on a pull request and for a step's summary."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports import text
from reports.model import Decision, Report
from reports.sections import context, sections

LARGEST: Final = 60_000  # bytes: a comment may have 65,536 characters
ICONS: Final[dict[Decision, str]] = {
    "passed": "✅",
    "warned": "⚠️",
    "failed": "❌",
    "undecided": "⏳",
    "unusable": "⛔",
}


class Budget(NamedTuple):
    """How much of a page there is room for: rows a table, failures to read, what is folded."""

    rows: int
    failures: int
    folded: bool
    cut: bool = True


# What is shed, in turn, until the page is small enough: what is folded, then failures, then rows.
BUDGETS: Final = (
    Budget(200, 20, True, cut=False),
    Budget(200, 20, False),
    Budget(100, 10, False),
    Budget(50, 5, False),
    Budget(20, 2, False),
    Budget(10, 1, False),
    Budget(5, 0, False),
)


def render(report: Report) -> str:
    """GitHub's Markdown, at most LARGEST bytes."""
    template = _environment().get_template("page.md.jinja")
    for budget in BUDGETS:
        page = template.render(
            report=report,
            icon=ICONS[report.decision],
            context=context(report),
            sections=[each for each in sections(report) if budget.folded or not each.folded],
            budget=budget,
        )
        if len(page.encode()) <= LARGEST:
            break
    return page


def _environment() -> Environment:
    """Every expression of a template is escaped unless a filter here has made it Markup."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=escaped,
        keep_trailing_newline=True,
    )
    environment.filters.update(code=code, html=in_html, block=block, commands=commands, safe=Markup)
    return environment


def escaped(value: object) -> str:
    """One line that is text and nothing else: no mark-up, no link, no mention, no reference."""
    if isinstance(value, Markup):
        return value
    literal = re.sub(r"([!-+:-@\[-`{-~.])", r"\\\1", text.line(str(value)))
    return re.sub(r"(\\[@#])", "\\1\N{WORD JOINER}", literal)


def code(value: str) -> Markup:
    """One line in a code span, whatever backticks it has; a bar would end a table's cell."""
    shown = text.line(value).replace("|", "\N{BOX DRAWINGS LIGHT VERTICAL}")
    if not shown:
        return Markup("")
    fence = "`" * (text.longest_run(shown, "`") + 1)
    space = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return Markup(f"{fence}{space}{shown}{space}{fence}")


def in_html(value: str) -> Markup:
    """One line within an element of HTML, whose own escapes are undone before Markdown is."""
    return Markup(f"<code>{Markup.escape(text.line(value))}</code>")


def block(value: str) -> Markup:
    """Several lines in a fence of their own."""
    return _fenced("text", text.block(value))


def commands(lines: tuple[str, ...]) -> Markup:
    return _fenced("sh", "\n".join(text.line(each, 1000) for each in lines))


def _fenced(language: str, shown: str) -> Markup:
    fence = "`" * max(3, text.longest_run(shown, "`") + 1)
    return Markup(f"{fence}{language}\n{shown}\n{fence}")
