"""False alarms: the main job on the honest variants, over many seeds. None may fail.

Exit codes: 0, none did; 1, one did, or a run came to no end; 2, a mistake on the command line.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from rich import box
from rich.table import Table

from golden.record import Footer, Line, Verdict
from suites import recording
from suites.mutation import honest
from suites.session import ROOT

SUITES: Final = ("suites/test_golden.py", "suites/witness", "suites/xattention")


@dataclass
class Tally:
    """What became of one variant, all seeds together."""

    runs: int = 0
    cases: int = 0
    ratio: float = 0.0  # the largest |error| / bound

    def add(self, verdict: Verdict) -> None:
        self.cases += verdict.cases
        self.ratio = max(self.ratio, verdict.error_ratio or 0.0)


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
    print(recording.render(_table(tallies)))
    print("\n".join(failures))
    return 1 if failures else 0


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
        if verdict.status not in ("passed", "not-run"):
            yield f"seed {seed}: {verdict.status}: {verdict.test}: {verdict.detail}"
    for tally in tallies.values():
        tally.runs += 1


def _table(tallies: dict[str, Tally]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("variant")
    for heading in ("runs", "cases", "|error| / bound"):
        table.add_column(heading, justify="right")
    for name, tally in tallies.items():
        table.add_row(name, str(tally.runs), f"{tally.cases:,}", f"{tally.ratio:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
