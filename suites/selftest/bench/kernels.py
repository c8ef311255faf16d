"""Implementations for the simulated device: right or wrong, and as quick as they say."""

from collections.abc import Callable
from typing import Any

import torch

from kernels.catalog import Implementation, load
from suites.runner import Runner
from suites.selftest.bench.fake import FakeDevice

CPU = torch.device("cpu")
Function = Callable[..., Any]


def runner(device: FakeDevice, seconds: float, **other: Function) -> Runner:
    """The torch reference, which takes so long on the device; ``other`` functions in its place."""

    def taking_time(function: Function) -> Function:
        def call(*arguments: Any) -> Any:
            device.spend(seconds)
            return function(*arguments)

        return call

    operations = {**load("torch").operations, **other}
    return Runner(
        Implementation("kernel", {name: taking_time(each) for name, each in operations.items()}),
        CPU,
    )
