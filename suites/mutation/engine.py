"""The suite against one mutant after another: collected once, forked for each.

The process that collects the tests has imported torch, Triton and hypothesis, so a mutant costs its
tests and nothing else. A child reports test by test and ends at the first that fails. Time is that
of a processor, which does not depend on what else the machine does.
"""

import gc
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import hypothesis
import pytest
import torch

from suites.mutation.install import Stillborn, install
from suites.mutation.mutants import Mutant
from suites.session import RUNNERS, operations_of

LIMIT: Final = 60  # seconds of a processor that a test may take
ROOT: Final = Path(__file__).parents[2]
TESTS: Final = [
    str(ROOT / "suites" / each) for each in ("test_golden.py", "witness", "xattention", "sanitize")
]
# It loads the kernels once more, in a process of its own, where they are no mutants.
ELSEWHERE: Final = "test_nothing_hangs_on_asserts"


# How much of the tests a mutant goes through: all; up to the first failure; or, where a reason says
# that none can fail, the vectors and one example of each test that generates no cases.
Depth = Literal["all", "failure", "glance"]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    ``contracts``: of the test that failed first. ``cases`` and ``seconds``: up to that failure, or
    all of them. ``why``: how it failed. Of all that failed, where all were run and came to an end,
    ``vectors`` are the golden ones, and ``kills`` has the contracts of each of the other tests,
    alike ones once, by the operations that these call.
    """

    kind: Literal["killed", "survived", "timed-out", "stillborn"]
    contracts: tuple[str, ...] = ()
    cases: int = 0
    seconds: float = 0.0
    test: str = ""
    why: str = ""
    kills: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    vectors: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Report:
    """What a child says of one test, and how long it has taken up to its end."""

    failed: bool
    cases: int
    why: str
    seconds: float = 0.0


@dataclass
class _Child:
    """A process with a mutant, and what it has said so far."""

    mutant: Mutant
    tests: Sequence[pytest.Item]
    process: BaseProcess
    pipe: Connection
    reports: list[_Report] = field(default_factory=list)
    stillborn: str | None = None
    depth: Depth = "failure"
    over: bool = False


class Engine:
    """A pytest plug-in that runs the tests not once but once a mutant, several mutants at a time.

    ``outcomes`` has what became of each, in the order in which they ended.
    """

    def __init__(
        self, mutants: Sequence[Mutant], jobs: int, depth: Callable[[Mutant], Depth]
    ) -> None:
        self.mutants = mutants
        self.jobs = jobs
        self.depth = depth
        self.outcomes: dict[str, Outcome] = {}
        self._said = _Report(False, 0, "")

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """No failure is made smaller or traced: that one is there is all that is asked."""
        config.option.tbstyle = "value"
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", hypothesis.settings.get_profile("conformance"), phases=phases
        )
        hypothesis.settings.load_profile("mutants")
        torch.set_num_threads(1)  # threads would not outlive the fork

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="conformance-controller")
        self._smoke(session.items)
        gc.freeze()
        waiting = list(reversed(self.mutants))
        running: list[_Child] = []
        with TemporaryDirectory() as folder, ExitStack() as stack:
            stack.callback(_end, running)
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    running.append(self._start(waiting.pop(), session.items, Path(folder)))
                self._listen(running)
                for child in [child for child in running if child.over]:
                    running.remove(child)
                    child.process.join()
                    self.outcomes[child.mutant.name] = _outcome(child)
                    self.ended(child.mutant, self.outcomes[child.mutant.name])
        return True

    def ended(self, mutant: Mutant, outcome: Outcome) -> None:
        """Called as soon as a mutant's outcome is known."""

    def _smoke(self, items: Sequence[pytest.Item]) -> None:
        """A vector of each operation, unmutated: what it imports is there in every child.

        Raises pytest.UsageError where it fails, for then a failure would not be the mutant's.
        """
        first: dict[str, pytest.Item] = {}
        for item in items:
            if _is_vector(item):
                first.setdefault(item.name.partition("/")[0], item)
        for item in first.values():
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._said.failed:
                raise pytest.UsageError(
                    f"{item.nodeid} fails without any mutant, {self._said.why}; "
                    "mend what `python -m pytest` finds first"
                )

    def _start(self, mutant: Mutant, items: Sequence[pytest.Item], folder: Path) -> _Child:
        tests = list(candidates(mutant, items, glance=self.depth(mutant) == "glance"))
        receiver, sender = get_context("fork").Pipe(duplex=False)
        process = get_context("fork").Process(
            target=self._run, args=(mutant, tests, sender, folder / str(self.mutants.index(mutant)))
        )
        process.start()
        sender.close()
        return _Child(mutant, tests, process, receiver, depth=self.depth(mutant))

    def _listen(self, running: Iterable[_Child]) -> None:
        """Wait for a word of any child."""
        ready = wait([child.pipe for child in running])
        for child in running:
            if child.pipe in ready:
                try:
                    said = child.pipe.recv()
                except EOFError:
                    child.over = True
                    continue
                if isinstance(said, str):
                    child.stillborn = said
                else:
                    child.reports.append(said)

    # --- in a child ------------------------------------------------------------------------------

    def _run(
        self, mutant: Mutant, tests: Sequence[pytest.Item], pipe: Connection, folder: Path
    ) -> None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        folder.mkdir()
        begun = _used()
        if mutant.file.endswith(".cu"):
            os.environ["XDG_CACHE_HOME"] = str(folder)
        try:
            implementation = install(mutant, folder)
        except Stillborn as reason:
            return pipe.send(str(reason))
        known: set[tuple[str, tuple[str, ...]]] = set()  # of what a test has failed
        for test in tests:
            about = {(operation, _contracts(test)) for operation in operations_of(test)}
            if about and about <= known and not _is_vector(test):
                pipe.send(_Report(False, 0, "", _used() - begun))  # it has no more to say
                continue
            parameters = _parameters(test)
            for fixture in parameters.keys() & {*RUNNERS}:
                parameters[fixture] = implementation
            self._said = _Report(False, 0, "")
            _allow(LIMIT)
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=None)
            pipe.send(replace(self._said, seconds=_used() - begun))
            if self._said.failed and self.depth(mutant) != "all":
                return None
            if self._said.failed and not _is_vector(test):
                known |= about

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of the three reports of a test, the failure if there is one."""
        for name, value in report.user_properties:
            if name == "verdict" and isinstance(value, dict):
                failed = self._said.failed or report.failed
                self._said = _Report(failed, value["cases"], value["detail"])
        if report.failed and not self._said.failed:
            self._said = _Report(True, self._said.cases, str(report.longrepr))


def candidates(
    mutant: Mutant, items: Iterable[pytest.Item], *, glance: bool = False
) -> Iterator[pytest.Item]:
    """The tests that may kill a mutant: those of its implementation that call what it makes wrong.

    The golden vectors first. Of the other tests first one example of each, then the next of each;
    and those that need few cases, the sanitizer's after them, before those that generate many.
    """
    examples: Counter[tuple[str, str]] = Counter()
    keys: dict[pytest.Item, tuple[int, int]] = {}
    for item in items:
        names = {getattr(_parameters(item).get(fixture), "name", "") for fixture in RUNNERS}
        function = str(item.path), item.name.partition("[")[0]
        if mutant.implementation not in names or function[1] == ELSEWHERE:
            continue
        if not operations_of(item) & mutant.operations:
            continue
        sanitized = item.path.parent.name == "sanitize"
        if sanitized and mutant.implementation != "cuda":
            continue
        if _is_vector(item):
            keys[item] = (0, 0)
        elif sanitized:
            keys[item] = (0, 2)
        else:
            keys[item] = (examples[function], 3 if any(item.iter_markers("hypothesis")) else 1)
        examples[function] += 1
    for item in sorted(keys, key=keys.__getitem__):
        if not glance or keys[item] <= (0, 1):
            yield item


def _end(children: Iterable[_Child]) -> None:
    for child in children:
        child.process.kill()


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _used() -> float:
    """The seconds of a processor that this process and the compilers it called have taken."""
    return sum(os.times()[:4])


def _allow(seconds: int) -> None:
    """End this process, by a signal, once it has taken so many more seconds of a processor."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, hard))


def _outcome(child: _Child) -> Outcome:
    if child.stillborn is not None:
        return Outcome("stillborn", why=child.stillborn)
    reports, tests = child.reports, child.tests
    failed = [test for test, report in zip(tests, reports, strict=False) if report.failed]
    if failed:
        reports = reports[: tests.index(failed[0]) + 1]
    cases = sum(report.cases for report in reports)
    seconds = reports[-1].seconds if reports else 0.0
    if failed:
        first, cases, why = failed[0], max(cases, 1), reports[-1].why
        killed = Outcome("killed", _contracts(first), cases, seconds, first.nodeid, why)
        if child.depth != "all" or child.process.exitcode:
            return killed
        return replace(killed, kills=_kills(failed), vectors=_vectors(failed))
    if len(reports) == len(tests):
        return Outcome("survived", (), cases, seconds)
    # The process has ended during the test after the last that it has told of.
    last = tests[len(reports)]
    dead = _contracts(last), cases + 1, seconds, last.nodeid
    if child.process.exitcode == -signal.SIGXCPU:
        contracts, cases, seconds, test = dead
        return Outcome("timed-out", contracts, cases, seconds + LIMIT, test, f"{LIMIT} s")
    if (child.process.exitcode or 0) >= 0:  # which no kernel brings about: it is our mistake
        raise RuntimeError(f"{child.mutant.name}: {last.nodeid} ended the process that ran it")
    return Outcome("killed", *dead, f"the process ended with {child.process.exitcode}")


def _contracts(item: pytest.Item) -> tuple[str, ...]:
    return tuple(sorted({id_ for mark in item.iter_markers("contract") for id_ in mark.args}))


def _kills(failed: Iterable[pytest.Item]) -> dict[str, tuple[tuple[str, ...], ...]]:
    kills: dict[str, set[tuple[str, ...]]] = {}
    for item in failed:
        if not _is_vector(item):
            for operation in operations_of(item):
                kills.setdefault(operation, set()).add(_contracts(item))
    return {operation: tuple(sorted(kills[operation])) for operation in sorted(kills)}


def _vectors(failed: Iterable[pytest.Item]) -> tuple[str, ...]:
    """By operation and id, ``segment_of/an-id``."""
    return tuple(item.name[:-1].partition("-")[2] for item in failed if _is_vector(item))


def _is_vector(item: pytest.Item) -> bool:
    return item.path.name == "test_golden.py"


def run(mutants: Sequence[Mutant], engine: Engine) -> int:
    """Run an engine to its end; pytest's exit status."""
    names = dict.fromkeys(mutant.implementation for mutant in mutants)
    before = os.getcwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # where failures are kept as vectors
        try:
            arguments = [f"--impl={name}" for name in names]
            return int(pytest.main([*OPTIONS, *arguments, *TESTS], plugins=[engine]))
        finally:
            os.chdir(before)


# A crash is an outcome, and shows no trace; the others are of no use to what forks.
PLUGINS_OFF: Final = ("terminal", "cacheprovider", "timeout", "xdist", "faulthandler")
OPTIONS: Final = [
    f"--rootdir={ROOT}",
    f"--config-file={ROOT / 'pyproject.toml'}",
    *(f"-p no:{plugin}" for plugin in PLUGINS_OFF),
    "--capture=no",
    "-Wignore::pytest.PytestAssertRewriteWarning",  # what this process has imported already
]
