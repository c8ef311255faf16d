"""From what pytest says of a test to a verdict, and from all of these to the record."""

import os
import shlex
from collections.abc import Callable, Generator
from functools import cached_property
from pathlib import Path

import hypothesis
import msgspec
import pytest
import torch

from golden.record import Header, Measurement, Status, Verdict
from kernels.cuda import SANITIZE
from suites import counterexamples
from suites import recording as record
from suites.deviating import Ledger, Trace, checkout_id, draft, setting_aside
from suites.explain import explain
from suites.integrity import replaced
from suites.runner import ORACLE, Runner
from suites.session import (
    REPLAY,
    ROOT,
    SANITIZE_TIER,
    STATE,
    SUMMARY,
    contracts_of,
    header_of,
    implementation_of,
    runner_of,
)
from suites.verdicts import Ended, Nonconformance


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    runner = runner_of(item)
    if runner is None:
        return (yield)
    with setting_aside(getattr(item, "obj", None), runner.deviating):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    implementation = implementation_of(item)
    if implementation is None or (call.when != "call" and report.passed):
        return report
    name = implementation.name
    runner = runner_of(item)
    cases = runner.cases if runner else 0
    if report.passed and cases == 0 and not (runner and runner.deviating.failed):
        report.outcome = "failed"
        report.longrepr = "the test passed without judging a case"
    if report.passed and (part := replaced()):
        report.outcome = "failed"
        report.longrepr = (
            f"{part} is not what it was when the run began, so that a pass means nothing; "
            "leave alone what judges"
        )
    error = _cause(call.excinfo.value) if call.excinfo else None
    if isinstance(error, hypothesis.errors.Flaky | hypothesis.errors.Unsatisfiable):
        # Of a case that has lost the worker, another call may be one that is not made any more.
        error = runner.lost_worker if runner and runner.lost_worker else error
    status = _status(report, error)
    # Where every example was one that is not supported, hypothesis has nothing to go on.
    nothing_left = report.skipped or isinstance(error, hypothesis.errors.Unsatisfiable)
    if runner and runner.unsupported and nothing_left:
        status = "unsupported"
        report.outcome = "skipped"
        report.longrepr = (
            str(item.path),
            item.location[1] or 0,
            f"Skipped: {_detail(report, error)}",
        )
    detail = "" if status == "passed" else _detail(report, error)
    if runner and runner.deviating:
        # Where every example was set aside, too.
        aside = isinstance(error, hypothesis.errors.Unsatisfiable) and runner.deviating.failed
        status, detail = runner.deviating.outcome("passed" if aside else status, detail, error)
    shown = rerun = ""
    if status == "deviates":
        report.outcome = "skipped"
        report.wasxfail = detail
    elif runner and isinstance(error, Nonconformance):
        shown, (rerun, script) = explain(error, name), _rerun(item, runner, error)
        stale = f"\nstale-deviation: {error.stale}" if error.stale else ""
        report.longrepr = f"{shown}\nrerun: {rerun}{script}{stale}"
    elif isinstance(error, Ended):
        report.longrepr = _detail(report, error)
    elif status == "stale-deviation":
        report.outcome = "failed"
        report.longrepr = detail
    verdict = Verdict(
        test=item.nodeid,
        implementation=name,
        contracts=contracts_of(item),
        status=status,
        cases=cases,
        detail=detail,
        error_ratio=runner.error_ratio if runner else None,
        shown=shown,
        rerun=rerun,
    )
    report.user_properties.append(record.attach(verdict))
    if name in item.config.stash[STATE].declared:
        report.user_properties.append(_trace(item, verdict, runner))
    device = item.config.stash[STATE].device
    if report.failed and _lost(device):
        item.session.shouldfail = (
            f"{device} is lost to this process, and further tests would show that alone; "
            "mend what failed last, or run the rest with --deselect"
        )
    return report


def _trace(item: pytest.Item, verdict: Verdict, runner: Runner | None) -> tuple[str, object]:
    """What a test tells of deviations, as a report property."""
    name, contracts = verdict.implementation, verdict.contracts
    tests = item.config.stash[STATE].collected.tests(name, contracts)
    fates = runner.deviating.fates if runner else ()
    trace = Trace(name, verdict.status != "not-run", tests, fates)
    return "deviations", msgspec.to_builtins(trace)


def _lost(device: torch.device) -> bool:
    """Whether a GPU fails whatever it is asked for, as it does after a kernel's illegal access."""
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _cause(error: BaseException) -> BaseException:
    """The nonconformance in a group: hypothesis makes one when a failure does not come again."""
    if isinstance(error, BaseExceptionGroup):
        causes = [_cause(each) for each in error.exceptions]
        return next((cause for cause in causes if isinstance(cause, Nonconformance)), error)
    return error


def _status(report: pytest.TestReport, error: BaseException | None) -> Status:
    if report.passed:
        return "passed"
    if report.skipped:
        return "not-run"
    if isinstance(error, Nonconformance | Ended):
        return error.status
    if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
        return "timed-out"
    return "harness-error"


def _detail(report: pytest.TestReport, error: BaseException | None) -> str:
    """One line: the reason of a skip, the statement of a failure, or the error's own words."""
    text = str(error) if error is not None else str(report.longrepr)
    return " ".join(text.split())


def _rerun(item: pytest.Item, runner: Runner, failure: Nonconformance) -> tuple[str, str]:
    """Keep the case: the command that runs exactly it, and a line that names its script."""
    folder, tested = item.config.invocation_params.dir, runner.implementation
    state = item.config.stash[STATE]
    header = header_of(item.config)
    path = counterexamples.keep(failure, contracts_of(item), runner, folder, header)
    replay = SANITIZE_TIER if SANITIZE.get() else REPLAY
    known = folder == ROOT and replay is REPLAY
    where = "" if known else f" {os.path.relpath(replay, folder)}"
    chosen = f" --impl {shlex.quote(tested.given)}" if tested is not ORACLE else ""
    device = f" --device {state.device}" if state.device.type != "cpu" else ""
    script = path.with_suffix(".py")
    alone = f"\nalone: {script}" if (folder / script).exists() else ""
    return f"python -m pytest{where} --replay {path}{chosen}{device}", alone


# --- the end of a run ----------------------------------------------------------------------------


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Callable[[Measurement], None]:
    """Puts a figure into the record and into a table at the end of the run."""

    def add(measurement: Measurement) -> None:
        request.node.user_properties.append(record.attach(measurement))

    return add


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Controller(session.config), "conformance-controller")


class _Controller:
    """Collects what the workers report; the only process that writes the record."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.state = config.stash[STATE]
        self.recording = record.Recording()
        self.ledger = Ledger(self.state.declared)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        begun = bool(self.recording.verdicts)
        if report.when == "call" or report.outcome != "passed":
            self.recording.add(report.user_properties)
            self.ledger.add(report.user_properties)
        if report.when not in ("setup", "call", "teardown"):  # the worker died of this test
            self.recording.add([record.attach(self._crash(report))])
        if self.recording.verdicts and not begun:
            record.begin(self._path, self._header)

    def _crash(self, report: pytest.TestReport) -> Verdict:
        """A dead worker tells no contracts; the name of the implementation is in the test's."""
        parameters = report.nodeid.rpartition("[")[2].rstrip("]").split("-")
        return Verdict(
            test=report.nodeid,
            implementation=next((n for n in self.state.names if n in parameters), ""),
            contracts=(),
            status="crashed",
            cases=0,
            detail=_detail(report, None),
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.recording.verdicts:
            return
        stale = list(self.ledger.stale())
        self.recording.verdicts += stale
        if exitstatus == pytest.ExitCode.OK and stale:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif exitstatus == pytest.ExitCode.OK and not self.recording.measured(self.state.names):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        self.recording.write(self._path, self._header, int(session.exitstatus))

    @property
    def _path(self) -> Path:
        return self.config.invocation_params.dir / str(self.config.getoption("--record"))

    @cached_property
    def _header(self) -> Header:
        return header_of(self.config)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        recording, state = self.recording, self.state
        if not (recording.verdicts or recording.measurements):
            return
        if (summary := self.config.stash.get(SUMMARY, None)) is not None:
            return summary(terminalreporter, recording)
        terminalreporter.section("conformance")
        matrix = recording.matrix(state.contracts, [ORACLE.name, *state.names])
        colour = terminalreporter.hasmarkup
        terminalreporter.write_line(record.render(matrix, colour=colour))
        if recording.compared_floats:
            terminalreporter.write_line(
                "\nstatus, cases, and of floats the largest |error| / bound\n"
            )
        for name, reason in recording.not_run():
            terminalreporter.write_line(f"\nnot-run: {name}: {reason}")
        for verdict in recording.verdicts:
            if not verdict.contracts:
                terminalreporter.write_line(f"{verdict.status}: {verdict.test}")
        for verdict in self.ledger.stale():
            about = f"{verdict.test} ({', '.join(verdict.contracts)})"
            terminalreporter.write_line(f"\nstale-deviation: {about}: {verdict.detail}")
        figures = list(recording.figures())
        for title, table in figures:
            terminalreporter.write_line(f"\n{title}\n{record.render(table, colour=colour)}")
        terminalreporter.write_line("")
        terminalreporter.write_line(
            f"{matrix.row_count} contracts, {recording.cases:,} cases: "
            f"{', '.join(state.names)} on {record.describe(state.device)}, seed {state.seed}"
        )
        terminalreporter.write_line(f"record: {self.config.getoption('--record')}")
        if drafted := self.config.getoption("--write-deviations"):
            path, root = self.config.invocation_params.dir / drafted, self.config.rootpath
            said = draft(path, recording.verdicts, state.names, lambda id_: checkout_id(id_, root))
            terminalreporter.write_line(f"--write-deviations: {said}")
