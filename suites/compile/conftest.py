"""The tier's option, its fixtures, which variants a bound is about, and what is printed at the end.

A machine that cannot compile a module skips its tests and says why.
"""

from pathlib import Path
from typing import Any, Final

import pytest

from kernels.cuda.toolchain import ToolchainMissing
from suites.compile.compiler import Compiled, Compiler
from suites.compile.figures import CompiledFile, Figures, path_of, read
from suites.compile.known import SHORTFALLS
from suites.compile.tables import occupancy_table

HERE: Final = Path(__file__).parent
COMPILER: Final = pytest.StashKey[Compiler]()
REPORTED: Final = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--accept",
        action="store_true",
        help="write the figures of compiled kernels to golden/compiled instead of comparing them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "about(predicate): the variants that a bound is about")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("suites/compile: it compiles in parallel by itself; leave out -n")
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
    try:
        return compiler.figures(compiled)
    except ToolchainMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def made(module: str, compiler: Compiler) -> CompiledFile:
    """Those of all variants of a module."""
    try:
        return compiler.file(module)
    except ToolchainMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def accept(request: pytest.FixtureRequest) -> bool:
    """Whether figures are to be written."""
    return bool(request.config.getoption("--accept", default=False))


@pytest.fixture
def reported(request: pytest.FixtureRequest) -> dict[str, str]:
    """By module, what to print at the end about figures that another toolchain made."""
    return request.config.stash[REPORTED]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent != HERE:
        return
    compiler = metafunc.config.stash[COMPILER]
    if "module" in metafunc.fixturenames:
        values = [
            _missing(module, surveys) or pytest.param(module, id=module)
            for module, surveys in compiler.surveys.items()
        ]
        metafunc.parametrize("module", values)
    if "compiled" in metafunc.fixturenames:
        metafunc.parametrize("compiled", _variants(metafunc, compiler))


def _missing(module: str, surveys: object) -> Any:
    """A module whose toolchain is missing, as one parameter that is skipped; None for others."""
    if not isinstance(surveys, ToolchainMissing):
        return None
    return pytest.param(module, id=module, marks=pytest.mark.skip(reason=str(surveys)))


def _variants(metafunc: pytest.Metafunc, compiler: Compiler) -> list[Any]:
    """The variants that a bound is about, those expected to fail marked so.

    They must fail with the toolchain of the accepted figures, else the list is out of date; with
    another one they may.
    """
    bound = metafunc.function.__name__
    about = metafunc.definition.get_closest_marker("about")
    parameters = []
    for module, surveys in compiler.surveys.items():
        if isinstance(surveys, ToolchainMissing):
            parameters.append(_missing(module, surveys))
            continue
        accepted, (toolchain, *_) = read(path_of(module)), (s.toolchain for s in surveys.values())
        strict = accepted is not None and accepted.toolchain == toolchain
        for each in compiler.of(module):
            if about is not None and not about.args[0](each):
                continue
            marks = [
                pytest.mark.xfail(
                    reason=f"{each.variant.kernel}: {shortfall.reason}",
                    raises=AssertionError,
                    strict=strict,
                )
                for shortfall in SHORTFALLS
                if shortfall.covers(bound, each)
            ]
            parameters.append(pytest.param(each, id=str(each), marks=marks))
    return parameters


def pytest_collection_finish(session: pytest.Session) -> None:
    """All that was collected is compiled while the first tests wait for theirs."""
    compiler = session.config.stash[COMPILER]
    if session.config.option.collectonly:
        return
    wanted: list[Compiled] = []
    for item in session.items:
        if item.path.parent == HERE and hasattr(item, "callspec"):
            parameters = item.callspec.params
            if isinstance(parameters.get("compiled"), Compiled):
                wanted.append(parameters["compiled"])
            if "module" in parameters:
                wanted.extend(compiler.of(parameters["module"]))
    compiler.begin(wanted)


# --- the end of a run ----------------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    compiler = session.config.stash[COMPILER]
    if exitstatus == pytest.ExitCode.OK and not compiler.compiled:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if compiled := config.stash[COMPILER].compiled:
        terminalreporter.section("compiled kernels")
        terminalreporter.write_line(occupancy_table(compiled))
    for module, text in config.stash[REPORTED].items():
        terminalreporter.section(module)
        terminalreporter.write_line(text)
