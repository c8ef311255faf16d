"""Mutants that no test finds: what says why, and whether it still holds."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from suites.mutation.engine import Outcome
from suites.mutation.mutants import Mutant

PATH: Final = Path(__file__).with_name("equivalent.toml")


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant that does what the specification says, as its ``reason`` shows.

    ``diff`` is what it changes, so that a reason is not taken for one of another change. ``needs``:
    what it takes to see that it is wrong after all, and no machine of this suite has.
    """

    mutant: str
    diff: tuple[str, ...]
    reason: str
    needs: str = ""


class EquivalentError(ValueError):
    """A file of equivalents that cannot be read: one line."""


def load(path: Path = PATH) -> dict[str, Equivalent]:
    """The equivalents by the mutant's name. Raises EquivalentError."""
    try:
        text = tomllib.loads(path.read_text(encoding="utf-8"))
        found = msgspec.convert(text.get("equivalent", []), tuple[Equivalent, ...])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise EquivalentError(f"{path.name}: {error}; mend it") from error
    return {equivalent.mutant: equivalent for equivalent in found}


def problems(
    equivalents: Mapping[str, Equivalent],
    every: Sequence[Mutant],
    outcomes: Mapping[str, Outcome],
) -> list[str]:
    """What is stale, a line each: entries of no mutant, of another change, or of a killed one."""
    diffs = {mutant.name: mutant.diff for mutant in every}
    found = []
    for name, equivalent in equivalents.items():
        outcome = outcomes.get(name)
        if name not in diffs:
            found.append(f"{name}: there is no such mutant; remove it from {PATH.name}")
        elif diffs[name] != equivalent.diff:
            found.append(f"{name}: it changes other lines now; look at it again in {PATH.name}")
        elif outcome and outcome.kind != "survived":
            found.append(f"{name}: it was {outcome.kind}; remove it from {PATH.name}")
    return found
