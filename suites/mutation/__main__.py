"""Mutants of the kernels by rule, and whether the suite finds them: ``python -m suites.mutation``.

Exit codes: 0, every mutant was killed or is listed in equivalent.toml; 1, one survived that is not,
or an entry there is stale, or the suite fails without a mutant, or, with --matrix, a contract or a
note of a vector is not closed; 2, a mistake on the command line.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NoReturn
from zlib import crc32

import torch

from golden import files
from kernels.cuda import ToolchainMissing, host
from suites import recording
from suites.mutation import closure, equivalent, kept, summary
from suites.mutation.engine import ROOT, Depth, Engine, Outcome, run
from suites.mutation.equivalent import Equivalent, EquivalentError
from suites.mutation.mutants import FILES, Mutant, mutants

RECORD: Final = Path(".conformance/mutants.jsonl")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage."""
        self.exit(2, f"{self.prog}: {message}\n")


class Keeping(Engine):
    """Says what becomes of each mutant as it happens, and keeps it."""

    def ended(self, mutant: Mutant, outcome: Outcome) -> None:
        kept.keep(mutant, self.depth(mutant), outcome)
        number = f"{len(self.outcomes)}/{len(self.mutants)}"
        by = f" by {outcome.test.rpartition('::')[2]}" if outcome.test else ""
        print(f"{number} {outcome.kind} {mutant.name}{by}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, number in (("-j", options.jobs), ("--sample", options.sample)):
        if number is not None and number < 1:
            parser.error(f"{name} {number}: give a number of at least 1")
    try:
        equivalents = equivalent.load()
    except EquivalentError as error:
        parser.error(str(error))
    every = mutants()
    selected = _selected(every, options, equivalents)
    if not selected:
        parser.error("no mutant has such a name; --list shows them all")
    if options.list:
        print("\n".join(map(summary.shown, selected)))
        return 0

    def depth(mutant: Mutant) -> Depth:
        if mutant.name in equivalents:
            return "glance"
        return "all" if options.matrix and mutant.implementation == closure.FOR else "failure"

    known = {mutant: found for mutant in selected if (found := kept.find(mutant, depth(mutant)))}
    missing = [mutant for mutant in selected if mutant not in known]
    if missing:
        try:
            if any(mutant.file.endswith(".cu") for mutant in missing):
                host.compiler()
        except ToolchainMissing as error:
            parser.error(str(error))
        engine = Keeping(missing, options.jobs, depth)
        if run(missing, engine):
            return 1
        known |= {mutant: engine.outcomes[mutant.name] for mutant in missing}
    outcomes = {mutant: known[mutant] for mutant in selected}
    matrix = {mutant for mutant in every if mutant.implementation == closure.FOR}
    closed = options.matrix and matrix <= {*selected}
    return report(outcomes, every, equivalents, sys.argv[1:], closed=closed)


def _parser() -> Parser:
    parser = Parser(prog="python -m suites.mutation", description=__doc__)
    parser.add_argument("mutant", nargs="*", help="names, or patterns of them; all by default")
    parser.add_argument("--impl", action="append", choices=FILES, help="may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, always the same")
    parser.add_argument("--list", action="store_true", help="show them, and test none")
    parser.add_argument(
        "--matrix",
        action="store_true",
        help=f"run all tests on each mutant of {closure.FOR}, and say what no contract finds alone",
    )
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count(), metavar="N")
    return parser


def _selected(
    every: Sequence[Mutant], options: argparse.Namespace, equivalents: Mapping[str, Equivalent]
) -> list[Mutant]:
    found = [
        mutant
        for mutant in every
        if mutant.implementation in (options.impl or FILES)
        and any(fnmatchcase(mutant.name, each) for each in options.mutant or ["*"])
    ]
    if options.sample:  # of those that are to be killed
        wrong = [mutant for mutant in found if mutant.name not in equivalents]
        drawn = sorted(wrong, key=lambda mutant: crc32(mutant.name.encode()))[: options.sample]
        found = [mutant for mutant in found if mutant in drawn]
    return found


def report(
    outcomes: Mapping[Mutant, Outcome],
    every: Sequence[Mutant],
    equivalents: Mapping[str, Equivalent],
    arguments: Sequence[str],
    *,
    closed: bool = False,
) -> int:
    """Print what became of the mutants and write the record; the exit code.

    ``closed``: whether closure is to be judged, for the outcomes are a whole matrix.
    """
    found = summary.lines(outcomes, equivalents)
    by_name = {mutant.name: outcome for mutant, outcome in outcomes.items()}
    stale = equivalent.problems(equivalents, every, by_name)
    survived = [line.mutant for line in found if line.outcome == "survived"]
    contracts = list(files.load_contracts())
    gaps = closure.gaps(found, contracts, files.all_vectors()) if closed else []
    status = 1 if stale or survived or gaps else 0

    print(recording.render(summary.by_contract(found, contracts)))
    print("mutants that the tests of a contract were the first to kill\n")
    print(recording.render(summary.by_implementation(found)))
    for mutant, outcome in outcomes.items():
        if mutant.name in survived:
            print(f"\nsurvived: {summary.shown(mutant)}")
        elif outcome.kind == "timed-out":
            print(f"\ntimed-out: {summary.shown(mutant)}")
    for problem in stale:
        print(f"\nequivalent: {problem}")
    for gap in gaps:
        print(f"\nclosure: {gap}")
    stillborn = len(outcomes) - len(found)
    names = [name for name in FILES if any(m.implementation == name for m in outcomes)]
    header = recording.header(ROOT, torch.device("cpu"), 0, names, arguments)
    summary.write(RECORD, header, found, status)
    print(f"\n{len(found)} mutants, {stillborn} more that do not compile; record: {RECORD}")
    return status


if __name__ == "__main__":
    sys.exit(main())
