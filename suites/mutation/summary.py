"""What a run prints, and what it leaves in the record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec
from rich import box
from rich.table import Table

from golden.record import Footer, Header, Line
from golden.record import Mutant as MutantLine
from suites.mutation.engine import Outcome
from suites.mutation.equivalent import Equivalent
from suites.mutation.mutants import Mutant

KINDS: Final = ("killed", "timed-out", "survived", "equivalent", "out-of-reach")


def lines(
    outcomes: Mapping[Mutant, Outcome], equivalents: Mapping[str, Equivalent]
) -> list[MutantLine]:
    """A line of the record for each mutant, except those that were never born."""
    found = []
    for mutant, outcome in outcomes.items():
        if outcome.kind != "stillborn":
            known = equivalents.get(mutant.name) if outcome.kind == "survived" else None
            line = MutantLine(
                implementation=mutant.implementation,
                mutant=mutant.name,
                outcome=_explained(known) if known else outcome.kind,
                contracts=outcome.contracts,
                cases=outcome.cases,
                seconds=round(outcome.seconds, 3),
                kills=outcome.kills,
                vectors=outcome.vectors,
            )
            found.append(line)
    return sorted(found, key=lambda line: (line.implementation, line.mutant))


def _explained(known: Equivalent) -> Literal["equivalent", "out-of-reach"]:
    return "out-of-reach" if known.needs else "equivalent"


def write(path: Path, header: Header, found: Sequence[MutantLine], exit_status: int) -> None:
    """A record without verdicts: what a test says of a mutant is said of nobody's kernel."""
    record: list[Line] = [header, *found, Footer({}, 0, exit_status)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in record))


def by_implementation(found: Sequence[MutantLine]) -> Table:
    """How many mutants met which end, and how fast they died."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    for heading in (
        *KINDS,
        "cases to the kill\nmedian",
        "\nworst",
        "seconds to the kill\nmedian",
        "\nworst",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    names = list(dict.fromkeys(line.implementation for line in found))
    for name in [*names, "all"] if len(names) > 1 else names:
        theirs = [line for line in found if name in (line.implementation, "all")]
        kinds = Counter(line.outcome for line in theirs)
        killed = [line for line in theirs if line.outcome in ("killed", "timed-out")]
        cases = [line.cases for line in killed] or [0]
        seconds = [line.seconds for line in killed] or [0.0]
        table.add_row(
            name,
            *(str(kinds[kind]) for kind in KINDS),
            f"{median(cases):.0f}",
            f"{max(cases)}",
            f"{median(seconds):.1f}",
            f"{max(seconds):.1f}",
        )
    return table


def by_contract(found: Sequence[MutantLine], contracts: Sequence[str]) -> Table:
    """How many mutants the tests of each contract were the first to kill.

    A vector counts for each contract that it names.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("contract", no_wrap=True)
    names = list(dict.fromkeys(line.implementation for line in found))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    counts = Counter((line.implementation, id_) for line in found for id_ in line.contracts)
    for id_ in contracts:
        row = [counts[name, id_] for name in names]
        if any(row):
            table.add_row(id_, *(str(count) if count else "" for count in row))
    return table


def shown(mutant: Mutant) -> str:
    """A mutant's name and what it changes."""
    return "\n".join([f"{mutant.name} ({mutant.implementation})", *(f"  {d}" for d in mutant.diff)])
