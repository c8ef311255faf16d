"""False alarms: the main job on the honest variants, over many seeds. None may fail.

What became of each variant is left in .conformance/honest.jsonl, whether or not it all went well.
Exit codes: 0, none did; 1, one did, or a run came to no end; 2, a mistake on the command line.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from suites.session import ROOT

RECORD: Final = Path(".conformance/honest.jsonl")
SUITES: Final = ("suites/test_golden.py", "suites/witness", "suites/xattention")


@dataclass
class Tally:
    """What became of one variant, all seeds together."""

    runs: int = 0
    cases: int = 0
    failures: int = 0
    error_ratio: float = 0.0  # the largest

    def add(self, verdict: Verdict) -> None:
        self.cases += verdict.cases
        self.failures += _failed(verdict)
        self.error_ratio = max(self.error_ratio, verdict.error_ratio or 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m suites.mutation.honest", description=__doc__)
    parser.add_argument("variant", nargs="*", help=f"{', '.join(honest.VARIANTS)}; all by default")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 1), metavar=("A", "B"))
    parser.add_argument("-n", dest="jobs", default="auto", metavar="N", help="for pytest-xdist")
    options = parser.parse_args(arguments)
    seeds = range(*options.seeds)
    if not seeds:
        parser.error(f"--seeds {seeds.start} {seeds.stop}: from A up to, not including, B")
    for unknown in {*options.variant} - {*honest.VARIANTS}:
        parser.error(f"{unknown}: no such variant; use one of {', '.join(honest.VARIANTS)}")
    tallies = {name: Tally() for name in options.variant or honest.VARIANTS}
    failures = [problem for seed in seeds for problem in _run(seed, tallies, options.jobs)]
    status = 1 if failures else 0
    write(RECORD, tallies, seeds, sys.argv[1:], status)
    print(recording.render(_table(tallies)))
    print("\n".join([*failures, f"record: {RECORD}"]))
    return status


def _failed(verdict: Verdict) -> bool:
    return verdict.status not in ("passed", "not-run")


def _run(seed: int, tallies: dict[str, Tally], jobs: str) -> Iterator[str]:
    """One run of the main job, added to the tallies; what failed, a line each."""
    modules = {f"{honest.__name__}.{name}": name for name in tallies}
    with TemporaryDirectory() as folder:
        record = Path(folder, "record.jsonl")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", jobs]
        command += [f"--impl={module}" for module in modules]
        command += [f"--seed={seed}", f"--record={record}", *SUITES]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        lines = record.read_bytes().splitlines() if record.exists() else []
    found = [msgspec.json.decode(line, type=Line) for line in lines]
    verdicts = [line for line in found if isinstance(line, Verdict)]
    statuses = Counter(verdict.status for verdict in verdicts)
    print(
        f"seed {seed}: {', '.join(f'{n} {status}' for status, n in statuses.items())}", flush=True
    )
    if not found or not isinstance(found[-1], Footer):
        yield f"seed {seed}: the run came to no end; `python -m pytest --seed {seed}` shows why"
    for verdict in verdicts:
        if verdict.implementation in modules:
            tallies[modules[verdict.implementation]].add(verdict)
        if _failed(verdict):
            yield f"seed {seed}: {verdict.status}: {verdict.test}: {verdict.detail}"
    for tally in tallies.values():
        tally.runs += 1


def write(
    path: Path,
    tallies: Mapping[str, Tally],
    seeds: range,
    arguments: Sequence[str],
    status: int,
) -> None:
    header = recording.header(ROOT, torch.device("cpu"), seeds.start, tallies, arguments)
    lines: list[Line] = [
        Measurement(name, "main job", quantity, f"seeds {seeds.start} to {seeds.stop - 1}", value)
        for name, tally in tallies.items()
        for quantity, value in asdict(tally).items()
    ]
    cases = sum(tally.cases for tally in tallies.values())
    recording.begin(path, header)
    with path.open("ab") as file:
        file.writelines(
            msgspec.json.encode(line) + b"\n" for line in [*lines, Footer({}, cases, status)]
        )


def _table(tallies: dict[str, Tally]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("variant")
    for heading in ("runs", "cases", "failures", "|error| / bound"):
        table.add_column(heading, justify="right")
    for name, tally in tallies.items():
        table.add_row(
            name,
            str(tally.runs),
            f"{tally.cases:,}",
            str(tally.failures),
            f"{tally.error_ratio:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
