"""The same generated cases on the CPU, where Triton is interpreted, and compiled on the device."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from golden.model import Operation
from suites.cases import ROWS, Case
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.elsewhere import Reason, call_elsewhere
from suites.runner import Runner
from suites.strategies import witness, xattention

CASES = 30


def generated(operation: Operation, number: int) -> list[Case]:
    """Cases of the operation's strategy; the same ones for the same seed."""
    drawn: list[Case] = []
    strategy = witness.cases(operation) if operation in ROWS else xattention.cases(operation)

    @seed(number)
    @settings(
        max_examples=CASES,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        drawn.append(data.draw(strategy))

    draw()
    return drawn


def require_same_as_on_the_cpu(runner: Runner, cases: list[Case]) -> None:
    """Require the results that the implementation has on the CPU, in a process of its own.

    Floats may be apart by the bounds of both. What the CPU cannot run, or the implementation
    refuses, is left out; the test is, where nothing else remains.
    """
    left = call_elsewhere(
        runner.name, torch.device("cpu"), cases, environment={"TRITON_INTERPRET": "1"}
    )
    reasons = []
    for case, there in zip(cases, left.outcomes(), strict=True):
        if isinstance(there, Reason):
            reasons.append(there.text)
            continue
        here = runner.call(case)
        bounds = tuple(
            None if bound is None else 2 * bound for bound in case.bounds(runner.implementation.dot)
        )
        statement = "the device and the CPU disagree (expected: of the CPU)"
        runner.require_close(case, there, here, bounds, statement)
    if len(reasons) == len(cases):
        pytest.skip(f"no case can be run on the CPU: {reasons[0]}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "operation", [pytest.param(o, marks=contract(id_)) for o, id_ in DEFINED_BY.items()]
)
def test_the_device_and_the_cpu_agree(
    implementation: Runner, device: Device, operation: Operation, request: pytest.FixtureRequest
) -> None:
    cases = generated(operation, request.config.getoption("--seed"))
    require_same_as_on_the_cpu(implementation, cases)
