"""Several implementations on the same examples: what is shared, what is not, and what fails."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

TILES: Final = f"{honest.__name__}.tiles"
DOUBLE: Final = f"{honest.__name__}.double"
WRONG: Final = "examples.wrong.wrong"
TESTS: Final = str(ROOT / "suites" / "witness" / "test_indices.py")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Runs of pytest have a process of their own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


@pytest.fixture(scope="module")
def of_seeds(elsewhere: ProcessPoolExecutor) -> dict[int, dict[str, Tally]]:
    names = [TILES, WRONG, DOUBLE]
    return {
        seed: elsewhere.submit(together.run, names, [seed], [TESTS]).result() for seed in (5, 6)
    }


def test_what_is_wrong_fails_and_what_is_beside_it_does_not(
    of_seeds: dict[int, dict[str, Tally]],
) -> None:
    for seed, found in of_seeds.items():
        assert found[WRONG].failures
        assert all(line.startswith(f"seed {seed}: {WRONG}: ") for line in found[WRONG].failures)
        assert any("test_every_segment_holds" in line for line in found[WRONG].failures)
        assert not found[TILES].failures + found[DOUBLE].failures
        assert found[TILES].cases == found[DOUBLE].cases > 0


def test_the_cases_are_those_of_a_run_with_the_seed(
    of_seeds: dict[int, dict[str, Tally]], tmp_path: Path
) -> None:
    result = run_pytest(tmp_path, "--impl", TILES, "--seed", "5", "-m", "hypothesis", TESTS)
    assert result.returncode == 0, result.stdout
    verdicts = [line for line in record_of(tmp_path) if isinstance(line, Verdict)]
    cases = sum(line.cases for line in verdicts if line.implementation == TILES)
    assert cases == of_seeds[5][TILES].cases


def test_seeds_add_up_in_any_order(
    elsewhere: ProcessPoolExecutor, of_seeds: dict[int, dict[str, Tally]]
) -> None:
    found = elsewhere.submit(together.run, [TILES, WRONG, DOUBLE], [6, 5], [TESTS]).result()
    for name, tally in found.items():
        expected = Tally()
        for seed in (6, 5):
            expected.add(of_seeds[seed][name])
        assert tally == expected


def test_a_mistake_in_the_main_job_is_one_line(elsewhere: ProcessPoolExecutor) -> None:
    run = elsewhere.submit(together.run, ["no.such.module"], [0], [TESTS])
    with pytest.raises(RuntimeError, match=r"does not run; `python -m pytest` shows why"):
        run.result()


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
    answers = together._Answers()
    with patch.object(Case, "expected", noted), answers.asked_once():
        assert one.expected() is Case(one.operation, {**one.inputs}).expected()
        other.expected()
        assert asked == [one, other]
        clash = one.changed(num_segments=one.number("num_segments") + 1)
        with patch.object(Case, "digest", one.digest):  # of eight digits, two may be alike
            clash.expected()
        assert asked == [one, other, clash]
        answers.forget()
        one.expected()
        assert asked == [one, other, clash, one]
    assert Case.expected is ask
