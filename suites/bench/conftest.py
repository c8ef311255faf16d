"""The tier's option, its fixtures, what is timed on which device, and the table at the end."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from golden.record import Measurement
from reports.model import Timing
from suites.bench import figures, paired, peers
from suites.bench.calls import GEOMETRIES, Call
from suites.bench.ceilings import Ceilings
from suites.bench.device import (
    BOARDS,
    CaptureRefused,
    Cuda,
    Device,
    Host,
    alive,
)
from suites.bench.timing import (
    MICRO,
    Cache,
    Figure,
    Launch,
    measured,
    timed,
)
from suites.contracts import DEFINED_BY
from suites.recording import Recording, describe
from suites.runner import Runner
from suites.session import ROOT, STATE, SUMMARY

HERE: Final = Path(__file__).parent
TimeIt = Callable[..., None]


@dataclass
class Bench:
    """What the tests of one run share. ``lost``: in which test the device was lost, and why."""

    device: Device | None
    lost: str = ""
    eager: dict[tuple[str, str, Cache], Figure] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    told: set[Measurement] = field(default_factory=set)  # ceilings that are in the record
    timings: list[Timing] = field(default_factory=list)

    @property
    def full_size(self) -> bool:
        return self.device is None or self.device.full_size


BENCH: Final = pytest.StashKey[Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--baseline",
        metavar="REV",
        help="time the tree of this revision too, in processes that take turns with those of the "
        "working tree, and compare",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "calls(of): the calls that a benchmark times")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("suites/bench: benchmarks must not run side by side; leave out -n")
    if revision := config.getoption("--baseline", default=None):
        try:
            paired.commit_of(ROOT, revision)
        except paired.BaselineError as error:
            raise pytest.UsageError(str(error)) from error
    state = config.stash[STATE]
    bench = config.stash.setdefault(BENCH, Bench(_device(state.device)))
    config.stash[SUMMARY] = summary
    if bench.device is not None:
        bench.ceilings = Ceilings(bench.device)
    if bench.device is not None and not bench.device.full_size and not config.getoption("--impl"):
        state.implementations = []  # what is interpreted or runs as fibers says nothing of a GPU
    names = state.names
    state.implementations += [
        each for each in peers.peers(bench.full_size) if each.name not in names
    ]
    option = config.option
    wanted = (option.benchmark_columns, option.benchmark_compare, option.benchmark_histogram)
    option.benchmark_quiet |= not any(wanted)  # the table here says more


def _device(place: torch.device) -> Device | None:
    """None where the machine has no such device: then the plug-in skips what would be timed."""
    if place.type == "cpu":
        return Host()
    present = place.type == "cuda" and torch.cuda.is_available()
    if not present or (place.index or 0) >= torch.cuda.device_count():
        return None
    return Cuda(place)


def pytest_report_header(config: pytest.Config) -> str:
    device = config.stash[BENCH].device
    if device is None:
        return "benchmarks: the device is missing, nothing is timed"
    if not device.graphs:
        there = "; there is a GPU: --device cuda" if torch.cuda.is_available() else ""
        return (
            f"benchmarks: no GPU, {device.name}: small sizes, what is given or torch, "
            f"and the suite itself{there}"
        )
    board = BOARDS.get(device.name)
    known = f"peaks of the {board}" if board else "no published peaks: no time is refused"
    return f"benchmarks: {device.name}, {known}; clocks {device.clocks()}"


# --- what is timed -------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent != HERE:
        return
    bench = metafunc.config.stash[BENCH]
    if mark := metafunc.definition.get_closest_marker("calls"):
        calls = [
            pytest.param(
                call,
                id=str(call),
                marks=[
                    pytest.mark.operations(call.operation),
                    pytest.mark.contract(DEFINED_BY[call.operation]),
                ],
            )
            for call in mark.kwargs["of"](bench.full_size)
        ]
        graphs = bench.device is None or bench.device.graphs
        launches: list[Launch] = ["eager", "replay"] if graphs else ["eager"]
        metafunc.parametrize("launch", launches)
        metafunc.parametrize("cache", ["cold", "warm"])
        metafunc.parametrize("call", calls)
    if "tokens" in metafunc.fixturenames:
        metafunc.parametrize("tokens", GEOMETRIES[bench.full_size].lengths)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a GPU, what is timed on the host is left out; the timer is the device's for the rest."""
    bench = config.stash[BENCH]
    for item in [each for each in items if each.path.parent == HERE]:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path.name == "test_suite.py" and bench.full_size:
            items.remove(item)
            config.hook.pytest_deselected(items=[item])
        elif bench.device is not None and "call" in parameters:
            group = parameters["call"].subject
            item.add_marker(pytest.mark.benchmark(timer=bench.device.timer, group=group))


# --- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """Where calls are timed."""
    found = request.config.stash[BENCH].device
    assert found is not None, "the plug-in skips what needs a device that is missing"
    return found


@pytest.fixture
def time_it(
    request: pytest.FixtureRequest,
    device: Device,
    implementation: Runner,
    benchmark: BenchmarkFixture,
    measure: Callable[[Measurement], None],
) -> TimeIt:
    """Times, verifies and records one call of the implementation."""
    config = request.config
    bench, seed = config.stash[BENCH], config.stash[STATE].seed

    def time_it(call: Call, cache: Cache, launch: Launch, *, against_copy: bool = False) -> None:
        if call.operation not in implementation.implementation.operations:
            implementation.unsupported = True
            pytest.skip(f"{implementation.name} has no {call.operation}")
        try:
            it = timed(
                device, implementation, call, cache, launch, seed=seed, against_copy=against_copy
            )
        except CaptureRefused as refused:
            pytest.skip(f"no graph of {call.operation} by {implementation.name}: {refused}")
        figure = measured(benchmark, it, config.getoption("benchmark_min_rounds"))
        if figure is None:
            return
        assert bench.ceilings is not None
        for line in figures.measurements(implementation.name, it, figure, bench.ceilings):
            measure(line)
        for line in {*figures.ceiling_lines(bench.ceilings, call)} - bench.told:
            bench.told.add(line)
            measure(line)
        key = implementation.name, call.subject, cache
        if launch == "eager":
            bench.eager[key] = figure
        elif key in bench.eager:
            seconds = bench.eager[key].seconds - figure.seconds
            name, variant = implementation.name, f"{cache} replay"
            measure(Measurement(name, call.subject, figures.LAUNCH, variant, seconds * MICRO))

    return time_it


# --- verdicts ------------------------------------------------------------------------------------


def pytest_runtest_setup(item: pytest.Item) -> None:
    lost = item.config.stash[BENCH].lost
    if lost and item.path.parent == HERE:
        pytest.skip(lost)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After an error, ask whether the device is still there: most errors of CUDA are for good."""
    report = yield
    bench = item.config.stash[BENCH]
    error = call.excinfo.value if call.excinfo else None
    if error is None or not report.failed or bench.device is None or item.path.parent != HERE:
        return report
    said = " ".join(f"{error}".split())
    if not bench.lost and not alive(bench.device):
        bench.lost = f"the device was lost in {item.nodeid}: {said}"
        report.longrepr = detail = f"the device was lost: {said}"
        for name, line in report.user_properties:
            if name == "verdict" and isinstance(line, dict):
                line |= {"status": "crashed", "detail": detail}
    return report


# --- the end of a run ----------------------------------------------------------------------------


def pytest_benchmark_update_json(output_json: dict[str, object]) -> None:
    """Parameters as they are named: what pytest-benchmark writes of an object is its memory."""
    for each in output_json["benchmarks"]:  # type: ignore[attr-defined]
        each["params"] = {
            name: getattr(value, "name", None) or str(value)
            for name, value in (each["params"] or {}).items()
        }


def summary(terminalreporter: pytest.TerminalReporter, recording: Recording) -> None:
    """A table of figures in the place of the matrix of contracts."""
    config = terminalreporter.config
    state = config.stash[STATE]
    terminalreporter.section("benchmarks")
    timings = config.stash[BENCH].timings
    found = paired.report(timings) if timings else figures.report(recording.measurements)
    terminalreporter.write_line(found)
    for name, reason in recording.not_run():
        terminalreporter.write_line(f"not-run: {name}: {reason}")
    terminalreporter.write_line(
        f"{len(recording.verdicts)} benchmarks, {recording.cases:,} calls verified: "
        f"{', '.join(state.names)} on {describe(state.device)}, seed {state.seed}"
    )
    terminalreporter.write_line(f"record: {config.getoption('--record')}")


# --- the comparison with another revision --------------------------------------------------------


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    revision = session.config.getoption("--baseline", default=None)
    if revision is None or session.config.option.collectonly or session.testsfailed:
        return None
    bench, device = session.config.stash[BENCH], describe(session.config.stash[STATE].device)
    try:
        bench.timings = paired.run(session, ROOT, revision, device)
    except paired.BaselineError as error:
        raise pytest.UsageError(str(error)) from error
    return True
