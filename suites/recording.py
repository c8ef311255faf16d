"""From test reports to the record and to the matrix that closes a run."""

import io
import platform
import subprocess
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from golden.record import (
    SCHEMA,
    SEVERITY,
    Footer,
    Header,
    Line,
    Measurement,
    Mutant,
    Pair,
    Verdict,
)

WIDTH, WIDEST = 120, 1000  # characters
DISTRIBUTION = "sparse-conformance"
TOOLS = ("torch", "triton", "numpy", "hypothesis", "pytest")
STYLES: dict[str, str] = {"passed": "green", "deviates": "green", "unsupported": "yellow"}


Attached = Verdict | Measurement | Pair | Mutant
ORDER: dict[type[Attached], tuple[str, ...]] = {  # of the record: the fields that it goes by
    Verdict: ("test", "implementation"),
    Measurement: ("subject", "implementation", "quantity", "variant"),
    Pair: ("test", "implementation", "phase", "number"),
    Mutant: ("implementation", "mutant"),
}


class Kind(NamedTuple):
    """What some measurements are about: the title of their table, and what its lines are."""

    title: str
    subjects: str


REAL_ROWS = Kind(
    "real rows: mean over the layers and heads of a recorded model, "
    "all at the budget of the policy",
    "context",
)
UNDECIDABLE = Kind(
    "undecidable decisions, % of those that mass decides: continuous random inputs", "operation"
)
PEAKS = Kind("what a call holds at its peak, beside its inputs: four times the length", "operation")
KINDS = {  # by quantity
    "coverage": REAL_ROWS,
    "recall": REAL_ROWS,
    "undecidable": UNDECIDABLE,
    "peak KiB": PEAKS,
}


def header(
    folder: Path, device: torch.device, seed: int, names: Iterable[str], arguments: Iterable[str]
) -> Header:
    """``folder``: where the run was started."""
    return Header(
        schema=SCHEMA,
        version=_version(DISTRIBUTION)
        or f"checkout {_commit(Path(__file__).parent)[:12]}".rstrip(),
        commit=_commit(folder),
        versions={"python": platform.python_version()}
        | {tool: version for tool in TOOLS if (version := _version(tool))},
        device=describe(device),
        seed=seed,
        implementations=tuple(names),
        arguments=tuple(arguments),
    )


def describe(device: torch.device) -> str:
    """The device as a person names it, and how Triton runs on it."""
    if device.type == "cuda" and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu":
        return f"cpu ({platform.machine()}, Triton interpreted)"
    return str(device)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _commit(folder: Path) -> str:
    """The commit of a folder's checkout; nothing where it is in none, or git is missing."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def begin(path: Path, header: Header) -> None:
    """Leave a record without a footer, which says that the run was cut short, until it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(header) + b"\n")


class Recording:
    """What the tests of one run left, in the order in which they ended."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.measurements: list[Measurement] = []
        self.pairs: list[Pair] = []
        self.mutants: list[Mutant] = []

    def add(self, properties: Iterable[tuple[str, object]]) -> None:
        """Take what the plug-in attached to a test report."""
        for name, value in properties:
            for kind in ORDER:
                if name == _tag(kind):
                    self._lines(kind).append(msgspec.convert(value, kind))

    def _lines(self, kind: type[Attached]) -> list[Attached]:
        lines: list[Attached] = getattr(self, f"{_tag(kind)}s")
        return lines

    @property
    def cases(self) -> int:
        return sum(verdict.cases for verdict in self.verdicts)

    @property
    def compared_floats(self) -> bool:
        return any(verdict.error_ratio is not None for verdict in self.verdicts)

    def not_run(self) -> Iterable[tuple[str, str]]:
        """Each implementation that was not run, or not in all, with the reason."""
        return dict.fromkeys(
            (verdict.implementation, verdict.detail)
            for verdict in self.verdicts
            if verdict.status == "not-run"
        )

    def measured(self, names: Container[str]) -> bool:
        """Whether a verdict on one of these implementations says more than that it was not run."""
        return any(
            verdict.implementation in names and verdict.status not in ("not-run", "unsupported")
            for verdict in self.verdicts
        )

    def write(self, path: Path, header: Header, exit_status: int) -> None:
        """One line at a time, in an order that does not depend on the number of workers."""
        statuses = Counter(verdict.status for verdict in self.verdicts)
        lines: list[Line] = [
            header,
            *(
                line
                for kind, fields in ORDER.items()
                for line in sorted(self._lines(kind), key=attrgetter(*fields))
            ),
            Footer(dict(sorted(statuses.items())), self.cases, exit_status),
        ]
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def matrix(self, order: Iterable[str], names: Iterable[str]) -> Table:
        """Contract by implementation: the worst status, and the number of cases."""
        seen = {verdict.implementation for verdict in self.verdicts}
        columns = [name for name in names if name in seen]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("contract", no_wrap=True)
        for name in columns:
            table.add_column(name, no_wrap=True)
        for contract in order:
            cells = [self._cell(contract, name) for name in columns]
            if any(cells):
                table.add_row(contract, *cells)
        return table

    def figures(self) -> Iterator[tuple[str, Table]]:
        """A title and a table for the measurements of each kind, a line a subject."""
        kinds: dict[Kind, list[Measurement]] = {}
        for measurement in self.measurements:
            quantity = measurement.quantity
            kind = KINDS.get(quantity, Kind(quantity, "subject"))
            kinds.setdefault(kind, []).append(measurement)
        for kind, measurements in sorted(kinds.items()):
            yield kind.title, _table(kind.subjects, measurements)

    def _cell(self, contract: str, implementation: str) -> Text:
        verdicts = [
            verdict
            for verdict in self.verdicts
            if verdict.implementation == implementation and contract in verdict.contracts
        ]
        if not verdicts:
            return Text("")
        status = min((v.status for v in verdicts), key=SEVERITY.index)
        cases = sum(verdict.cases for verdict in verdicts)
        ratios = [verdict.error_ratio for verdict in verdicts if verdict.error_ratio is not None]
        ratio = f" {max(ratios):.2f}" if ratios else ""
        return Text(f"{status} {cases:,}{ratio}", style=STYLES.get(status, "red"))


def _table(subjects: str, measurements: list[Measurement]) -> Table:
    """A line a subject and implementation, a column a quantity and variant."""
    columns = list(dict.fromkeys((m.quantity, m.variant) for m in measurements))
    columns.sort(key=lambda column: column[0])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (subjects, "implementation"):
        table.add_column(heading, no_wrap=True)
    for quantity, variant in columns:
        table.add_column(f"{quantity}\n{variant}", justify="right", no_wrap=True)
    values = {
        (m.subject, m.implementation, m.quantity, m.variant): f"{m.value:.3f}" for m in measurements
    }
    lines = {(subject, name) for subject, name, _, _ in values}
    for line in sorted(lines, key=lambda line: (len(line[0]), *line)):  # 64 before 128
        table.add_row(*line, *(values.get((*line, *column), "") for column in columns))
    return table


def attach(line: Attached) -> tuple[str, object]:
    """A line as a report property; report properties travel from worker to controller as data."""
    return _tag(type(line)), msgspec.to_builtins(line)


def _tag(kind: type[Attached]) -> str:
    return kind.__name__.lower()


def render(renderable: RenderableType, *, colour: bool = False, width: int | None = None) -> str:
    """Text for pytest's terminal, which may be a log.

    ``width``: characters at most; without it, as wide as it takes to cut nothing off.
    """
    out = io.StringIO()
    console = Console(
        file=out, width=WIDEST, force_terminal=colour, no_color=not colour, markup=False
    )
    console.width = width or max(WIDTH, console.measure(renderable).maximum)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip()
