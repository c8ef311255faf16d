"""What a run is about, and what each of its tests is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import torch

from golden.model import Contract, VectorFile
from golden.record import Header
from kernels import catalog
from suites import deviations
from suites import recording as record
from suites.deviating import Collected
from suites.runner import Runner

ROOT: Final = Path(__file__).parent.parent
REPLAY: Final = ROOT / "suites" / "test_replay.py"
SANITIZE_TIER: Final = ROOT / "suites" / "sanitize"
GPU_TIER: Final = ROOT / "suites" / "gpu"
IN_PROCESS: Final = (SANITIZE_TIER, GPU_TIER, ROOT / "suites" / "bench")  # not of a worker
STATE: Final = pytest.StashKey["State"]()
Summary = Callable[[pytest.TerminalReporter, record.Recording], None]
SUMMARY: Final = pytest.StashKey[Summary]()  # what a tier prints in the place of the matrix
RUNNERS: Final = ("implementation", "implementation_or_oracle")


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


def contracts_of(item: pytest.Item) -> tuple[str, ...]:
    marks = reversed(list(item.iter_markers("contract")))
    return tuple(dict.fromkeys(id_ for mark in marks for id_ in mark.args))


def implementation_of(item: pytest.Item) -> catalog.Implementation | None:
    """The implementation that a test is about, if it is about one."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return next((parameters[fixture] for fixture in RUNNERS if fixture in parameters), None)


def runner_of(item: pytest.Item) -> Runner | None:
    """The runner of a test that has been set up."""
    arguments = getattr(item, "funcargs", {})
    return next((arguments[f] for f in RUNNERS if f in arguments), None)


def header_of(config: pytest.Config) -> Header:
    state, arguments = config.stash[STATE], config.invocation_params.args
    folder = config.invocation_params.dir
    return record.header(folder, state.device, state.seed, state.names, arguments)
