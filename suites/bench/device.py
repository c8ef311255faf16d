"""What the harness needs of a device: a timer, graphs, a cold cache, clocks, and to be alive.

`Cuda` is written from the documentation of torch and NVML and has not been run on a GPU.
"""

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from suites.devices import DEVICES, Board
from suites.verdicts import Ended
from suites.watch.memory import peak_allocation

PATIENCE: Final = 60.0  # seconds until a device that does not answer is given up
HELD_CYCLES: Final = 400_000  # some 0.2 ms: longer than it takes to launch what is timed

# The names by which drivers know the boards of `suites.devices`, in full: an "NVIDIA L40S" is no
# L4, and an H100 in a PCIe slot not the one whose peaks we have.
BOARDS: Final = {
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80 GB",
    "NVIDIA L4": "L4",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA B200": "HGX B200",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "AMD Instinct MI300X": "MI300X",
}


class DeviceLost(Ended):
    """The device no longer answers, or answers everything with an error."""

    status = "crashed"


class CaptureRefused(Exception):  # noqa: N818 - what the call said
    """A call that cannot be put into a graph: it waits for the device, or is refused there."""


class Reading(Protocol):
    """A point in time: the difference of two is in seconds."""

    def __sub__(self, earlier: Any, /) -> float: ...


@dataclass(frozen=True)
class Clocks:
    """The clock of the multiprocessors, MHz, and what slows it down.

    ``missing``: why neither is known, empty where they are.
    """

    mhz: int = 0
    throttled: tuple[str, ...] = ()
    missing: str = ""

    def __str__(self) -> str:
        if self.missing:
            return f"not known: {self.missing}"
        return f"{self.mhz} MHz" + "".join(f", {each}" for each in self.throttled)


class Device(Protocol):
    """Where calls are timed.

    ``place``: where torch puts tensors. ``full_size``: whether the shapes are those of a serving
    GPU. ``cache``: bytes of the last level. ``memory``: bytes in all. ``graphs``: whether calls can
    be captured.
    """

    name: str
    place: torch.device
    full_size: bool
    cache: int
    memory: int
    graphs: bool

    def timer(self) -> Reading:
        """Now, in the order of what the device was given to do."""
        ...

    def synchronise(self) -> None:
        """Return when all is done. Raises DeviceLost where the device does not answer."""
        ...

    def evict(self) -> None:
        """Fill the last level cache with something else."""
        ...

    def hold(self) -> None:
        """Keep the device busy while what is timed is launched, so that launching costs nothing."""
        ...

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What replays a call, and the results that it writes. Raises CaptureRefused."""
        ...

    def copy(self, to: Tensor, origin: Tensor) -> None: ...

    def multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None: ...

    def peak(self, call: Callable[[], Any]) -> tuple[int, Any]:
        """Bytes that a call holds at its peak beside what there was, and what it returned."""
        ...

    def clocks(self) -> Clocks: ...


def board_of(device: Device) -> Board | None:
    """What is published of a device; None where it is not one of those that we know."""
    name = BOARDS.get(device.name)
    return DEVICES[name] if name else None


def alive(device: Device) -> bool:
    """Whether the device still works, asked after an error: CUDA's are often for good."""
    try:
        device.synchronise()
    except Exception:  # whatever it says
        return False
    return True


class Torch:
    """What torch does alike wherever it is."""

    place: torch.device

    def copy(self, to: Tensor, origin: Tensor) -> None:
        to.copy_(origin)

    def multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        torch.mm(left, right, out=out)

    def peak(self, call: Callable[[], Any]) -> tuple[int, Any]:
        with peak_allocation(self.place) as peak:
            result = call()
        return peak.bytes, result


# --- the host ------------------------------------------------------------------------------------


class Host(Torch):
    """The CPU: its calls are done when they return, and there is nothing to launch.

    One thread: several wait for the slowest of them, which another program on the machine decides.
    """

    full_size = False
    graphs = False
    place = torch.device("cpu")
    timer = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.name = f"one thread of {os.cpu_count()}"
        self.cache = _last_level_cache()
        self.memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def synchronise(self) -> None:
        pass

    def hold(self) -> None:
        pass

    @cached_property
    def _other(self) -> Tensor:
        return torch.empty(2 * self.cache, dtype=torch.uint8)

    def evict(self) -> None:
        self._other.fill_(1)

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        raise CaptureRefused("a CPU has no graphs")

    def clocks(self) -> Clocks:
        return Clocks(missing="a CPU is not asked for its clock")


def _last_level_cache() -> int:
    """Bytes; 32 MiB where the system does not say."""
    for level in ("SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        if level in os.sysconf_names and (size := os.sysconf(level)) > 0:
            return size
    return 2**25


# --- CUDA ----------------------------------------------------------------------------------------


class Cuda(Torch):
    """A GPU by way of ``torch.cuda``, on the current stream; ``cuda`` stands in for it in tests."""

    full_size = True
    graphs = True

    def __init__(self, place: torch.device, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self.place = torch.device("cuda", place.index or 0)
        cuda.set_device(self.place)  # events and graphs are of the current one
        properties = cuda.get_device_properties(self.place)
        self.name: str = properties.name
        self.memory: int = properties.total_memory
        self.cache: int = getattr(properties, "L2_cache_size", 0) or 2**26
        self._uuid = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else ""

    def timer(self) -> "Instant":
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return Instant(event, self)

    def synchronise(self) -> None:
        event = self._cuda.Event()
        event.record()
        self.wait(event)

    def wait(self, event: Any) -> None:
        """Wait for an event without a call that could wait for ever."""
        deadline = time.monotonic() + PATIENCE
        while not event.query():
            if time.monotonic() > deadline:
                raise DeviceLost(f"{self.name} did not answer within {PATIENCE:g} s")
            time.sleep(1e-5)

    @cached_property
    def _other(self) -> Tensor:
        return torch.empty(2 * self.cache, dtype=torch.uint8, device=self.place)

    def evict(self) -> None:
        """Written, not read: what then takes the place of these lines has to write them back."""
        self._other.fill_(1)

    def hold(self) -> None:
        self._cuda._sleep(HELD_CYCLES)

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """On a side stream first, for what a first call does once: compile, tune, allocate."""
        cuda = self._cuda
        side = cuda.Stream(self.place)
        side.wait_stream(cuda.current_stream(self.place))
        with cuda.stream(side):
            call()
        cuda.current_stream(self.place).wait_stream(side)
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph):
                results = call()
        except RuntimeError as error:
            self.synchronise()
            raise CaptureRefused(" ".join(str(error).split())[:200]) from error
        return graph.replay, results

    def clocks(self) -> Clocks:
        return nvml_clocks(self._uuid)


class Instant:
    """An event on a stream.

    ``elapsed_time`` is milliseconds in fp32, which an hour after a common start are a quarter of a
    millisecond apart. Here every difference has a start of its own: nothing is counted from a base.
    To take one waits for no device; to subtract does.
    """

    def __init__(self, event: Any, device: Cuda) -> None:
        self._event = event
        self._device = device

    def __sub__(self, earlier: "Instant") -> float:
        self._device.wait(self._event)
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return milliseconds / 1e3


# --- clocks, by NVML -----------------------------------------------------------------------------

# Bits of NVML's reasons that make a figure worthless; idle and a clock that a person set do not.
REASONS: Final = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
QUERIES: Final = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


def nvml_clocks(uuid: str) -> Clocks:
    """By pynvml where it is installed, else by nvidia-smi."""
    if not uuid:
        return Clocks(missing="torch does not tell the board's UUID")
    try:
        return _by_pynvml(import_module("pynvml"), uuid)
    except ImportError:
        return _by_nvidia_smi(uuid)


def _by_pynvml(nvml: ModuleType, uuid: str) -> Clocks:
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        mhz = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except nvml.NVMLError as error:
        return Clocks(missing=f"NVML says {error}")
    return Clocks(int(mhz), _reasons(int(reasons)))


def _by_nvidia_smi(uuid: str) -> Clocks:
    said = ""
    for reasons in QUERIES:  # the second is what drivers before 535 call it
        query = [f"--query-gpu=clocks.sm,{reasons}", "--format=csv,noheader,nounits"]
        try:
            run = subprocess.run(
                ["nvidia-smi", "-i", uuid, *query], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Clocks(missing=f"no pynvml, and nvidia-smi fails: {error}")
        said = " ".join((run.stdout + run.stderr).split())
        if run.returncode == 0:
            try:
                mhz, bits = run.stdout.strip().split(",")
                return Clocks(int(mhz), _reasons(int(bits, 16)))
            except ValueError:
                break
    return Clocks(missing=f"nvidia-smi says {said}")


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(reason for bit, reason in REASONS.items() if bits & bit)
