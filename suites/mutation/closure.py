"""Closure: no contract and no note of a vector is there for nothing.

For each contract there is a mutant of the torch reference of which, for some operation, no tests
fail but its own; and for each note a mutant that a vector of it finds. `closure.toml` makes mutants
where no rule makes a fitting one, and says why where none can be. It is judged by a run of all
tests on each mutant.
"""

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from golden.model import Operation, Vector
from golden.record import Mutant

PATH: Final = Path(__file__).with_suffix(".toml")
FOR: Final = "torch"  # whose mutants go through all tests: the fastest


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant that a person made. ``changes``: what the ``file`` below `kernels` says, once, and
    what is to stand there. ``contract``: the one that it departs from.
    """

    name: str
    contract: str
    file: str
    changes: tuple[tuple[str, str], ...]


class Excuse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why there is no mutant for what is ``named``: contracts, or notes by operation."""

    named: tuple[str, ...]
    reason: str


class Closure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    made: tuple[Made, ...] = ()
    contracts: tuple[Excuse, ...] = ()
    notes: tuple[Excuse, ...] = ()


def load() -> Closure:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads(PATH.read_text(encoding="utf-8")), Closure)


def found_alone(found: Iterable[Mutant], contracts: Iterable[str]) -> dict[str, list[str]]:
    """By contract the mutants of which, for some operation, all tests that fail are tests of it."""
    alone: dict[str, list[str]] = {contract: [] for contract in contracts}
    for line in whole(found):
        for contract in set().union(*(_common(tests) for tests in line.kills.values())):
            alone[contract].append(line.mutant)
    return alone


def whole(found: Iterable[Mutant]) -> Iterator[Mutant]:
    """Those that went through all tests."""
    return (line for line in found if line.implementation == FOR)


def _common(tests: Iterable[tuple[str, ...]]) -> set[str]:
    """The contracts that all of some tests are about."""
    return set.intersection(*map(set, tests))


def found_by_note(
    found: Iterable[Mutant], every: Iterable[tuple[Operation, Vector]]
) -> dict[str, list[str]]:
    """By operation and note the mutants that a vector of it finds. ``every``: the vectors."""
    notes: dict[str, set[str]] = {}
    for operation, vector in every:
        for note in vector.notes:
            notes.setdefault(f"{operation}/{note}", set()).add(f"{operation}/{vector.id}")
    lines = list(whole(found))
    return {
        note: [line.mutant for line in lines if not {*line.vectors}.isdisjoint(vectors)]
        for note, vectors in notes.items()
    }


def gaps(
    found: Sequence[Mutant],
    contracts: Iterable[str],
    vectors: Iterable[tuple[Operation, Vector]],
) -> list[str]:
    """What is not closed, a line each, and what is said there of what is."""
    known = load()
    return [
        *_gaps(found_alone(found, contracts), known.contracts),
        *_gaps(found_by_note(found, vectors), known.notes),
    ]


def _gaps(closers: Mapping[str, Collection[str]], excuses: Iterable[Excuse]) -> list[str]:
    excused = {name for excuse in excuses for name in excuse.named}
    missing = f"no mutant shows what it is for; make one in {PATH.name}, or say why none can"
    return [
        *(f"{name}: {missing}" for name in closers if not closers[name] and name not in excused),
        *(
            f"{name}: {min(mutants)} shows what it is for; remove it from {PATH.name}"
            for name, mutants in closers.items()
            if mutants and name in excused
        ),
        *(
            f"{name}: there is no such name; mend {PATH.name}"
            for name in sorted(excused - closers.keys())
        ),
    ]
