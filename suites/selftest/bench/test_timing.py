"""One benchmark on the simulated device: its time, what is taken from it, and what is refused."""

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.logger import Logger
from pytest_benchmark.utils import NameWrapper
from torch import Tensor

from kernels.catalog import load
from suites.bench.calls import Call, estimate_calls, stage_calls, witness_call
from suites.bench.device import board_of
from suites.bench.timing import (
    Cache,
    CallFailed,
    Figure,
    Impossible,
    Launch,
    fastest,
    measured,
    timed,
)
from suites.cases import APPLY, INDICES, MERGE, NORMALISE, SELECT, SERVE, STATS
from suites.runner import Runner
from suites.selftest.bench.fake import BANDWIDTH, COLD, LAUNCH, FakeDevice
from suites.selftest.bench.kernels import runner
from suites.verdicts import Nonconformance

SECONDS = 20e-6
TORCH = load("torch").operations
ROWS = witness_call(APPLY, 32)
STAGES = {call.operation: call for call in stage_calls(False) if "bfloat16" not in call.label}


def fixture(device: FakeDevice, *, disabled: bool = False) -> BenchmarkFixture:
    """pytest-benchmark's, made by hand: its own is disabled where tests run side by side."""
    options = {
        "disable_gc": False,
        "timer": NameWrapper(device.timer),  # type: ignore[no-untyped-call]
        "min_rounds": 5,
        "min_time": 0,
        "max_time": 1,
        "precision": None,
        "confidence": None,
        "warmup": False,
        "warmup_iterations": 0,
        "calibration_precision": 10,
        "add_stats": lambda stats: None,
        "logger": Logger(Logger.QUIET),  # type: ignore[no-untyped-call]
        "warner": None,
        "disabled": disabled,
        "cprofile": None,
        "cprofile_loops": None,
        "cprofile_dump": None,
    }
    known = signature(BenchmarkFixture).parameters  # some came with later versions
    node = SimpleNamespace(name="test", nodeid="test")
    return BenchmarkFixture(  # type: ignore[no-untyped-call]
        node, **{name: value for name, value in options.items() if name in known}
    )


def time_call(
    device: FakeDevice,
    tested: Runner,
    call: Call = ROWS,
    cache: Cache = "warm",
    launch: Launch = "eager",
    benchmark: BenchmarkFixture | None = None,
) -> Figure:
    it = timed(device, tested, call, cache, launch, seed=0, against_copy=call is ROWS)
    figure = measured(benchmark or fixture(device), it, 5)
    assert figure is not None
    return figure


# --- what a time is of ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", [ROWS, witness_call(SERVE, 32), *STAGES.values()], ids=str)
def test_a_cold_call_finds_nothing_in_the_cache(call: Call) -> None:
    device = FakeDevice()
    tested = runner(device, SECONDS)
    warm, cold = (time_call(device, tested, call, cache) for cache in ("warm", "cold"))
    assert warm.seconds == pytest.approx(SECONDS + LAUNCH)
    assert cold.seconds == pytest.approx(COLD * SECONDS + LAUNCH)


@pytest.mark.parametrize("call", [ROWS, witness_call(SERVE, 32), *STAGES.values()], ids=str)
def test_launching_is_told_apart(call: Call) -> None:
    device = FakeDevice()
    tested = runner(device, SECONDS)
    eager, replay = (time_call(device, tested, call, "cold", x) for x in ("eager", "replay"))
    assert eager.seconds - replay.seconds == pytest.approx(LAUNCH)


@pytest.mark.parametrize(("cache", "times"), [("cold", COLD), ("warm", 1)])
def test_copying_is_timed_as_the_call_is(cache: Cache, times: float) -> None:
    device = FakeDevice()
    figure = time_call(device, runner(device, SECONDS), ROWS, cache)
    assert figure.copying == pytest.approx(times * 2 * 32 * 2048 * 4 / BANDWIDTH + LAUNCH)


def test_the_samples_are_as_far_apart_as_the_device_makes_them() -> None:
    steady, noisy = FakeDevice(), FakeDevice(noise=0.2)
    figures = [time_call(device, runner(device, SECONDS)) for device in (steady, noisy)]
    assert figures[0].spread == pytest.approx(0, abs=1e-9)
    assert 0.03 < figures[1].spread < 0.6


def test_inputs_are_rotated() -> None:
    seen = set()

    def see(learned: Tensor, *rest: Any) -> Tensor:
        seen.add(learned.data_ptr())
        return TORCH[APPLY](learned, *rest)  # type: ignore[no-any-return]

    device = FakeDevice()
    time_call(device, runner(device, SECONDS, **{APPLY: see}))
    assert len(seen) > 1


# --- a wrong result has no time ------------------------------------------------------------------


def after(calls: int, operation: str, change: Any) -> Any:
    """The reference until so many calls were made, then what ``change`` makes of its results."""
    made: list[None] = []

    def call(*arguments: Any) -> Any:
        made.append(None)
        result = TORCH[operation](*arguments)
        return result if len(made) <= calls else change(result)

    return call


def spoil(result: Tensor) -> Tensor:
    result.view(-1)[-1] += 1
    return result


def refused(
    operation: str,
    function: Any,
    call: Call,
    launch: Launch = "eager",
    cache: Cache = "warm",
) -> Nonconformance:
    device = FakeDevice()
    benchmark = fixture(device)
    with pytest.raises(Nonconformance) as caught:
        time_call(
            device,
            runner(device, SECONDS, **{operation: function}),
            call,
            cache,
            launch,
            benchmark,
        )
    assert benchmark.has_error or benchmark.stats is None
    assert benchmark.stats is None or not benchmark.stats.stats.data
    return caught.value


def once_for_each(function: Any, again: Any) -> Any:
    """A call that does its work the first two times that it sees some memory, and never after.

    The first time is not a timed one.
    """
    seen: dict[int, list[Any]] = {}

    def call(first: Tensor, *rest: Any) -> Any:
        results = seen.setdefault(first.data_ptr(), [])
        if len(results) == 2:
            return again(results[-1])
        results.append(function(first, *rest))
        return results[-1]

    return call


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_result_that_is_left_from_an_earlier_call_is_refused(cache: Cache) -> None:
    """Nobody writes it, and nobody would have to: what torch frees it hands out again."""
    refused(APPLY, once_for_each(TORCH[APPLY], lambda result: result), ROWS, cache=cache)


@pytest.mark.parametrize("calls", [0, 3, 6])
def test_every_timed_result_is_looked_at(calls: int) -> None:
    """One slot of one row, in a late round, is enough, and the case is that row."""
    failure = refused(APPLY, after(calls, APPLY, spoil), ROWS)
    assert failure.case.tensor("learned_indices").shape == (1, 2048)
    assert "1 of 2048 elements" in failure.statement


def test_a_graph_that_writes_nothing_is_refused() -> None:
    """Though its results lie where the capture put them."""
    device = FakeDevice()

    def idle(*arguments: Any) -> Any:
        return None if device.replaying else TORCH[INDICES](*arguments)

    call = witness_call(INDICES, 32)
    with pytest.raises(Nonconformance):
        time_call(device, runner(device, SECONDS, **{INDICES: idle}), call, "cold", "replay")


def test_a_merge_in_place_that_does_nothing_is_refused() -> None:
    """Or that finds its rows merged already."""
    refused(SERVE, lambda *arguments: None, witness_call(SERVE, 32))
    refused(SERVE, once_for_each(TORCH[SERVE], lambda result: None), witness_call(SERVE, 32))


@pytest.mark.parametrize("operation", [x for x in STAGES if x != SELECT])
def test_a_stage_that_leaves_out_one_number_is_refused(operation: str) -> None:
    def change(results: Any) -> Any:
        last = results[-1] if isinstance(results, tuple) else results
        last.view(-1)[-7] *= 1.001
        return results

    failure = refused(operation, after(0, operation, change), STAGES[operation])
    assert "elements" in failure.statement
    assert failure.bounds is not None


def test_a_selection_that_leaves_out_a_block_is_refused() -> None:
    def change(mask: Tensor) -> Tensor:
        mask[0, -1, -1, 0] = False
        return mask

    refused(SELECT, after(0, SELECT, change), STAGES[SELECT])


@pytest.mark.parametrize("row", [0, -1])  # one that the oracle can afford, and one that it cannot
def test_an_estimate_without_its_sums_is_refused(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.bench.verification.AFFORDABLE", 2**18)
    (call,) = estimate_calls(False)

    def change(results: Any) -> Any:
        results[0][0, 1, row] *= 2
        return results

    refused(call.operation, after(0, call.operation, change), call)


def test_an_honest_estimate_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another order, rounded as often as honest ones are."""
    monkeypatch.setattr("suites.bench.verification.AFFORDABLE", 2**18)
    (call,) = estimate_calls(False)

    def change(results: Any) -> Any:
        sums, mask = results
        return sums * (1 + 2**-18), mask

    device = FakeDevice()
    time_call(
        device, runner(device, SECONDS, **{call.operation: after(0, call.operation, change)}), call
    )


def test_a_result_of_another_type_is_refused() -> None:
    failure = refused(NORMALISE, after(0, NORMALISE, Tensor.double), STAGES[NORMALISE])
    assert "is torch.float64" in failure.statement


def test_a_result_of_another_shape_is_refused() -> None:
    failure = refused(NORMALISE, after(0, NORMALISE, lambda sums: sums[..., 1:]), STAGES[NORMALISE])
    assert "[1, 2, 16, 15], not torch.float32 [1, 2, 16, 16]" in failure.statement


def test_a_call_that_raises_has_no_time() -> None:
    def fall(*arguments: Any) -> Any:
        raise ZeroDivisionError("of rows")

    device = FakeDevice()
    with pytest.raises(CallFailed, match="ZeroDivisionError: of rows"):
        time_call(device, runner(device, SECONDS, **{APPLY: fall}))


def test_statistics_in_base_two_are_converted() -> None:
    """Both ways: ``scale`` and m on the way in, m on the way out."""
    unit = torch.tensor(2.0).log().item()

    def stats(scores: Tensor, block: int, segment: int, scale: float, *rest: Any) -> Any:
        m, total = TORCH[STATS](scores, block, segment, scale * unit, *rest)
        return m / unit, total

    def merge(m_chunks: list[Tensor], l_chunks: list[Tensor]) -> Any:
        m, total = TORCH[MERGE]([each * unit for each in m_chunks], l_chunks)
        return m / unit, total

    based: dict[str, Any] = {STATS: stats, MERGE: merge}
    device = FakeDevice()
    plain = runner(device, SECONDS, **based).implementation
    tested = Runner(type(plain)("base2", plain.operations, exponent_base=2), torch.device("cpu"))
    for operation in (STATS, MERGE):
        time_call(device, tested, STAGES[operation])


# --- what cannot be ------------------------------------------------------------------------------


def test_an_impossible_time_is_refused() -> None:
    device = FakeDevice()
    floor = fastest(ROWS.work, device, "cold")
    assert floor is not None
    benchmark = fixture(device)
    with pytest.raises(Impossible, match="NVIDIA H200 needs"):
        time_call(
            device,
            runner(device, 0.9 * floor / COLD),
            ROWS,
            "cold",
            "replay",
            benchmark=benchmark,
        )
    assert benchmark.has_error
    assert benchmark.stats is not None
    assert not benchmark.stats.stats.data
    possible = time_call(device, runner(device, 1.1 * floor / COLD), ROWS, "cold", "replay")
    assert possible.floor == floor


def test_one_impossible_sample_is_enough() -> None:
    device = FakeDevice(noise=0.4)
    floor = fastest(ROWS.work, device, "cold")
    assert floor is not None
    with pytest.raises(Impossible):
        time_call(device, runner(device, 1.2 * floor / COLD), ROWS, "cold", "replay")


def test_a_board_without_published_peaks_refuses_nothing() -> None:
    device = FakeDevice(name="NVIDIA L40S")
    assert board_of(device) is None
    assert time_call(device, runner(device, 1e-12), ROWS, "cold", "replay").floor is None


def test_what_is_in_the_cache_need_not_move() -> None:
    """So a warm time may be below the floor of a cold one."""
    small, large = FakeDevice(cache=0), FakeDevice(cache=2**20)
    cold, warm = fastest(ROWS.work, large, "cold"), fastest(ROWS.work, large, "warm")
    assert cold == fastest(ROWS.work, small, "warm")
    assert warm == 0


# --- what is not to be believed ------------------------------------------------------------------


def test_a_throttled_clock_marks_the_figure() -> None:
    device = FakeDevice(throttled=("hardware thermal slowdown",))
    benchmark = fixture(device)
    figure = time_call(device, runner(device, SECONDS), benchmark=benchmark)
    assert figure.throttled == ("hardware thermal slowdown",)
    assert benchmark.extra_info["not to be believed"] == "hardware thermal slowdown"
    assert "1980 MHz" in benchmark.extra_info["clocks before"]


def test_a_clock_that_slows_down_meanwhile_marks_it_too() -> None:
    device = FakeDevice()

    def slow_down(*arguments: Any) -> Tensor:
        if device.calls > 10:
            device.throttled = ("software power cap",)
        return TORCH[APPLY](*arguments)  # type: ignore[no-any-return]

    figure = time_call(device, runner(device, SECONDS, **{APPLY: slow_down}))
    assert figure.throttled == ("software power cap",)


def test_a_clock_that_was_slow_before_marks_it_too() -> None:
    device = FakeDevice(throttled=("power brake",))

    def recover(*arguments: Any) -> Tensor:
        if device.calls > 10:
            device.throttled = ()
        return TORCH[APPLY](*arguments)  # type: ignore[no-any-return]

    figure = time_call(device, runner(device, SECONDS, **{APPLY: recover}))
    assert figure.throttled == ("power brake",)


def test_without_benchmarks_the_result_is_still_verified() -> None:
    device = FakeDevice()
    it = timed(device, runner(device, SECONDS), ROWS, "warm", "eager", seed=0)
    assert measured(fixture(device, disabled=True), it, 5) is None
    assert it.verification.runner.cases > 0
