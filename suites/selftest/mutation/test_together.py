"""Several implementations on the same examples: what is shared, what is not, and what fails."""

import re
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import files
from golden.record import Verdict
from suites.cases import INDICES, Case
from suites.mutation import honest
from suites.mutation.honest import together
from suites.mutation.honest.together import Tally
from suites.selftest.mutation.elsewhere import elsewhere
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

TILES: Final = f"{honest.__name__}.tiles"
DOUBLE: Final = f"{honest.__name__}.double"
WRONG: Final = "examples.wrong.wrong"
TESTS: Final = str(ROOT / "suites" / "witness" / "test_indices.py")
NOTHING: Final = str(ROOT / "suites" / "test_replay.py")  # with it, pytest finds the plug-in


# Of an operation that the wrong one has, and that the others do right.
ODD: Final = """
from pathlib import Path

import hypothesis
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import files
from suites.cases import INDICES, Case
from suites.contracts import operations
from suites.runner import Runner

CASE = next(Case(o, v.inputs) for o, v in files.all_vectors() if o == INDICES and not v.refusal)
ten = settings(max_examples=10)


@operations(INDICES)
@given(x=st.integers(0, 10**9))
@ten
def test_notes(implementation: Runner, x: int) -> None:
    with Path(__file__).with_suffix(".txt").open("a") as file:
        print(implementation.name, x, file=file)
    implementation.call(CASE)


@operations(INDICES)
@given(x=st.integers())
@ten
def test_judges_nothing(implementation: Runner, x: int) -> None:
    pass


@operations(INDICES)
@given(x=st.integers())
@ten
def test_leaves_one(implementation: Runner, x: int) -> None:
    if implementation.name.endswith("double"):
        hypothesis.reject()
    implementation.call(CASE)


@operations(INDICES)
@given(x=st.integers(0, 10**9))
@ten
def test_leaves_all(implementation: Runner, x: int) -> None:
    hypothesis.assume(x % 2)
    implementation.call(CASE)


@operations(INDICES)
@given(x=st.integers())
@ten
def test_has_no_example(implementation: Runner, x: int) -> None:
    hypothesis.reject()
"""


@pytest.fixture(scope="module")
def of_seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Tally]]:
    folder, names = tmp_path_factory.mktemp("seeds"), [TILES, WRONG, DOUBLE]
    return {seed: elsewhere(folder, together.run, names, [seed], [TESTS]) for seed in (5, 6)}


def test_what_is_wrong_fails_and_what_is_beside_it_does_not(
    of_seeds: dict[int, dict[str, Tally]],
) -> None:
    for seed, found in of_seeds.items():
        assert [tally.runs for tally in found.values()] == [1, 1, 1]
        assert found[WRONG].failures
        assert all(line.startswith(f"seed {seed}: {WRONG}: ") for line in found[WRONG].failures)
        assert any("test_every_segment_holds" in line for line in found[WRONG].failures)
        assert not found[TILES].failures + found[DOUBLE].failures
        assert found[TILES].cases == found[DOUBLE].cases > 0


def test_examples_that_are_left_and_tests_that_judge_nothing(tmp_path: Path) -> None:
    file = tmp_path / "test_odd.py"
    file.write_text(ODD, encoding="utf-8")
    found = elsewhere(tmp_path, together.run, [TILES, DOUBLE], [5, 6], [NOTHING, str(file)])
    assert {name: tally.runs for name, tally in found.items()} == {TILES: 2, DOUBLE: 2}
    assert {name: tally.cases for name, tally in found.items()} == {TILES: 60, DOUBLE: 40}
    nothing = "the test passed without judging a case"
    for name, tally in found.items():
        said = [re.fullmatch(r"seed (\d): (\S+): \S*::(\w+)\S*: (.*)", x) for x in tally.failures]
        tests = ["judges_nothing"] + ["leaves_one"] * (name == DOUBLE) + ["has_no_example"]
        assert [each.groups()[:3] for each in said if each] == [
            (str(seed), name, f"test_{test}") for seed in (5, 6) for test in tests
        ]
        for each in said:
            assert each
            assert each[4] == nothing or each[4].startswith("Unsatisfiable: ")
            assert (each[4] == nothing) == (each[3] != "test_has_no_example")
    of_tiles, of_double = (_drawn(file, name) for name in (TILES, DOUBLE))
    assert of_tiles == of_double
    assert of_tiles[:10] != of_tiles[10:]
    for seed, same in (("5", of_tiles[:10]), ("6", of_tiles[10:])):
        file.with_suffix(".txt").unlink()
        run_pytest(tmp_path, "--impl", TILES, "--seed", seed, NOTHING, str(file), "-k", "notes")
        assert _drawn(file, TILES) == same


def _drawn(file: Path, name: str) -> list[str]:
    lines = file.with_suffix(".txt").read_text().splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def test_a_tally_keeps_the_largest_error() -> None:
    tally = Tally(1, 2, 0.5, ["one"])
    tally.add(Tally(1, 3, 0.25, ["two"]))
    tally.count(4, 0.125)
    assert tally == Tally(2, 9, 0.5, ["one", "two"])


def test_the_cases_are_those_of_a_run_with_the_seed(
    of_seeds: dict[int, dict[str, Tally]], tmp_path: Path
) -> None:
    result = run_pytest(tmp_path, "--impl", TILES, "--seed", "5", "-m", "hypothesis", TESTS)
    assert result.returncode == 0, result.stdout
    verdicts = [line for line in record_of(tmp_path) if isinstance(line, Verdict)]
    cases = sum(line.cases for line in verdicts if line.implementation == TILES)
    assert cases == of_seeds[5][TILES].cases


def test_seeds_add_up_in_any_order(of_seeds: dict[int, dict[str, Tally]], tmp_path: Path) -> None:
    found = elsewhere(tmp_path, together.run, [TILES, WRONG, DOUBLE], [6, 5], [TESTS])
    for name, tally in found.items():
        expected = Tally()
        for seed in (6, 5):
            expected.add(of_seeds[seed][name])
        assert tally == expected


def test_a_mistake_in_the_main_job_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"does not run; `python -m pytest` shows why"):
        elsewhere(tmp_path, together.run, ["no.such.module"], [0], [TESTS])


def test_what_was_drawn_for_one_is_given_to_the_next() -> None:
    seen: list[list[int]] = []

    @given(data=st.data())
    @settings(max_examples=5, database=None)
    def draw(data: st.DataObject) -> None:
        drawn: list[Any] = []
        first, second = (together._Again(data, drawn) for _ in range(2))
        some = [first.draw(st.integers(), label="some") for _ in range(2)]
        assert [second.draw(st.integers()) for _ in range(2)] == some
        more = second.draw(st.integers())
        assert drawn == [*some, more]
        assert first.draw(st.integers()) == more
        seen.append(drawn)

    draw()
    assert seen


def test_the_oracle_is_asked_once_a_case_and_anew_for_another() -> None:
    cases = [
        Case(operation, vector.inputs)
        for operation, vector in files.all_vectors()
        if operation == INDICES and vector.refusal is None
    ]
    asked: list[Case] = []
    ask = Case.expected

    def noted(case: Case) -> Any:
        asked.append(case)
        return ask(case)

    one, other = cases[:2]
    with patch.object(Case, "expected", noted), together.oracle_asked_once():
        assert one.expected() is Case(one.operation, {**one.inputs}).expected()
        other.expected()
        assert asked == [one, other]
        clash = one.changed(num_segments=one.number("num_segments") + 1)
        with patch.object(Case, "digest", one.digest):  # of eight digits, two may be alike
            clash.expected()
        assert asked == [one, other, clash]
    assert Case.expected is ask
    asked.clear()
    with patch.object(Case, "expected", noted):
        for _ in range(2):
            with together.oracle_asked_once():
                one.expected()
    assert asked == [one, one]  # what was said is not kept for good
