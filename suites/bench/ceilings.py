"""What the device does at best, measured in the same run: copying, and multiplying matrices."""

from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from suites.bench.device import Device

ROUNDS: Final = 10
COPIED: Final = {True: 2**30, False: 2**26}  # bytes, by whether the device is a GPU
SIDE: Final = {True: 8192, False: 768}  # of the matrices


class Ceilings:
    """Of one device; each is measured when it is first asked for, and then known."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.rate = cache(self._rate)
        self.bandwidth = cache(self._bandwidth)

    def _bandwidth(self) -> float:
        """Bytes a second, those read and those written, of a copy that is larger than the cache."""
        size = max(COPIED[self._device.full_size], 2 * self._device.cache)
        origin = torch.ones(size, dtype=torch.uint8, device=self._device.place)
        target = torch.empty_like(origin)
        return 2 * size / self._seconds(lambda: self._device.copy(target, origin))

    def _rate(self, dtype: str) -> float:
        """Multiplications and additions a second, of square matrices of that type."""
        side, place = SIDE[self._device.full_size], self._device.place
        left, right, out = (
            torch.ones(side, side, dtype=getattr(torch, dtype), device=place) for _ in range(3)
        )
        return 2 * side**3 / self._seconds(lambda: self._device.multiply(left, right, out))

    def _seconds(self, call: Callable[[], None]) -> float:
        """The quickest of several: what a device can do, it has done once."""
        samples = []
        for _ in range(ROUNDS + 1):
            self._device.hold()
            start = self._device.timer()
            call()
            samples.append(self._device.timer() - start)
        return min(samples[1:])
