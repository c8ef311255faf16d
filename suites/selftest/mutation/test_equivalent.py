"""The list of equivalents: what is read, what is stale, and that ours is about our mutants."""

from pathlib import Path

import pytest

from suites.mutation import equivalent
from suites.mutation.edits import Edit, text_of
from suites.mutation.engine import Outcome
from suites.mutation.equivalent import Equivalent, EquivalentError
from suites.mutation.mutants import Mutant, mutants

FILE = "witness/torch_reference.py"
START = text_of(FILE).index("rank < budget")
MUTANT = Mutant(
    "torch", FILE, Edit("f", "relational", START, START + 13, "rank <= budget", 3), frozenset()
)
NAME = f"{FILE}:f:relational:3"
SURVIVED = {NAME: Outcome("survived")}


def entry(*diff: str) -> dict[str, Equivalent]:
    return {NAME: Equivalent(NAME, diff or MUTANT.diff, "a reason")}


def test_a_mutant_shows_the_line_that_goes_and_the_one_that_comes() -> None:
    assert MUTANT.name == NAME
    assert MUTANT.diff == (
        "-row, s = (emitted & (rank < budget)).nonzero(as_tuple=True)",
        "+row, s = (emitted & (rank <= budget)).nonzero(as_tuple=True)",
    )


def test_an_entry_of_a_mutant_that_survives_is_no_problem() -> None:
    assert equivalent.problems(entry(), [MUTANT], SURVIVED) == []
    assert equivalent.problems(entry(), [MUTANT], {}) == []


@pytest.mark.parametrize(
    ("entries", "every", "outcomes", "says"),
    [
        (entry(), [MUTANT], {NAME: Outcome("killed")}, "it was killed"),
        (entry(), [MUTANT], {NAME: Outcome("timed-out")}, "it was timed-out"),
        (entry(), [MUTANT], {NAME: Outcome("stillborn")}, "it was stillborn"),
        (entry(), [], {}, "no such mutant"),
        (entry("-a", "+b"), [MUTANT], SURVIVED, "changes other lines now"),
    ],
)
def test_what_is_stale_is_named(
    entries: dict[str, Equivalent],
    every: list[Mutant],
    outcomes: dict[str, Outcome],
    says: str,
) -> None:
    (problem,) = equivalent.problems(entries, every, outcomes)
    assert problem.startswith(f"{NAME}: ")
    assert says in problem


@pytest.mark.parametrize(
    "text",
    [
        "[[equivalent]",
        '[[equivalent]]\nmutant = "a"\ndiff = []\n',
        '[[equivalent]]\nmutant = "a"\ndiff = []\nreason = "c"\nwhy = "d"\n',
    ],
)
def test_a_file_that_is_not_one_is_refused_in_a_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "equivalent.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EquivalentError, match=r"^equivalent\.toml: .*; mend it$"):
        equivalent.load(path)


def test_our_equivalents_are_of_mutants_that_there_are_and_give_a_reason() -> None:
    entries = equivalent.load()
    assert entries
    assert equivalent.problems(entries, mutants(), {}) == []
    assert all(len(each.reason.split()) >= 8 for each in entries.values())
