"""Captured once as a CUDA graph, replayed over other contents at the same addresses."""

import pytest

from golden.model import Operation
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.samples import sample
from suites.runner import Runner
from suites.verdicts import Nonconformance
from suites.watch.memory import Poison

REPLAYS = (1, 2, 1, 0)  # salts of the samples; that of the capture comes last


def require_replayable(runner: Runner, device: Device, operation: Operation) -> None:
    """Require each replay to give the results of what its inputs then hold.

    No specification asks for a call that can be captured. One that cannot, as it waits for the
    device in the middle, is unsupported.
    """
    case = sample(operation)
    runner.judge(case)
    call = runner.place(case)
    try:
        replay, results = device.capture(call)
    except (Nonconformance, RuntimeError) as error:  # it has just been right without a capture
        runner.unsupported = True
        pytest.skip(f"{runner.name} cannot be captured as a CUDA graph: {_one_line(error)}")
    written = {result.data_ptr() for result in results}
    inputs = {tensor.data_ptr() for tensor in call.tensors.values()}
    for salt in REPLAYS:
        case = sample(operation, salt)
        for name, tensor in runner.place(case).tensors.items():
            call.tensors[name].copy_(tensor)
        if not written & inputs:
            for result in results:
                result.fill_(Poison.HIGH.of(result.dtype))
        device.synchronize()
        replay()
        device.synchronize()
        actual = tuple(result.clone().cpu() for result in results)
        bounds = case.bounds(runner.implementation.dot)
        runner.require_close(case, case.expected(), actual, bounds, "replayed over other contents")
        runner.cases += 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@pytest.mark.parametrize(
    "operation", [pytest.param(o, marks=contract(id_)) for o, id_ in DEFINED_BY.items()]
)
def test_a_graph_reads_what_its_inputs_hold_when_it_is_replayed(
    implementation: Runner, device: Device, operation: Operation
) -> None:
    require_replayable(implementation, device, operation)
