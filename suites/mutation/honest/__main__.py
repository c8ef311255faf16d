"""False alarms: the main job on the honest variants, with cases generated from many seeds.

None may fail. What became of each variant is left in .conformance/honest.jsonl. Exit codes: 0, none
did; 1, one did, or the main job came to no end; 2, a mistake on the command line.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import torch
from rich import box
from rich.table import Table

from golden.record import Footer, Line, Measurement, Verdict
from suites import recording
from suites.mutation import honest
from suites.mutation.honest import GENERATED, GIVEN
from suites.mutation.honest.together import SUITES, Tally, run
from suites.session import ROOT

RECORD: Final = Path(".conformance/honest.jsonl")

Tallies = dict[str, Tally]  # by variant


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m suites.mutation.honest", description=__doc__)
    parser.add_argument("variant", nargs="*", help=f"{', '.join(honest.VARIANTS)}; all by default")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 1), metavar=("A", "B"))
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count(), metavar="N")
    options = parser.parse_args(arguments)
    seeds = range(*options.seeds)
    if not seeds:
        parser.error(f"--seeds {seeds.start} {seeds.stop}: from A up to, not including, B")
    if options.jobs < 1:
        parser.error(f"-j {options.jobs}: give a number of at least 1")
    for unknown in {*options.variant} - {*honest.VARIANTS}:
        parser.error(f"{unknown}: no such variant; use one of {', '.join(honest.VARIANTS)}")
    names = options.variant or honest.VARIANTS
    try:
        found = {
            GIVEN: given(names, options.jobs),
            GENERATED: generated(names, seeds, options.jobs),
        }
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    status = write(RECORD, found, seeds, sys.argv[1:])
    print(recording.render(_table(found)))
    for tallies in found.values():
        for tally in tallies.values():
            print("".join(f"{failure}\n" for failure in tally.failures), end="")
    print(f"record: {RECORD}")
    return status


def given(names: Sequence[str], jobs: int, tests: Sequence[str] = SUITES) -> Tallies:
    """What the main job does not generate: golden vectors, examples, all small rows."""
    with TemporaryDirectory() as folder:
        record = Path(folder, "record.jsonl")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", str(jobs)]
        command += [f"--impl={_module(name)}" for name in names]
        command += ["-m", "not hypothesis", f"--record={record}", *tests]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        lines = record.read_bytes().splitlines() if record.exists() else []
    found = [msgspec.json.decode(line, type=Line) for line in lines]
    if not found or not isinstance(found[-1], Footer):
        raise RuntimeError("the main job came to no end; `python -m pytest` shows why")
    return tallied(names, found)


def tallied(names: Sequence[str], lines: Iterable[Line]) -> Tallies:
    """Of one run's record, what it says of the variants."""
    tallies = {name: Tally(1) for name in names}
    for line in lines:
        name = line.implementation.rpartition(".")[2] if isinstance(line, Verdict) else ""
        if isinstance(line, Verdict) and name in tallies:
            wrong = line.status not in ("passed", "not-run")
            failure = f"{line.status}: {line.test}: {line.detail}" if wrong else ""
            tallies[name].count(line.cases, line.error_ratio, failure)
    return tallies


def generated(
    names: Sequence[str], seeds: Sequence[int], jobs: int, tests: Sequence[str] = SUITES
) -> Tallies:
    """What the main job generates from each of the seeds."""
    tallies = {name: Tally() for name in names}
    parts = [seeds[at::jobs] for at in range(min(jobs, len(seeds)))]
    with ProcessPoolExecutor(len(parts), get_context("spawn")) as processes:
        for found in processes.map(partial(run, [*map(_module, names)], tests=tests), parts):
            for name, tally in tallies.items():
                tally.add(found[_module(name)])
    return tallies


def _module(name: str) -> str:
    return f"{honest.__name__}.{name}"


def _figures(tally: Tally) -> dict[str, float]:
    failures = len(tally.failures)
    return {
        "runs": tally.runs,
        "cases": tally.cases,
        "failures": failures,
        "error_ratio": tally.error_ratio,
    }


def write(path: Path, found: Mapping[str, Tallies], seeds: range, arguments: Sequence[str]) -> int:
    """The exit code, which is in the record as well."""
    every = [(kind, *each) for kind, tallies in found.items() for each in tallies.items()]
    header = recording.header(ROOT, torch.device("cpu"), seeds.start, found[GENERATED], arguments)
    lines: list[Line] = [
        Measurement(name, kind, quantity, f"seeds {seeds.start} to {seeds.stop - 1}", value)
        for kind, name, tally in every
        for quantity, value in _figures(tally).items()
    ]
    status = int(any(tally.failures for _, _, tally in every))
    cases = sum(tally.cases for _, _, tally in every)
    recording.begin(path, header)
    with path.open("ab") as file:
        file.writelines(
            msgspec.json.encode(line) + b"\n" for line in [*lines, Footer({}, cases, status)]
        )
    return status


def _table(found: Mapping[str, Tallies]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cases")
    table.add_column("variant")
    for heading in ("runs", "cases", "failures", "|error| / bound"):
        table.add_column(heading, justify="right")
    for kind, tallies in found.items():
        for name, tally in tallies.items():
            runs, cases, failures, ratio = _figures(tally).values()
            table.add_row(kind, name, f"{runs}", f"{cases:,}", f"{failures}", f"{ratio:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
