"""The pytest plug-in: options, fixtures, markers, and which tests there are."""

import os
import re
from pathlib import Path
from typing import Final
from unittest.mock import patch

import hypothesis
import pytest
import torch
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants

from golden import files
from golden.model import Vector
from kernels import catalog
from kernels.cuda import ToolchainMissing
from suites import counterexamples, deviations
from suites import recording as record
from suites.deviating import (
    Collected,
    Deviating,
    Tests,
    checkout_id,
)
from suites.runner import ORACLE, Runner
from suites.session import (
    GPU_TIER,
    IN_PROCESS,
    REPLAY,
    RUNNERS,
    STATE,
    State,
    contracts_of,
    implementation_of,
    operations_of,
)
from suites.watch.patching import mend_interpreter

pytest_plugins = ["suites.outcomes"]

CASES: Final = 40  # generated cases a test


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
    # Hypothesis would draw constants, too, that it finds in whatever code is loaded, kernels among
    # it: each implementation would be judged by cases of its own, and a test alone by others.
    none = patch.object(HypothesisProvider, "_local_constants", Constants())
    none.start()
    config.add_cleanup(none.stop)


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
    return Runner(request.param, state.device, Deviating(declared, contracts_of(item), ids))


@pytest.fixture
def replayed(request: pytest.FixtureRequest) -> tuple[str, Vector]:
    """Each vector of the file given to ``--replay``, with its operation."""
    operation_and_vector: tuple[str, Vector] = request.param
    return operation_and_vector


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
        for unknown in set(contracts_of(item)) - state.contracts.keys():
            raise pytest.UsageError(
                f"{item.nodeid}: no contract {unknown!r}; add it to golden/contracts.toml"
            )
        if state.device.type == "cuda" and implementation_of(item) is not None:
            item.add_marker(pytest.mark.gpu)
        if missing := _missing(implementation_of(item), state.device, item.path):
            item.add_marker(pytest.mark.skip(reason=missing))
    state.collected.before_selection(_tests(items), {item.path for item in items})


def pytest_collection_finish(session: pytest.Session) -> None:
    parts = any("::" in argument for argument in session.config.args)
    session.config.stash[STATE].collected.after_selection(_tests(session.items), parts=parts)


def _tests(items: list[pytest.Item]) -> Tests:
    return Tests(
        (tested.name, contract)
        for item in items
        if (tested := implementation_of(item)) is not None
        for contract in contracts_of(item)
    )


def _asked(item: pytest.Item, state: State) -> bool:
    """Whether the implementation that a test is about is to be asked for what the test calls.

    A built-in one is, if it has all of it. A user's own is, if it has any operation of the same
    protocol of `kernels.api`: the others are then seen to be missing. The oracle is, if any other
    has an operation of the same family.
    """
    tested, called = implementation_of(item), operations_of(item)
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
