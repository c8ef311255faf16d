"""What becomes of declared deviations: example by example, in a test, and in a whole run."""

import datetime
import functools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import hypothesis
import msgspec

from golden.model import Contract
from golden.record import Status, Verdict
from suites.cases import Case
from suites.deviations import Declarable, Declared, Deviation
from suites.verdicts import Nonconformance

ASIDE: Final = 100  # examples of a test that are set aside before further ones count as judged
DAYS: Final = 90  # that a draft gives its author
SUITES: Final = Path(__file__).parent


class Trace(msgspec.Struct, frozen=True):
    """What one test tells of the deviations from its contracts, as it travels in its report.

    ``tests``: of each contract, how many tests of it were collected, if all that there are; else 0.
    ``fates``: by the number of a deviation, how many cases it was about and how many of them failed
    as declared.
    """

    implementation: str
    run: bool
    tests: dict[str, int]
    fates: tuple[tuple[int, int, int], ...]


@dataclass
class Fate:
    """How many cases a deviation was about in one test, and how many failed as declared."""

    cases: int = 0
    failed: int = 0


class Deviating:
    """The deviations that one test may show, and what became of them.

    A failure is declared if each contract that the test names has a deviation that is about the
    case and explains the failure. ``ids``: those by which a deviation may list the test.
    """

    def __init__(
        self,
        declared: Declared = Declared("", ()),  # noqa: B008 - it is immutable
        contracts: tuple[str, ...] = (),
        ids: Container[str] = (),
    ) -> None:
        self._file = declared.shown
        self._contracts = {*contracts}
        self._deviations = {
            number: deviation
            for number, deviation in enumerate(declared.deviations, 1)
            if deviation.contract in self._contracts
            and (not deviation.cases or any(id_ in ids for id_ in deviation.cases))
        }
        self._fates = {number: Fate() for number in self._deviations}

    def __bool__(self) -> bool:
        return bool(self._deviations)

    @property
    def failed(self) -> bool:
        """Whether a case has failed as declared."""
        return any(fate.failed for fate in self._fates.values())

    @property
    def fates(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((number, fate.cases, fate.failed) for number, fate in self._fates.items())

    def judged(self, case: Case) -> None:
        """Take note of a case that was called."""
        for number in self._about(case):
            self._fates[number].cases += 1

    def cover(self, failure: Nonconformance) -> bool:
        """Whether a failure is as declared, which is then noted.

        If what is declared of the case is another failure, or no longer in force, the failure is
        marked as ``stale``.
        """
        return self._explain(failure, self._about(failure.case))

    def _about(self, case: Case) -> dict[int, Deviation]:
        return {
            number: deviation
            for number, deviation in self._deviations.items()
            if deviation.cases or deviation.is_about(case)
        }

    def _explain(self, failure: Nonconformance, about: Mapping[int, Deviation]) -> bool:
        in_force = self._in_force(about, failure.status, failure.statement)
        if self._depart(in_force):
            for number in in_force:
                self._fates[number].failed += 1
            return True
        if self._depart(about):
            number, other = next((n, each) for n, each in about.items() if n not in in_force)
            why = other.lapsed(datetime.date.today())
            why = why or f"declares `{other.status}: {other.statement}`"
            failure.stale = f"{self._file}, deviation {number}, {why}"
        return False

    def _in_force(
        self, about: Mapping[int, Deviation], status: str, statement: str
    ) -> dict[int, Deviation]:
        """Those that declare this very failure."""
        today = datetime.date.today()
        return {
            number: deviation
            for number, deviation in about.items()
            if deviation.explains(status, statement) and not deviation.lapsed(today)
        }

    def _depart(self, deviations: Mapping[int, Deviation]) -> bool:
        """Whether they depart from each contract of the test."""
        return {each.contract for each in deviations.values()} >= self._contracts != set()

    def outcome(
        self, status: Status, detail: str, error: BaseException | None
    ) -> tuple[Status, str]:
        """The status of the test in view of what is declared, and the words that go with it.

        ``status``: by itself, "passed" too where all examples were set aside.
        """
        listed = {number: each for number, each in self._deviations.items() if each.cases}
        if status == "passed":
            if passing := [number for number in listed if not self._fates[number].failed]:
                it = f"{self._file}, deviation {passing[0]}"
                return "stale-deviation", f"{it}: the test passes; take it from `cases`"
            return ("deviates", self._reasons()) if self.failed else (status, detail)
        if status in get_args(Declarable) and self._ended(listed, status, detail, error):
            return "deviates", self._reasons()
        if isinstance(error, Nonconformance) and error.stale:
            return "stale-deviation", f"{error.stale}: {detail}"
        return status, detail

    def _ended(
        self,
        listed: Mapping[int, Deviation],
        status: str,
        detail: str,
        error: BaseException | None,
    ) -> bool:
        """Whether the test itself is declared to end as it did, whatever it was at."""
        if isinstance(error, Nonconformance):
            return self._explain(error, listed)
        in_force = self._in_force(listed, status, detail)
        for number in in_force:
            self._fates[number].failed += 1
        return self._depart(in_force)

    def _reasons(self) -> str:
        shown = [self._deviations[number] for number, fate in self._fates.items() if fate.failed]
        each = [f"{d.reason.strip()} ({d.link})" if d.link else d.reason.strip() for d in shown]
        return " ".join("; ".join(dict.fromkeys(each)).split())


@contextmanager
def setting_aside(function: Any, deviating: Deviating) -> Iterator[None]:
    """Inside, an example of a test of hypothesis that fails as declared is none, and others go on.

    A test that fails as declared on most of its inputs has to end: it may set aside some hundred
    examples, and what comes after is done with.
    """
    handle = getattr(function, "hypothesis", None)
    if handle is None or not deviating:
        yield
        return
    inner, aside = handle.inner_test, 0

    @functools.wraps(inner)
    def example(*arguments: Any, **named: Any) -> Any:
        nonlocal aside
        try:
            return inner(*arguments, **named)
        except Nonconformance as failure:
            if not deviating.cover(failure):
                raise
        aside += 1
        if aside <= ASIDE:
            hypothesis.reject()

    handle.inner_test = example
    try:
        yield
    finally:
        handle.inner_test = inner


# --- a whole run ---------------------------------------------------------------------------------

Tests = Counter[tuple[str, str]]  # by the names of implementation and contract


class Collected:
    """Of which contracts all tests are run: of none, nobody may say that a deviation is not met."""

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        self._contracts = contracts
        self._asked = Tests()
        self._in_full = Tests()
        self._families: set[str] = set()

    def before_selection(self, tests: Tests, files: Container[Path]) -> None:
        """``files``: those that were collected, in full or in part."""
        self._asked = tests
        families = {contract.family for contract in self._contracts.values()}
        self._families = {
            family
            for family in families
            if SUITES / "test_golden.py" in files
            and all(file in files for file in (SUITES / family).glob("test_*.py"))
        }

    def after_selection(self, tests: Tests, *, parts: bool) -> None:
        """``parts``: whether a file was collected in part."""
        self._in_full = Tests(
            {
                (name, contract): count
                for (name, contract), count in tests.items()
                if not parts
                and count == self._asked[name, contract]
                and self._contracts[contract].family in self._families
            }
        )

    def tests(self, implementation: str, contracts: Iterable[str]) -> dict[str, int]:
        """How many tests of each contract there are; 0 where some are not run."""
        return {contract: self._in_full[implementation, contract] for contract in contracts}


class Ledger:
    """What became of each deviation in all tests, for the process that writes the record."""

    def __init__(self, declared: Mapping[str, Declared]) -> None:
        self._declared = declared
        self._run = Tests()
        self._all = Tests()
        self._fates: dict[tuple[str, int], Fate] = {}
        self._tests = Counter[tuple[str, int]]()

    def add(self, properties: Iterable[tuple[str, object]]) -> None:
        """Take what the plug-in attached to a test report."""
        for name, value in properties:
            if name == "deviations":
                self._add(msgspec.convert(value, Trace))

    def _add(self, trace: Trace) -> None:
        for contract, count in trace.tests.items():
            self._run[trace.implementation, contract] += trace.run
            self._all[trace.implementation, contract] = count
        for number, cases, failed in trace.fates:
            fate = self._fates.setdefault((trace.implementation, number), Fate())
            fate.cases += cases
            fate.failed += failed
            self._tests[trace.implementation, number] += 1

    def stale(self) -> Iterator[Verdict]:
        """A verdict on each deviation that is out of date, as far as one test cannot tell."""
        for name, declared in self._declared.items():
            for number, deviation in enumerate(declared.deviations, 1):
                if problem := self._problem(name, number, deviation):
                    yield Verdict(
                        test=f"{declared.shown}, deviation {number}",
                        implementation=name,
                        contracts=(deviation.contract,),
                        status="stale-deviation",
                        cases=0,
                        detail=problem,
                    )

    def _problem(self, name: str, number: int, deviation: Deviation) -> str:
        key = name, deviation.contract
        if not self._run[key]:
            return ""
        if lapsed := deviation.lapsed(datetime.date.today()):
            return f"it {lapsed}; renew it, or remove it"
        if self._run[key] != self._all[key]:
            return ""
        fate = self._fates.get((name, number), Fate())
        missing = len(deviation.cases) - self._tests[name, number]
        if deviation.cases and missing:
            return f"{missing} of its {len(deviation.cases)} cases are of no test; correct them"
        if not fate.cases and not fate.failed:
            return "no case is one that it is about; correct its `inputs`, or remove it"
        if not fate.failed and not deviation.cases:
            return f"{fate.cases} cases are what it is about, and none failed; remove it"
        return ""


# --- a draft -------------------------------------------------------------------------------------


def checkout_id(test: str, rootdir: Path) -> str:
    """The id of a test as pytest has it when run from the checkout, wherever it was run."""
    file, separator, name = test.partition("::")
    path = Path(os.path.normpath(rootdir / file))
    inside = path.is_relative_to(SUITES.parent)
    return (path.relative_to(SUITES.parent).as_posix() if inside else file) + separator + name


def draft(
    path: Path, verdicts: Iterable[Verdict], names: Container[str], id_of: Callable[[str], str]
) -> str:
    """Write a file of deviations that has what failed; one line that says so, or why not.

    Each deviation lists its tests, without a reason: that is for the author.
    """
    failed = [v for v in verdicts if v.status in get_args(Declarable) and v.implementation in names]
    implementations = sorted({verdict.implementation for verdict in failed})
    if len(implementations) != 1:
        what = f"{' and '.join(implementations)} failed" if implementations else "nothing failed"
        return f"{path.name} was not written: {what}, and a file is about one implementation"
    found: dict[tuple[str, str, str], list[str]] = {}
    for verdict in sorted(failed, key=lambda verdict: verdict.test):
        statement = verdict.detail
        if verdict.status == "crashed":
            statement = statement.rpartition(" (")[0] or statement  # without the place in a file
        pattern = re.sub(r"\d+", r"\\d+", re.escape(statement))
        for contract in verdict.contracts:
            found.setdefault((contract, verdict.status, pattern), []).append(id_of(verdict.test))
    expires = datetime.date.today() + datetime.timedelta(DAYS)
    text = f"schema = 1\nimplementation = {json.dumps(implementations[0])}\n"
    for (contract, status, pattern), tests in found.items():
        cases = "".join(f"    {json.dumps(test)},\n" for test in tests)
        text += f'\n[[deviation]]\ncontract = "{contract}"\ncases = [\n{cases}]\n'
        text += f'status = "{status}"\nstatement = {json.dumps(pattern)}\n'
        text += f'reason = ""\nlink = ""\nexpires = {expires}\n'
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"{path.name} was not written: {error.strerror}; name a file that can be"
    return f"{path.name} has {len(found)} deviations; give each its reason"
