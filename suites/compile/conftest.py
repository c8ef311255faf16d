"""The tier's option, its fixtures, which variants a bound is about, and what a run leaves.

A module that cannot be compiled here is skipped, and the end of the run says why. The record is
the tier's where nothing else is run; else it is the main job's, and holds no compiled kernels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch

from golden.record import Header
from kernels.cuda.toolchain import BuildError, ToolchainMissing
from suites import recording
from suites.compile.accepted import versions
from suites.compile.architectures import ARCHITECTURES
from suites.compile.compiler import Compiled, Compiler
from suites.compile.figures import CompiledFile, Figures
from suites.compile.measurements import figures_of, work_of_calls
from suites.compile.tables import occupancy_table
from suites.compile.variants import ROOT, importable

HERE: Final = Path(__file__).parent
COMPILER: Final = pytest.StashKey[Compiler]()
REPORTED: Final = pytest.StashKey[dict[str, str]]()
RECORD: Final = pytest.StashKey[Path]()  # where it goes, if it is the tier's


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--accept",
        action="store_true",
        help="write the figures of compiled kernels to golden/compiled instead of comparing them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "about(predicate): the variants that a bound is about")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "suites/compile: it compiles in parallel by itself; leave out -n, or add -n0"
        )
    config.stash[COMPILER] = Compiler()
    config.stash[REPORTED] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    if COMPILER in config.stash:
        config.stash[COMPILER].close()


# --- fixtures and collection ---------------------------------------------------------------------


@pytest.fixture
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """What compiles every variant."""
    return request.config.stash[COMPILER]


@pytest.fixture
def figures(compiled: Compiled, compiler: Compiler) -> Figures:
    """Those of the variant that a test is about."""
    with in_one_line():
        return compiler.figures(compiled)


@pytest.fixture
def made(module: str, compiler: Compiler) -> CompiledFile:
    """Those of all variants of a module."""
    with in_one_line():
        return compiler.file(module)


@contextmanager
def in_one_line() -> Iterator[None]:
    """A toolchain that is missing skips a test, and a kernel that is refused fails it."""
    try:
        yield
    except ToolchainMissing as error:
        pytest.skip(str(error))
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def accept(request: pytest.FixtureRequest) -> bool:
    """Whether figures are to be written."""
    return bool(request.config.getoption("--accept", default=False))


@pytest.fixture
def reported(request: pytest.FixtureRequest) -> dict[str, str]:
    """By module, what to print at the end: what was accepted, or what another toolchain made."""
    return request.config.stash[REPORTED]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent != HERE:
        return
    for fixture in ("module", "compiled"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, [*_parameters(fixture, metafunc)])


def _parameters(fixture: str, metafunc: pytest.Metafunc) -> Iterator[Any]:
    """Every module or variant; a module that cannot be compiled here is one that is skipped."""
    compiler = metafunc.config.stash[COMPILER]
    for module in compiler.surveys:
        if reason := compiler.missing.get(module):
            yield pytest.param(module, id=module, marks=pytest.mark.skip(reason=str(reason)))
        elif fixture == "module":
            yield pytest.param(module, id=module)
        else:
            about = metafunc.definition.get_closest_marker("about")
            for each in compiler.of(module):
                if about is None or about.args[0](each):
                    yield pytest.param(each, id=str(each))


def pytest_collection_finish(session: pytest.Session) -> None:
    """All that was collected is compiled while the first tests wait for theirs."""
    config = session.config
    if config.option.collectonly:
        return
    ours = [item for item in session.items if item.path.parent == HERE]
    compiler = config.stash[COMPILER]
    wanted: list[Compiled] = []
    for item in ours:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if isinstance(parameters.get("compiled"), Compiled):
            wanted.append(parameters["compiled"])
        elif "made" in getattr(item, "fixturenames", ()):
            wanted.extend(compiler.of(parameters["module"]))
    compiler.begin(wanted)
    if wanted and len(ours) == len(session.items):
        path = config.invocation_params.dir / str(config.getoption("--record"))
        config.stash[RECORD] = path
        recording.begin(path, _header(config))


# --- the end of a run ----------------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if config.option.collectonly:
        return
    compiled = config.stash[COMPILER].compiled
    if exitstatus == pytest.ExitCode.OK and not compiled:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    if path := config.stash.get(RECORD, None):
        run = recording.Recording()
        run.measurements = [*figures_of(compiled), *work_of_calls(compiled)]
        run.write(path, _header(config), int(session.exitstatus))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    compiler, reported = config.stash[COMPILER], config.stash[REPORTED]
    if config.option.collectonly or not (compiler.compiled or compiler.missing):
        return
    say = terminalreporter.write_line
    terminalreporter.section("compiled kernels")
    if compiled := compiler.compiled:
        say(occupancy_table(compiled))
    for module, text in reported.items():
        say(f"\n{module}: {text}")
    if config.getoption("--accept", default=False) and not reported:
        say("\n--accept wrote nothing: leave out -k, or choose test_figures with it")
    for module, reason in compiler.missing.items():
        say(f"not-run: {module}: {reason}")
    if compiled:
        say(f"\n{len(compiled):,} compiled kernels: {versions(_toolchain(compiler))}")
    if RECORD in config.stash:
        say(f"record: {config.getoption('--record')}")


def _header(config: pytest.Config) -> Header:
    """The main job's, with all that compiles, and for what."""
    compiler, arguments = config.stash[COMPILER], config.invocation_params.args
    seed = config.getoption("--seed")
    names = map(importable, compiler.surveys)
    header = recording.header(ROOT, torch.device("cpu"), seed, names, arguments)
    return msgspec.structs.replace(
        header,
        versions=header.versions | _toolchain(compiler),
        device=f"none, compiled for {', '.join(ARCHITECTURES)}",
    )


def _toolchain(compiler: Compiler) -> dict[str, str]:
    """The versions of all that compiles."""
    found: dict[str, str] = {}
    for module in compiler.surveys:
        found |= compiler.toolchain(module)
    return found
