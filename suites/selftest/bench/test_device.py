"""`Cuda` on a simulated ``torch.cuda``, and clocks by what NVML's tools print."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from suites.bench import device as module
from suites.bench.device import (
    BOARDS,
    CaptureRefused,
    Clocks,
    Cuda,
    DeviceLost,
    Host,
    alive,
    board_of,
    nvml_clocks,
)
from suites.devices import DEVICES

HOUR = 3600.0
CUDA = torch.device("cuda", 0)


class SimulatedCuda:
    """As much of ``torch.cuda`` as is used. ``now``: seconds; events are done when recorded."""

    def __init__(self, name: str = "NVIDIA H200") -> None:
        self.now = 0.0
        self.answers = True
        self.broken = False
        self.steps: list[str] = []
        self.capturing = False
        self.name = name

    def get_device_properties(self, place: torch.device) -> Any:
        return SimpleNamespace(name=self.name, total_memory=2**37, L2_cache_size=2**26, uuid="1")

    def set_device(self, place: torch.device) -> None:
        self.current = place

    def Event(self, enable_timing: bool = False) -> "Event":  # noqa: N802
        return Event(self, enable_timing)

    def Stream(self, place: torch.device) -> Any:  # noqa: N802
        return SimpleNamespace(wait_stream=lambda other: self.steps.append("side waits"))

    def current_stream(self, place: torch.device) -> Any:
        return SimpleNamespace(wait_stream=lambda other: self.steps.append("current waits"))

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.steps.append("on the side")
        yield

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(replay=lambda: self.steps.append("replayed"))

    @contextmanager
    def graph(self, graph: Any) -> Any:
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def _sleep(self, cycles: int) -> None:
        self.steps.append("held")


class Event:
    def __init__(self, cuda: SimulatedCuda, timing: bool) -> None:
        self.cuda, self.timing, self.at = cuda, timing, -1.0

    def record(self) -> None:
        if self.cuda.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        self.at = self.cuda.now

    def query(self) -> bool:
        return self.cuda.answers

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds, as exact as fp32 is."""
        assert self.timing
        assert end.timing
        return float(np.float32((end.at - self.at) * 1e3))


@pytest.fixture
def cuda() -> SimulatedCuda:
    return SimulatedCuda()


@pytest.fixture
def gpu(cuda: SimulatedCuda) -> Cuda:
    return Cuda(CUDA, cuda)


# --- the timer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("since", [0.0, 1.0, HOUR, 24 * HOUR])
def test_a_round_is_as_exact_after_a_day_as_at_once(
    cuda: SimulatedCuda, gpu: Cuda, since: float
) -> None:
    gpu.timer()
    cuda.now += since
    start = gpu.timer()
    cuda.now += 5e-6
    assert gpu.timer() - start == pytest.approx(5e-6, rel=1e-4)


def test_to_start_the_clock_waits_for_nothing(cuda: SimulatedCuda, gpu: Cuda) -> None:
    """Else the device would be idle until the call is launched, and that would be timed."""
    cuda.answers = False
    gpu.timer()


def test_a_device_that_does_not_answer_is_given_up(
    cuda: SimulatedCuda, gpu: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    cuda.answers = False
    start = gpu.timer()
    with pytest.raises(DeviceLost, match="NVIDIA H200 did not answer"):
        gpu.timer() - start
    with pytest.raises(DeviceLost):
        gpu.synchronise()
    assert not alive(gpu)


def test_a_device_that_raises_is_not_alive(cuda: SimulatedCuda, gpu: Cuda) -> None:
    assert alive(gpu)
    cuda.broken = True
    assert not alive(gpu)


def test_events_are_of_the_device_that_was_asked_for(cuda: SimulatedCuda) -> None:
    Cuda(torch.device("cuda", 1), cuda)
    assert cuda.current == torch.device("cuda", 1)


# --- graphs --------------------------------------------------------------------------------------


def test_a_call_is_made_once_ahead_and_then_captured(cuda: SimulatedCuda, gpu: Cuda) -> None:
    def call() -> bool:
        cuda.steps.append("called")
        return cuda.capturing

    replay, result = gpu.capture(call)
    assert result is True
    assert cuda.steps == ["side waits", "on the side", "called", "current waits", "called"]
    replay()
    assert cuda.steps[-1] == "replayed"


def test_a_call_that_waits_for_the_device_is_refused(cuda: SimulatedCuda, gpu: Cuda) -> None:
    def call() -> None:
        if cuda.capturing:
            raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")

    with pytest.raises(CaptureRefused, match="not permitted when stream is capturing"):
        gpu.capture(call)
    assert alive(gpu)


# --- boards --------------------------------------------------------------------------------------


def test_every_board_has_peaks_and_every_peak_a_board() -> None:
    assert sorted(BOARDS.values()) == sorted(DEVICES)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_a_board_is_known_by_its_whole_name(name: str, known: str | None) -> None:
    assert board_of(Cuda(CUDA, SimulatedCuda(name))) == (DEVICES[known] if known else None)


# --- clocks --------------------------------------------------------------------------------------


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program of that name, and no pynvml."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("bits", "throttled"),
    [
        ("0x0000000000000000", ()),
        ("0x0000000000000001", ()),  # idle
        ("0x0000000000000002", ()),  # a person set the clock
        ("0x0000000000000004", ("software power cap",)),
        ("0x0000000000000060", ("software thermal slowdown", "hardware thermal slowdown")),
    ],
)
def test_nvidia_smi_is_read(
    bits: str, throttled: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi(tmp_path, monkeypatch, f"echo '1980, {bits}'")
    assert nvml_clocks("GPU-1") == Clocks(1980, throttled)


def test_an_older_nvidia_smi_is_asked_by_the_older_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = 'case "$*" in *event*) echo "not a valid field"; exit 2;; *) echo "1410, 0x8";; esac'
    nvidia_smi(tmp_path, monkeypatch, old)
    assert nvml_clocks("GPU-1") == Clocks(1410, ("hardware slowdown",))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo No devices were found; exit 6", "No devices were found"),
        ("echo '[N/A], [N/A]'", "N/A"),
    ],
)
def test_clocks_that_are_not_known_say_why(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi(tmp_path, monkeypatch, script)
    assert said in str(nvml_clocks("GPU-1"))


def test_without_any_tool_the_clocks_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no pynvml, and nvidia-smi fails" in str(nvml_clocks("GPU-1"))
    assert not Host().clocks().throttled


def test_pynvml_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml: Any = ModuleType("pynvml")
    nvml.NVML_CLOCK_SM, nvml.NVMLError = 1, ValueError
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvml.nvmlDeviceGetClockInfo = lambda handle, which: 1755
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x80
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert nvml_clocks("GPU-1") == Clocks(1755, ("power brake",))

    def lost(handle: str) -> int:
        raise ValueError("GPU is lost")

    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lost
    assert "GPU is lost" in nvml_clocks("GPU-1").missing
