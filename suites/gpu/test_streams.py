"""On a side stream: the work is put there, and is done when that stream is."""

import pytest

from golden.model import Operation
from suites.comparison import difference
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.samples import sample
from suites.runner import Runner


def require_on_its_stream(runner: Runner, device: Device, operation: Operation) -> None:
    """Require a call to work on the current stream, which is not the default one.

    The inputs are 0 until a copy on the stream makes them what they are, and the copy waits behind
    a kernel that takes its time. All other streams are idle: work on one of them sees the 0s. The
    results are read as soon as the stream is done: work that it does not wait for comes too late.
    """
    case = sample(operation)
    runner.judge(case)  # alone it is right, and now it is compiled
    expected, bounds = case.expected(), case.bounds(runner.implementation.dot)
    call = runner.place(case)
    inputs = {name: tensor.clone() for name, tensor in call.tensors.items()}

    for tensor in call.tensors.values():
        tensor.zero_()
    too_early = tuple(result.clone().cpu() for result in call())
    if difference(case.specification.results, expected, too_early, bounds) is None:
        raise ValueError(f"the sample of {operation} has the results that zeros have")
    for tensor in call.tensors.values():
        tensor.zero_()
    device.synchronize()

    stream = device.side_stream()
    with device.on(stream):
        device.delay()
        for name, tensor in call.tensors.items():
            tensor.copy_(inputs[name])
        results = call()
    stream.synchronize()
    with device.on(stream):
        actual = tuple(result.clone().cpu() for result in results)
    runner.require_close(case, expected, actual, bounds, "on a side stream")


@pytest.mark.parametrize(
    "operation", [pytest.param(o, marks=contract(id_)) for o, id_ in DEFINED_BY.items()]
)
def test_a_call_works_on_the_current_stream(
    implementation: Runner, device: Device, operation: Operation
) -> None:
    require_on_its_stream(implementation, device, operation)
