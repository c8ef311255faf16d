"""Tensors on a second device, while the first is the current one."""

import pytest

from golden.model import Operation
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.elsewhere import Reason, call_elsewhere
from suites.gpu.samples import sample
from suites.runner import Runner
from suites.verdicts import Nonconformance


def require_where_its_tensors_are(runner: Runner, device: Device, operation: Operation) -> None:
    """Require a call to work on the device of its tensors, whichever is the current one.

    In a process of its own: a kernel that runs on the other device may reach for memory that is
    not there, and its process can then use no device any more.
    """
    if device.second is None:
        pytest.skip(f"{device.name} is the only device of this machine")
    case = sample(operation)
    (outcome,) = call_elsewhere(runner.name, device.second, [case]).outcomes()
    statement = f"on {device.second}, while another device is the current one"
    if isinstance(outcome, Reason):
        if not outcome.failed:
            pytest.skip(outcome.text)
        raise Nonconformance(f"{statement}: {outcome.text}", case, status="crashed")
    bounds = case.bounds(runner.implementation.dot)
    runner.require_close(case, case.expected(), outcome, bounds, statement)
    runner.cases += 1


@pytest.mark.parametrize(
    "operation", [pytest.param(o, marks=contract(id_)) for o, id_ in DEFINED_BY.items()]
)
def test_a_call_works_where_its_tensors_are(
    implementation: Runner, device: Device, operation: Operation
) -> None:
    require_where_its_tensors_are(implementation, device, operation)
