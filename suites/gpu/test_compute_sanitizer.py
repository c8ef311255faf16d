"""The golden vectors under compute-sanitizer, which watches every access of compiled kernels.

Memory is allocated anew each time and not poisoned, so that initcheck knows what was written.
"""

import shutil
from collections.abc import Callable, Sequence
from typing import Final

import pytest
import torch

from golden import files
from golden.model import Operation
from suites.cases import ROWS, Case, Results
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.elsewhere import Left, Reason, call_elsewhere
from suites.runner import Runner
from suites.verdicts import Nonconformance

TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND: Final = 9  # the exit code that we ask for
# Torch's allocator would hand out memory again that was once written, or lies inside a larger
# block; and each launch is to be done before the next.
PLAIN: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_LAUNCH_BLOCKING": "1"}


def vectors(*operations: str) -> list[Case]:
    """The golden vectors of operations that are legal calls."""
    return [
        Case(operation, vector.inputs)
        for operation, vector in files.all_vectors()
        if vector.refusal is None and operation in operations
    ]


class Sanitizer:
    """Runs the tools, at first each on all operations of an implementation at once."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], Left] = {}

    def require_nothing_found(
        self, runner: Runner, device: torch.device, tool: str, operation: str
    ) -> None:
        """Require a tool to find nothing in the calls of an operation's vectors.

        A finding is narrowed down to one call that shows it. Leaves the test without the program,
        and where no call of the operation can be made.
        """
        key, every = (runner.name, tool), vectors(*runner.implementation.operations)
        if key not in self._left:
            self._left[key] = run(runner, device, tool, every)
        if self._left[key].status:
            outcomes = _require_nothing_found(runner, device, tool, vectors(operation))
        else:
            found = zip(every, self._left[key].outcomes(), strict=True)
            outcomes = [outcome for case, outcome in found if case.operation == operation]
        reasons = [outcome.text for outcome in outcomes if isinstance(outcome, Reason)]
        if len(reasons) == len(outcomes):
            pytest.skip(f"no call of {operation} can be made under {tool}: {[*reasons, ''][0]}")
        runner.cases += len(outcomes) - len(reasons)


def run(runner: Runner, device: torch.device, tool: str, cases: Sequence[Case]) -> Left:
    """The calls under a tool. Leaves the test without compute-sanitizer."""
    if not (program := shutil.which("compute-sanitizer")):
        pytest.skip("no compute-sanitizer on the path; it comes with the CUDA toolkit")
    under = [program, "--tool", tool, "--error-exitcode", str(FOUND)]
    return call_elsewhere(runner.name, device, cases, under=under, environment=PLAIN)


def _require_nothing_found(
    runner: Runner, device: torch.device, tool: str, cases: Sequence[Case]
) -> list[Results | Reason]:
    left = run(runner, device, tool, cases)
    if left.status == FOUND:
        case = _one_that_fails(cases, lambda some: run(runner, device, tool, some).status == FOUND)
        raise Nonconformance(f"{tool}: {_finding(left.said)}", case)
    return left.outcomes()  # raises, where it ended otherwise


def _one_that_fails(cases: Sequence[Case], fails: Callable[[Sequence[Case]], bool]) -> Case:
    """By halves. Where neither half fails alone, the first of both: the report names the kernel."""
    while len(cases) > 1:
        halves = cases[: len(cases) // 2], cases[len(cases) // 2 :]
        failing = next((half for half in halves if fails(half)), None)
        if failing is None:
            break
        cases = failing
    return cases[0]


def _finding(said: str) -> str:
    """The first lines of a report, without its frame: what, where, and by which thread."""
    lines = [line.strip("= ") for line in said.splitlines() if line.startswith("=========")]
    lines = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")]
    return "; ".join(lines[:3]) or f"it ended with {FOUND} and said nothing"


@pytest.fixture(scope="session")
def sanitizer() -> Sanitizer:
    """One for all tests: what it has found out is not asked again."""
    return Sanitizer()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(o, marks=contract(id_))
        for o in DEFINED_BY
        for id_ in ["witness.inputs.unchanged" if o in ROWS else "xattention.memory.in-bounds"]
    ],
)
@pytest.mark.parametrize("tool", TOOLS)
def test_compute_sanitizer_finds_nothing(
    implementation: Runner, device: Device, sanitizer: Sanitizer, tool: str, operation: Operation
) -> None:
    sanitizer.require_nothing_found(implementation, device.name, tool, operation)
