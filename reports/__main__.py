"""``python -m reports show | compare``: a page from the records of one side, or of two."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from reports import html, markdown, terminal
from reports.comparing import compare, show
from reports.deciding import LABELS
from reports.model import Report

RECORDS: Final = "a record, or a folder of records"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a page, or write it, and return the exit status that it comes to.

    0: passed, or with warnings; 1: a failure or a change that gates; 2: records that cannot be
    used, or a wrong command line; 5: not decided, for something was not measured.
    """
    options = _parser().parse_args(arguments)
    if options.command == "show":
        report = show(options.record)
    else:
        report = compare(
            options.base,
            options.head,
            options.history,
            commit=options.commit,
            required=options.require,
            accepted=options.accept,
        )
    page = FORMATS[options.format](report)
    if options.output is None:
        sys.stdout.write(page)
        return report.exit_status
    try:
        options.output.write_text(page, encoding="utf-8")
    except OSError as error:
        print(
            f"{options.output}: {error.strerror}; name a file that can be written", file=sys.stderr
        )
        return 2
    print(f"{options.format} page: {options.output}")
    return report.exit_status


def _json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"


def _terminal(report: Report) -> str:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return terminal.render(report, colour=colour)


FORMATS: Final[dict[str, Callable[[Report], str]]] = {
    "terminal": _terminal,
    "markdown": markdown.render,
    "html": html.render,
    "json": _json,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    page = argparse.ArgumentParser(add_help=False)
    page.add_argument("--format", choices=FORMATS, default="terminal", help="default: terminal")
    page.add_argument(
        "--output", type=Path, metavar="FILE", help="where to write the page, not to the terminal"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("show", parents=[page], help="a page on one side")
    one.add_argument("record", type=Path, metavar="RECORD", help=RECORDS)
    two = commands.add_parser("compare", parents=[page], help="a page on head against base")
    two.add_argument("base", type=Path, metavar="BASE", help=RECORDS)
    two.add_argument("head", type=Path, metavar="HEAD", help=RECORDS)
    two.add_argument(
        "--history",
        type=Path,
        metavar="FOLDER",
        help="records of base against base, from which each timing has its limit",
    )
    two.add_argument("--commit", default="", metavar="SHA", help="the commit HEAD has to be of")
    two.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a kind of device that HEAD has to have been measured on, such as cuda",
    )
    two.add_argument(
        "--accept",
        action="append",
        default=[],
        choices=LABELS,
        help="what a reviewer accepts; never a failure",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
