"""One benchmark: what is called, how it is prepared, and what comes of its samples."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median, quantiles
from typing import Any, Final, Literal

import torch
from pytest_benchmark.fixture import BenchmarkFixture

from kernels.catalog import load, signatures
from suites.bench import peers
from suites.bench.calls import Call, filled
from suites.bench.device import Device, DeviceLost, board_of
from suites.bench.verification import Verification
from suites.cases import SPECIFICATIONS, Results
from suites.roofline import Work
from suites.runner import Runner
from suites.verdicts import Ended

Cache = Literal["cold", "warm"]
Launch = Literal["eager", "replay"]

ROUNDS: Final = {True: 30, False: 7}  # by whether the device is a GPU
BUFFERS: Final = {True: 16, False: 3}
WARM_UP: Final = 2
HOST_SECONDS: Final = 0.6  # what one benchmark may take on a CPU, roughly
MICRO: Final = 1e6


class Impossible(Ended):
    """A time below what the device needs to move the bytes or to multiply."""

    status = "failed"


class CallFailed(Ended):
    """The call raised instead of returning."""

    status = "crashed"


@dataclass(frozen=True)
class Figure:
    """What came of the samples of one benchmark; times in seconds.

    ``copying``: the median of copying as many bytes as the arguments have, a sample beside each of
    the call's, or None. ``floor``: the time below which no device of this board can be, None where
    the board is not known. ``throttled``: why not to believe any of it; empty where there is no
    reason.
    """

    seconds: float
    quartiles: tuple[float, float]
    copying: float | None
    floor: float | None
    throttled: tuple[str, ...] = ()

    @property
    def spread(self) -> float:
        """Between the quartiles, in relation to the median."""
        return (self.quartiles[1] - self.quartiles[0]) / self.seconds


def summary(samples: Sequence[float], copies: Sequence[float], floor: float | None) -> Figure:
    low, _, high = (
        quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else (samples[0],) * 3
    )
    return Figure(median(samples), (low, high), median(copies) if copies else None, floor)


def fastest(work: Work, device: Device, cache: Cache) -> float | None:
    """The floor of a call on this board, in seconds; None where the board is not known.

    What is warm can be read from the cache, and what is written can be left there: as much as the
    cache holds, of either, need not move.
    """
    board = board_of(device)
    if board is None:
        return None
    kept = 2 * device.cache if cache == "warm" else 0
    moved = max(work.read + work.written - kept, 0)
    return replace(work, read=moved, written=0).floor(board)


# --- what is timed -------------------------------------------------------------------------------


@dataclass
class Timed:
    """Calls on several argument lists in turn, as `BenchmarkFixture.pedantic` takes them.

    Cold: the last level cache is filled with something else before each call. Warm: the same call
    went before, and is not timed. Eager: the device is idle when the clock starts, so that the time
    is what a caller waits. Replay: the device is kept busy until a graph of the call is launched,
    so that the time is the device's alone.
    """

    device: Device
    call: Call
    cache: Cache
    arguments: list[dict[str, Any]]
    pristine: list[dict[str, Any]]
    runs: list[Callable[[], Any]]
    outputs: list[Any]  # of graphs, which write to the same memory each time
    verification: Verification
    first: float  # seconds that a first call took, on the host's clock
    against_copy: bool
    copies: list[float] = field(default_factory=list)
    turn: int = -1
    returned: Any = None

    def setup(self) -> tuple[tuple[int], dict[str, Any]]:
        self.turn = (self.turn + 1) % len(self.runs)
        if self.against_copy:
            self.copies.append(self._copying())
        if self.cache == "warm":
            poison(self.results(self.turn, self.runs[self.turn]()))
        self._restore(self.turn)
        self._settle()
        return (self.turn,), {}

    def run(self, which: int) -> None:
        self.returned = self.runs[which]()

    def teardown(self, which: int) -> None:
        results = self.results(which, self.returned)
        self.verification.check(which, self._natural(results))
        poison(results)

    def _natural(self, results: Results) -> Results:
        """With m in base e, whatever the implementation's (R-X2)."""
        unit = math.log(self.verification.runner.implementation.exponent_base)
        names = SPECIFICATIONS[self.call.operation].results  # type: ignore[index]
        return tuple(
            each * unit if name == "m" and unit != 1 else each
            for name, each in zip(names, results, strict=True)
        )

    @property
    def work(self) -> Work:
        """What the call takes at least, by how the implementation multiplies fp32."""
        work, dot = self.call.work, self.verification.runner.implementation.dot
        return replace(work, dot=dot) if dot == "tf32" and work.dot == "float32" else work

    def results(self, which: int, returned: Any) -> Results:
        """Of a call on the ``which``-th arguments, which returned that unless it is a graph."""
        in_place = SPECIFICATIONS[self.call.operation].in_place  # type: ignore[index]
        if in_place:
            return (self.arguments[which][in_place],)
        given = self.outputs[which] if self.outputs else returned
        return tuple(given) if isinstance(given, tuple | list) else (given,)

    def _copying(self) -> float:
        """Seconds to copy the first argument, as cold or warm and launched as the call is."""
        name = next(iter(self.pristine[self.turn]))
        origin = self.pristine[self.turn][name]
        target = torch.empty_like(origin)
        if self.cache == "warm":
            self.device.copy(target, origin)
        self._settle()
        start = self.device.timer()
        self.device.copy(target, origin)
        return self.device.timer() - start

    def _settle(self) -> None:
        if self.cache == "cold":
            self.device.evict()
        if self.outputs:
            self.device.hold()
        else:
            self.device.synchronise()

    def _restore(self, which: int) -> None:
        in_place = SPECIFICATIONS[self.call.operation].in_place  # type: ignore[index]
        if in_place:
            self.arguments[which][in_place].copy_(self.pristine[which][in_place])


def poison(results: Results) -> None:
    """Spoil results that were looked at, so that no later call can be taken for having made them.

    What torch frees it hands out again: an output that nobody writes would hold the right answer.
    """
    for result in results:
        if result.dtype == torch.bool:
            result.logical_not_()
        elif result.dtype.is_floating_point:
            result.fill_(math.nan)
        else:
            result.fill_(torch.iinfo(result.dtype).min)


def timed(
    device: Device,
    runner: Runner,
    call: Call,
    cache: Cache,
    launch: Launch,
    *,
    seed: int,
    against_copy: bool = False,
) -> Timed:
    """Fill the arguments, work out the reference, and capture graphs where the launch asks for it.

    As many argument lists as are more than the cache holds, 2 at least. Raises CallFailed where the
    call does, CaptureRefused where it cannot be in a graph.
    """
    count = 1 + min(BUFFERS[device.full_size] - 1, max(2 * device.cache // max(call.bytes, 1), 1))
    pristine = [filled(call, device.place, seed + i) for i in range(count)]
    specification = SPECIFICATIONS[call.operation]  # type: ignore[index]
    copied = specification.in_place
    arguments = [
        {name: each.clone() if name == copied else each for name, each in inputs.items()}
        for inputs in pristine
    ]
    references = [_reference(call.operation, inputs) for inputs in pristine]
    function = peers.prepared(runner.implementation, call.operation)
    runs: list[Callable[[], Any]] = [
        partial(function, *positional(call.operation, inputs, runner)) for inputs in arguments
    ]
    first = _first_call(device, runs[0])
    outputs: list[Any] = []
    if launch == "replay":
        captured = [device.capture(run) for run in runs]
        runs, outputs = [replay for replay, _ in captured], [output for _, output in captured]
    verification = Verification(runner, call.operation, pristine, references, seed)
    return Timed(
        device, call, cache, arguments, pristine, runs, outputs, verification, first, against_copy
    )


def _first_call(device: Device, run: Callable[[], Any]) -> float:
    """Do what a first call does once; how many seconds it took."""
    started = time.perf_counter()
    try:
        run()
        device.synchronise()
    except DeviceLost:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise CallFailed(f"the call raised {type(error).__name__}: {said}") from error
    return time.perf_counter() - started


def positional(operation: str, inputs: Mapping[str, Any], runner: Runner) -> list[Any]:
    """The arguments in their order; ``scale`` and m in the base of the implementation (R-X2)."""
    unit = math.log(runner.implementation.exponent_base)

    def given(name: str, value: Any) -> Any:
        if unit == 1:
            return value
        if name == "m_chunks":
            return [each / unit for each in value]
        return value / unit if name in ("scale", "m_global") else value

    return [
        given(name, inputs[name]) if name in inputs else parameter.default
        for name, parameter in signatures()[operation].parameters.items()
    ]


def _reference(operation: str, inputs: Mapping[str, Any]) -> Results:
    in_place = SPECIFICATIONS[operation].in_place  # type: ignore[index]
    names = list(signatures()[operation].parameters)
    given = {name: each.clone() if name == in_place else each for name, each in inputs.items()}
    torch_reference = load("torch").operations[operation]
    returned = torch_reference(**{name: given[name] for name in names if name in given})
    if in_place:
        return (given[in_place],)
    return tuple(returned) if isinstance(returned, tuple) else (returned,)


def measured(benchmark: BenchmarkFixture, it: Timed, least_rounds: int) -> Figure | None:
    """Time, verify, and refuse what cannot be; None where benchmarks are disabled.

    Raises Nonconformance for a wrong result and Impossible for a time that no device can have;
    then there are no samples left.
    """
    before = it.device.clocks()
    rounds = max(least_rounds, _rounds(it))
    try:
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            it.run, setup=it.setup, teardown=it.teardown, rounds=rounds, warmup_rounds=WARM_UP
        )
        if benchmark.stats is None:
            it.teardown(it.turn)
            it.verification.judge()
            return None
        it.verification.judge()
        samples = benchmark.stats.stats.data
        floor = fastest(it.work, it.device, it.cache)
        require_possible(min(samples), floor, it.device.name)
    except BaseException:
        discard(benchmark)
        raise
    copies = it.copies[-rounds:]
    slowed = tuple(dict.fromkeys((*before.throttled, *(after := it.device.clocks()).throttled)))
    benchmark.extra_info |= {
        "cache": it.cache,
        "launch": "replay" if it.outputs else "eager",
        "clocks before": str(before),
        "clocks after": str(after),
        "floor us": None if floor is None else floor * MICRO,
        "copies us": [each * MICRO for each in copies],
        "not to be believed": ", ".join(slowed),
    }
    return replace(summary(samples, copies, floor), throttled=slowed)


def _rounds(it: Timed) -> int:
    """Those of a GPU, or on a host what time allows."""
    if it.device.full_size:
        return ROUNDS[True]
    return max(3, min(ROUNDS[False], int(HOST_SECONDS / max(it.first, 1e-6))))


def require_possible(seconds: float, floor: float | None, name: str) -> None:
    """Raises Impossible for a time below the floor, where there is one."""
    if floor is not None and seconds < floor:
        raise Impossible(
            f"{seconds * MICRO:.3g} us is impossible: at its published peak {name} needs "
            f"{floor * MICRO:.3g} us; the call leaves work out, or the clock is wrong"
        )


def discard(benchmark: BenchmarkFixture) -> None:
    """Take the samples away: what is wrong has no time, neither in a table nor in a file."""
    benchmark.has_error = True
    if benchmark.stats is not None:
        benchmark.stats.stats.data.clear()
