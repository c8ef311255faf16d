"""The pytest plug-in: options, fixtures, markers, verdicts, the matrix and the record."""

import os
import re
import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import hypothesis
import msgspec
import pytest
import torch

from golden import files
from golden.model import Contract, Vector, VectorFile
from golden.record import Header, Measurement, Status, Verdict
from kernels import catalog
from kernels.cuda import SANITIZE, ToolchainMissing
from suites import counterexamples, deviations
from suites import recording as record
from suites.deviating import (
    Collected,
    Deviating,
    Ledger,
    Tests,
    Trace,
    checkout_id,
    draft,
    setting_aside,
)
from suites.explain import explain
from suites.runner import ORACLE, Runner
from suites.verdicts import Ended, Nonconformance
from suites.watch.patching import mend_interpreter

ROOT: Final = Path(__file__).parent.parent
REPLAY: Final = ROOT / "suites" / "test_replay.py"
SANITIZE_TIER: Final = ROOT / "suites" / "sanitize"
GPU_TIER: Final = ROOT / "suites" / "gpu"
IN_PROCESS: Final = (SANITIZE_TIER, GPU_TIER, ROOT / "suites" / "bench")  # not of a worker
STATE: Final = pytest.StashKey["State"]()
Summary = Callable[[pytest.TerminalReporter, record.Recording], None]
SUMMARY: Final = pytest.StashKey[Summary]()  # what a tier prints in the place of the matrix
CASES: Final = 40  # generated cases a test


@dataclass
class State:
    """What the options came to."""

    implementations: list[catalog.Implementation]
    device: torch.device
    seed: int
    contracts: dict[str, Contract]
    replayed: VectorFile | None
    declared: dict[str, deviations.Declared] = field(default_factory=dict)
    collected: Collected = field(default_factory=lambda: Collected({}))

    @property
    def names(self) -> list[str]:
        return [implementation.name for implementation in self.implementations]


# --- options -------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("timeout"):  # a run does without, where nothing hangs
        parser.addini("timeout", "seconds that a test may take: for pytest-timeout")
    group = parser.getgroup("conformance")
    group.addoption(
        "--impl",
        action="append",
        metavar="NAME",
        help="implementation to test: a built-in name "
        f"({', '.join(catalog.BUILT_IN)}), one that an installed package announces, an importable "
        "module whose functions carry the specification's names, or toml:FILE, which declares one "
        "that runs in a process of its own (docs/implementers.md); may be repeated (default: every "
        "built-in one)",
    )
    group.addoption("--device", help="torch device to test on (default: cpu, and cuda with -m gpu)")
    group.addoption("--seed", type=int, default=0, help="seed of generated cases (default: 0)")
    group.addoption(
        "--record",
        metavar="PATH",
        default=".conformance/record.jsonl",
        help="where to write the record (default: .conformance/record.jsonl)",
    )
    group.addoption(
        "--replay", metavar="FILE", help="run the cases of this vector file and nothing else"
    )
    group.addoption(
        "--deviations",
        action="append",
        default=[],
        metavar="FILE",
        help="where an implementation departs from contracts, as its author declares; "
        "may be repeated, for another implementation",
    )
    group.addoption(
        "--write-deviations", metavar="FILE", help="draft such a file from what fails in this run"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(*ids): the contracts that a test checks")
    config.addinivalue_line("markers", "operations(*names): the operations that a test calls")
    config.addinivalue_line("markers", "timeout(seconds): for pytest-timeout, where there is it")
    config.addinivalue_line(
        "markers",
        "gpu: a test of an implementation on a device; -m gpu chooses --device cuda, "
        "and suites/gpu besides the main job",
    )
    on_gpu = _selects_gpu(config.getoption("markexpr"))
    device = _device(config.getoption("--device") or ("cuda" if on_gpu else "cpu"))
    if device.type == "cuda" and device.index is None:
        _pin(os.environ.get("PYTEST_XDIST_WORKER", ""))
    elif device.type == "cuda" and _present(device):
        torch.cuda.set_device(device)
    # Triton decides at the definition of a kernel, so before any implementation is imported.
    os.environ["TRITON_INTERPRET"] = "1" if device.type == "cpu" else "0"
    try:
        names: list[str] = list(dict.fromkeys(config.getoption("--impl") or catalog.BUILT_IN))
        replay: str | None = config.getoption("--replay")
        implementations = _implementations(config, names, device)
        contracts, folder = files.load_contracts(), config.invocation_params.dir
        config.stash[STATE] = State(
            implementations=implementations,
            device=device,
            seed=config.getoption("--seed"),
            contracts=contracts,
            replayed=counterexamples.load(replay) if replay else None,
            declared=deviations.of_implementations(
                config.getoption("--deviations"), implementations, folder, contracts
            ),
            collected=Collected(contracts),
        )
        files.all_vectors()
        files.all_regressions()
    except (catalog.CatalogError, files.GoldenError, deviations.DeviationError) as error:
        raise pytest.UsageError(str(error)) from error
    drafted: str | None = config.getoption("--write-deviations")
    if drafted and (folder / drafted).exists():
        raise pytest.UsageError(f"--write-deviations {drafted}: it exists; name a new file")
    if replay:
        config.args = [str(REPLAY)]
    elif on_gpu and config.args_source is config.ArgsSource.TESTPATHS:
        config.args.append(str(GPU_TIER))
    _configure_hypothesis(config)
    if device.type == "cpu":
        mend_interpreter()


def _implementations(
    config: pytest.Config, names: list[str], device: torch.device
) -> list[catalog.Implementation]:
    """Those of the names. Their workers end with the session. Raises CatalogError."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "")  # each has workers, and logs, of its own
    logs = config.invocation_params.dir / ".conformance" / "workers" / process
    found: dict[str, catalog.Implementation] = {}
    for name in names:
        implementation = catalog.load(name, str(device), logs)
        if implementation.worker is not None:
            config.add_cleanup(implementation.worker.close)
        if (other := found.setdefault(implementation.name, implementation)) is not implementation:
            raise catalog.CatalogError(
                f"--impl {name}: {other.given} has the name {other.name!r} too; give it another"
            )
    return [*found.values()]


def _selects_gpu(expression: str) -> bool:
    """Whether tests that carry the marker ``gpu`` are what ``-m`` asks for."""
    return bool(re.search(r"(?<!not )\bgpu\b", expression))


def _pin(worker: str) -> None:
    """Give each worker of pytest-xdist a device of its own as ``cuda:0``, the others after it.

    Before anything initialises CUDA, which then heeds no variable: torch counts the devices by
    way of NVML.
    """
    number = worker.removeprefix("gw")
    if not number.isdecimal():
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count() if visible is None else 0
    names = visible.split(",") if visible is not None else [str(n) for n in range(count)]
    if len(names) > 1:
        first = int(number) % len(names)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first:] + names[:first])


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise pytest.UsageError(
            f"--device {name}: not a torch device; use cpu, cuda or cuda:N"
        ) from error


def _configure_hypothesis(config: pytest.Config) -> None:
    """The same cases for the same seed, whatever ran before; no time limit on an interpreter."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.getoption("--seed"))
    hypothesis.settings.register_profile(
        "conformance",
        max_examples=CASES,
        derandomize=False,  # hypothesis would, under CI, and heed no seed
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.filter_too_much,  # what an implementation may refuse
            hypothesis.HealthCheck.function_scoped_fixture,
        ],
    )
    if not config.getoption("--hypothesis-profile"):
        hypothesis.settings.load_profile("conformance")


def pytest_report_header(config: pytest.Config) -> str:
    state = config.stash[STATE]
    return (
        f"conformance: {', '.join(state.names)} on {record.describe(state.device)}, "
        f"seed {state.seed}"
    )


# --- fixtures and collection ---------------------------------------------------------------------


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Runner:
    """Each implementation under test in turn."""
    return _runner_of(request)


@pytest.fixture
def implementation_or_oracle(request: pytest.FixtureRequest) -> Runner:
    """Each implementation under test and, first, the oracle: for what must hold of both."""
    return _runner_of(request)


def _runner_of(request: pytest.FixtureRequest) -> Runner:
    state, item = request.config.stash[STATE], request.node
    declared = state.declared.get(request.param.name)
    if declared is None:
        return Runner(request.param, state.device)
    ids = {item.nodeid, checkout_id(item.nodeid, item.config.rootpath), *_vector_ids(item)}
    return Runner(request.param, state.device, Deviating(declared, _contracts(item), ids))


@pytest.fixture
def replayed(request: pytest.FixtureRequest) -> tuple[str, Vector]:
    """Each vector of the file given to ``--replay``, with its operation."""
    operation_and_vector: tuple[str, Vector] = request.param
    return operation_and_vector


RUNNERS: Final = ("implementation", "implementation_or_oracle")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    state = metafunc.config.stash[STATE]
    for fixture in RUNNERS:
        if fixture in metafunc.fixturenames:
            tested = list(state.implementations)
            if fixture == "implementation_or_oracle":
                tested.insert(0, ORACLE)
            names = [i.name for i in tested]
            metafunc.parametrize(fixture, tested, ids=names, indirect=True)
    if "replayed" in metafunc.fixturenames and state.replayed is not None:
        metafunc.parametrize(
            "replayed",
            [
                pytest.param(
                    (state.replayed.operation, vector),
                    id=vector.id,
                    marks=pytest.mark.contract(*vector.contracts),
                )
                for vector in state.replayed.vectors
            ],
            indirect=True,
        )


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    state = config.stash[STATE]
    items[:] = [item for item in items if _asked(item, state)]
    for item in items:
        for unknown in set(_contracts(item)) - state.contracts.keys():
            raise pytest.UsageError(
                f"{item.nodeid}: no contract {unknown!r}; add it to golden/contracts.toml"
            )
        if state.device.type == "cuda" and _implementation(item) is not None:
            item.add_marker(pytest.mark.gpu)
        if missing := _missing(_implementation(item), state.device, item.path):
            item.add_marker(pytest.mark.skip(reason=missing))
    state.collected.before_selection(_tests(items), {item.path for item in items})


def pytest_collection_finish(session: pytest.Session) -> None:
    parts = any("::" in argument for argument in session.config.args)
    session.config.stash[STATE].collected.after_selection(_tests(session.items), parts=parts)


def _tests(items: list[pytest.Item]) -> Tests:
    return Tests(
        (tested.name, contract)
        for item in items
        if (tested := _implementation(item)) is not None
        for contract in _contracts(item)
    )


def _asked(item: pytest.Item, state: State) -> bool:
    """Whether the implementation that a test is about is to be asked for what the test calls.

    A built-in one is, if it has all of it. A user's own is, if it has any operation of the same
    protocol of `kernels.api`: the others are then seen to be missing. The oracle is, if any other
    has an operation of the same family.
    """
    tested, called = _implementation(item), operations_of(item)
    if tested is None or not called:
        return True
    exported = {*tested.operations}
    if tested is ORACLE:
        contracts = state.contracts.values()
        families = {contract.family for contract in contracts if called & {*contract.operations}}
        theirs = {o for each in contracts if each.family in families for o in each.operations}
        return any(theirs & {*other.operations} for other in state.implementations)
    if tested.name in catalog.BUILT_IN:
        return called <= exported
    asked = [{*catalog.operations(protocol)} for protocol in catalog.KERNELS + catalog.MEASURES]
    return any(bool(called & operations and exported & operations) for operations in asked)


def operations_of(item: pytest.Item) -> set[str]:
    """The operations that a test calls: its ``operation``, that of its ``case``, or as marked."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "replayed" in parameters:
        return {parameters["replayed"][0]}
    if "case" in parameters:
        return {parameters["case"].operation}
    if "operation" in parameters:
        return {parameters["operation"]}
    return {name for mark in item.iter_markers("operations") for name in mark.args}


def _vector_ids(item: pytest.Item) -> set[str]:
    """The id of the vector that a test is about, after its operation."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    vector = parameters.get("vector") or parameters.get("replayed", (None, None))[1]
    return {f"{operation}/{vector.id}" for operation in operations_of(item)} if vector else set()


def _missing(tested: catalog.Implementation | None, device: torch.device, test: Path) -> str:
    """What a test lacks to run an implementation, and what to do; nothing where it can."""
    if tested is None:
        return ""
    if tested.worker is not None:  # its device need not be this process's
        tier = next((tier for tier in IN_PROCESS if tier in test.parents), None)
        return f"what {tier.name}/ watches is not seen in a worker" if tier else ""
    if not _present(device):
        return f"no device {device} on this machine; choose another --device"
    try:
        for source in tested.sources:
            source.require(device)
    except ToolchainMissing as missing:
        return str(missing)
    return ""


def _present(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def _contracts(item: pytest.Item) -> tuple[str, ...]:
    marks = reversed(list(item.iter_markers("contract")))
    return tuple(dict.fromkeys(id_ for mark in marks for id_ in mark.args))


def _implementation(item: pytest.Item) -> catalog.Implementation | None:
    """The implementation that a test is about, if it is about one."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return next((parameters[fixture] for fixture in RUNNERS if fixture in parameters), None)


# --- verdicts ------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    runner = _runner(item)
    if runner is None:
        return (yield)
    with setting_aside(getattr(item, "obj", None), runner.deviating):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    implementation = _implementation(item)
    if implementation is None or (call.when != "call" and report.passed):
        return report
    name = implementation.name
    runner = _runner(item)
    cases = runner.cases if runner else 0
    if report.passed and cases == 0 and not (runner and runner.deviating.failed):
        report.outcome = "failed"
        report.longrepr = "the test passed without judging a case"
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
        contracts=_contracts(item),
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


def _runner(item: pytest.Item) -> Runner | None:
    """The runner of a test that has been set up."""
    arguments = getattr(item, "funcargs", {})
    return next((arguments[f] for f in RUNNERS if f in arguments), None)


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
    header = _header(item.config)
    path = counterexamples.keep(failure, _contracts(item), runner, folder, header)
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


def _header(config: pytest.Config) -> Header:
    state, arguments = config.stash[STATE], config.invocation_params.args
    folder = config.invocation_params.dir
    return record.header(folder, state.device, state.seed, state.names, arguments)


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
        return _header(self.config)

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
