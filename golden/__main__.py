"""``python -m golden lint | format | schema``: keep the golden files in order."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from golden.files import ROOT
from golden.lint import lint
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
    command = parser.parse_args(arguments).command
    problems = _COMMANDS[command](root)
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
