"""``python -m golden lint | format | schema | promote``: keep the golden files in order."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from golden.files import ROOT
from golden.lint import lint
from golden.promote import promote
from golden.write import write_schemas, write_vectors_and_lock

_COMMANDS = {"lint": lint, "format": write_vectors_and_lock, "schema": write_schemas}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run one command and print its problems, a line each, then their number.

    Returns 0 when there are none and 1 otherwise; argparse exits with 2 for a wrong command line.
    """
    parser = argparse.ArgumentParser(prog="python -m golden", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("lint", help="check every rule of the golden files")
    commands.add_parser("format", help="write the vectors canonically and lock new ids")
    commands.add_parser("schema", help="write the JSON Schemas from the types")
    promotion = commands.add_parser("promote", help="make a counterexample a regression vector")
    promotion.add_argument("file", type=Path, metavar="FILE", help="as a failing run left it")
    promotion.add_argument("--id", required=True, help="of the vector: a slug that is never reused")
    promotion.add_argument("--note", required=True, help="why the vector exists")
    asked = parser.parse_args(arguments)
    if asked.command == "promote":
        problems = promote(asked.file, asked.id, asked.note, root)
    else:
        problems = _COMMANDS[asked.command](root)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
