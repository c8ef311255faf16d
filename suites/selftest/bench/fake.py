"""A device with a simulated clock, and the plug-in that puts it in the place of a real one.

Tensors are on the CPU and results are real; time passes only where something says that it takes
some. ``-p suites.selftest.bench.fake`` with the parameters as JSON in FAKE_DEVICE.
"""

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from suites.bench.device import Clocks

LAUNCH: Final = 8e-6  # seconds that the host takes to launch what is not in a graph
COLD: Final = 3.0  # how many times longer a call takes that finds nothing in the cache
CPU: Final = torch.device("cpu")
BANDWIDTH: Final = 4e12  # bytes a second


@dataclass
class FakeDevice:
    """A GPU as far as the harness can tell.

    ``noise``: the deviation of a time, in relation to it. ``lost_after``: how many calls it takes
    until every one raises. ``throttled``: what slows its clock.
    """

    name: str = "NVIDIA H200"
    noise: float = 0.0
    lost_after: float = float("inf")
    throttled: tuple[str, ...] = ()
    full_size: bool = False
    graphs: bool = True
    cache: int = 2**16
    memory: int = 2**34
    place: torch.device = CPU
    now: float = 0.0
    calls: int = 0
    cold: bool = False
    replaying: bool = False
    held: bool = False
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def spend(self, seconds: float) -> None:
        """What a kernel does on this device: take its time, or find it gone."""
        self.calls += 1
        self._answer()
        seconds *= (COLD if self.cold else 1) * max(1 + self.draw.gauss(0, self.noise), 0.1)
        self.now += seconds + (0 if self.replaying or self.held else LAUNCH)
        self.cold = self.held = False

    def _answer(self) -> None:
        if self.calls > self.lost_after:
            raise RuntimeError("CUDA error: device lost")

    def timer(self) -> float:
        return self.now

    def synchronise(self) -> None:
        self._answer()

    def hold(self) -> None:
        self.held = True

    def evict(self) -> None:
        self.cold = True

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        outputs = call()

        def replay() -> None:
            self.replaying = True
            try:
                results = call()
            finally:
                self.replaying = False
            for output, result in zip(_each(outputs), _each(results), strict=True):
                if result is not None:
                    output.copy_(result)

        return replay, outputs

    def copy(self, to: Tensor, origin: Tensor) -> None:
        to.copy_(origin)
        self.spend(2 * origin.nbytes / BANDWIDTH)

    def multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        self.spend(2 * left.shape[0] ** 3 / 1e15)

    def peak(self, call: Callable[[], Any]) -> tuple[int, Any]:
        return 2**20, call()

    def clocks(self) -> Clocks:
        return Clocks(1980, self.throttled)


def _each(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


DEVICE: Final = FakeDevice(**json.loads(os.environ.get("FAKE_DEVICE", "{}")))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    from suites.bench.conftest import BENCH, Bench  # pytest is to import the plug-in first

    DEVICE.throttled = tuple(DEVICE.throttled)
    config.stash[BENCH] = Bench(DEVICE)
