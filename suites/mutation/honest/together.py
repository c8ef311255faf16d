"""The generated tests of the main job on several implementations at once, over many seeds.

The examples are those of ``python -m pytest --seed``, and each call is watched as it is there. What
takes the time is shared: an example is drawn once for all, and the oracle is asked once what is
expected of a case, and how far from it is honest.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final
from unittest.mock import patch

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from kernels.catalog import Implementation
from suites.cases import Case
from suites.mutation.engine import OPTIONS, TESTS
from suites.runner import Runner
from suites.session import RUNNERS, STATE, implementation_of

SUITES: Final = [each for each in TESTS if not each.endswith("sanitize")]


@dataclass
class Tally:
    """What became of one implementation. ``runs``: seeds; ``failures``: a line each."""

    runs: int = 0
    cases: int = 0
    error_ratio: float = 0.0  # the largest
    failures: list[str] = field(default_factory=list)

    def count(self, cases: int, error_ratio: float | None, failure: str = "") -> None:
        """One test."""
        self.cases += cases
        self.error_ratio = max(self.error_ratio, error_ratio or 0.0)
        self.failures += [failure] if failure else []

    def add(self, other: "Tally") -> None:
        self.runs += other.runs
        self.cases += other.cases
        self.error_ratio = max(self.error_ratio, other.error_ratio)
        self.failures += other.failures


class Together:
    """A pytest plug-in that runs generated tests once a seed, each example on all implementations.

    ``tallies``: by the name of the implementation.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = seeds
        self.tallies: dict[str, Tally] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """One of the items that differ in nothing but the implementation."""
        first, *_ = config.stash[STATE].implementations
        items[:] = [item for item in items if implementation_of(item) is first]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        torch.set_num_threads(1)  # there is a process for each core
        tested = session.config.stash[STATE].implementations
        self.tallies = {each.name: Tally() for each in tested}
        for seed in self.seeds:
            for item in session.items:
                self._judge(item, tested, seed)
            for tally in self.tallies.values():
                tally.runs += 1
            cases = sum(tally.cases for tally in self.tallies.values())
            failures = sum(len(tally.failures) for tally in self.tallies.values())
            print(f"seed {seed}: so far {cases:,} cases, {failures} failures", flush=True)
        return True

    def _judge(self, item: pytest.Item, tested: Sequence[Implementation], seed: int) -> None:
        assert isinstance(item, pytest.Function)
        runners = [Runner(implementation, torch.device("cpu")) for implementation in tested]
        failed: dict[str, str] = {}
        parameters = dict(item.callspec.params)
        (fixture,) = parameters.keys() & {*RUNNERS}
        function: Any = hypothesis.seed(seed)(item.obj)
        test = function.hypothesis.inner_test

        @oracle_asked_once()
        def on_each(**arguments: Any) -> None:
            drawn: dict[str, list[Any]] = {
                name: [] for name, x in arguments.items() if isinstance(x, st.DataObject)
            }
            left = []
            for runner in runners:
                again = {name: _Again(arguments[name], drawn[name]) for name in drawn}
                try:
                    test(**arguments | again | {fixture: runner})
                except UnsatisfiedAssumption as leave:
                    left.append(leave)
                except (Exception, pytest.skip.Exception) as error:
                    failed.setdefault(runner.name, f"{type(error).__name__}: {error}")
            if len(left) == len(runners):
                raise left[0]

        with patch.object(function.hypothesis, "inner_test", on_each):
            try:
                function(**parameters)
            except Exception as error:  # of hypothesis itself, for a test's are counted
                failed |= {runner.name: f"{type(error).__name__}: {error}" for runner in runners}
        for runner in runners:
            if not runner.cases:
                failed.setdefault(runner.name, "the test passed without judging a case")
            said = " ".join(failed.get(runner.name, "").split())
            line = f"seed {seed}: {runner.name}: {item.nodeid}: {said}" if said else ""
            self.tallies[runner.name].count(runner.cases, runner.error_ratio, line)


@dataclass
class _Again:
    """What a test draws while it runs: what was drawn for an implementation before it, first."""

    data: st.DataObject
    drawn: list[Any]
    taken: int = 0

    def draw(self, strategy: st.SearchStrategy[Any], label: Any = None) -> Any:
        if self.taken == len(self.drawn):
            self.drawn.append(self.data.draw(strategy, label))
        self.taken += 1
        return self.drawn[self.taken - 1]


@contextmanager
def oracle_asked_once() -> Iterator[None]:
    """Inside, what the oracle says of a case is kept, and said again of one that is the same."""
    known: dict[object, tuple[Case, Any]] = {}

    def once(ask: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(ask)
        def answer(case: Case, *arguments: Any, **options: Any) -> Any:
            key = ask, case.operation, case.digest, arguments, *options.items()
            asked, said = known.get(key, (None, None))
            if asked is None or asked.inputs != case.inputs:
                said = ask(case, *arguments, **options)
                known[key] = case, said
            return said

        return answer

    with patch.multiple(Case, expected=once(Case.expected), bounds=once(Case.bounds)):
        yield


def run(
    names: Sequence[str], seeds: Sequence[int], tests: Sequence[str] = SUITES
) -> dict[str, Tally]:
    """The tallies of ``--impl`` names, after what ``tests`` generate from each seed.

    Raises RuntimeError where pytest does not get to them, and has said why.
    """
    together = Together(seeds)
    arguments = [f"--impl={name}" for name in names]
    if pytest.main([*OPTIONS, *arguments, "-m", "hypothesis", *tests], plugins=[together]):
        raise RuntimeError("the main job does not run; `python -m pytest` shows why")
    return together.tallies
