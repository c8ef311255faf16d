"""The checks of the GPU tier, on a layer that stands in for a device: each can pass, and can fail.

Nothing here runs on a GPU. The layer models what the checks are about, streams that do not wait for
one another and graphs that read their inputs anew, for what torch's operations do on the CPU.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from msgspec import msgpack
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from golden.model import Operation
from kernels import catalog
from kernels.catalog import Implementation
from kernels.witness import torch_reference
from suites.cases import APPLY, INDICES, SERVE, STATS, Results
from suites.contracts import DEFINED_BY
from suites.gpu import giants
from suites.gpu.device import Device, Stream
from suites.gpu.giants import Arrangement
from suites.gpu.test_batches import require_repeatable, require_rows_as_alone
from suites.gpu.test_compute_sanitizer import Sanitizer, vectors
from suites.gpu.test_devices import require_where_its_tensors_are
from suites.gpu.test_exhaustive import Scope, require_every_row
from suites.gpu.test_graphs import require_replayable
from suites.gpu.test_interpreter import generated, require_same_as_on_the_cpu
from suites.gpu.test_sizes import require_rows_past, require_scores_past
from suites.gpu.test_streams import require_on_its_stream
from suites.runner import Runner
from suites.verdicts import Nonconformance

CPU = torch.device("cpu")
SIZE = 2**18  # bytes of a batch
WRAP = 2**10  # elements


# --- a layer that stands in for a device ---------------------------------------------------------


class FakeStream:
    """Holds copies back while it is slow, until something is done after them on the same stream."""

    def __init__(self) -> None:
        self.slow = False
        self.held: list[Callable[[], object]] = []

    def catch_up(self) -> None:
        while self.held:
            self.held.pop(0)()

    def synchronize(self) -> None:
        self.catch_up()
        self.slow = False


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The CPU. Inside ``with`` it, torch's operations are put on the current of its streams."""

    def __init__(self, *, free: int = 2**40, second: torch.device | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = CPU
        self.second = second
        self._free = free
        self._streams = [FakeStream()]
        self._current = self._streams[0]

    def free_bytes(self) -> int:
        return self._free

    def synchronize(self) -> None:
        for stream in self._streams:
            stream.synchronize()

    def side_stream(self) -> FakeStream:
        self._streams.append(FakeStream())
        return self._streams[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        assert isinstance(stream, FakeStream)
        before, self._current = self._current, stream
        yield
        self._current = before

    def delay(self) -> None:
        self._current.slow = True

    def capture(self, call: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        call()
        results = call()

        def replay() -> None:
            for result, again in zip(results, call(), strict=True):
                if again is not result:
                    result.copy_(again)

        return replay, results

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = partial(func, *args, **(kwargs or {}))
        if self._current.slow and func.overloadpacket is torch.ops.aten.copy_:
            self._current.held.append(made)
            return args[0]
        self._current.catch_up()
        return made()


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with FakeDevice() as fake:
        yield fake


class NoVerdict(Exception):  # noqa: N818 - it is none
    """A check has left its test."""


@pytest.fixture(autouse=True)
def no_verdict_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a check that always leaves would leave these tests as well, and nobody would mind."""

    def leave(reason: str) -> None:
        raise NoVerdict(reason)

    leave.Exception = NoVerdict  # type: ignore[attr-defined] # for hypothesis
    monkeypatch.setattr(pytest, "skip", leave)


def honest() -> Runner:
    return Runner(catalog.load("torch"), CPU)


def wrong(operation: Operation, function: Callable[..., Any]) -> Runner:
    return Runner(Implementation("wrong", {operation: function}), CPU)


def right(operation: Operation) -> Callable[..., Any]:
    return catalog.load("torch").operations[operation]


MERGE_IN_A_MODULE = """
from kernels.witness.torch_reference import apply_topology_witnesses as merge

def apply_topology_witnesses(
    learned_indices, context_lens, learned_keep, num_segments, max_replacements
):
    arguments = learned_indices, context_lens, learned_keep, num_segments, max_replacements
    {body}
"""


@pytest.fixture
def add_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Runner]:
    """Adds a module with a merge of that body, which other processes find as well."""

    def add(name: str, body: str) -> Runner:
        (tmp_path / f"{name}.py").write_text(MERGE_IN_A_MODULE.format(body=body))
        monkeypatch.syspath_prepend(str(tmp_path))
        return Runner(catalog.load(name), CPU)

    return add


def test_the_cpu_has_what_the_checks_need_of_a_device(device: FakeDevice) -> None:
    checked: Device = device
    assert checked.free_bytes() == 2**40


every_operation = pytest.mark.parametrize("operation", DEFINED_BY)


# --- streams -------------------------------------------------------------------------------------


@every_operation
def test_what_works_on_the_current_stream_passes(device: FakeDevice, operation: Operation) -> None:
    runner = honest()
    require_on_its_stream(runner, device, operation)
    assert runner.cases > 0


@pytest.mark.parametrize("operation", [APPLY, SERVE, STATS])
def test_work_on_another_stream_is_seen(device: FakeDevice, operation: Operation) -> None:
    mine = device.side_stream()

    def elsewhere(*arguments: Any) -> Any:
        with device.on(mine):
            return right(operation)(*arguments)

    with pytest.raises(Nonconformance, match=r"^on a side stream: \d+ of \d+ elements"):
        require_on_its_stream(wrong(operation, elsewhere), device, operation)


def test_a_result_that_comes_after_the_stream_is_done_is_seen(device: FakeDevice) -> None:
    mine = device.side_stream()
    calls = iter(range(100))

    def late(*arguments: Any) -> Tensor:
        merged: Tensor = right(APPLY)(*arguments)
        if next(calls) < 3:  # those before: watched, and on zeros
            return merged
        result = torch.zeros_like(merged)
        with device.on(mine):
            device.delay()
            result.copy_(merged)
        return result

    with pytest.raises(Nonconformance, match="on a side stream"):
        require_on_its_stream(wrong(APPLY, late), device, APPLY)


# --- graphs --------------------------------------------------------------------------------------


@every_operation
def test_what_reads_its_inputs_each_time_passes(device: FakeDevice, operation: Operation) -> None:
    runner = honest()
    require_replayable(runner, device, operation)
    assert runner.cases > 4


@pytest.mark.parametrize("operation", [APPLY, STATS])
def test_a_result_remembered_by_address_is_seen(device: FakeDevice, operation: Operation) -> None:
    known: dict[int, tuple[Tensor, Any]] = {}  # holds the tensor: its address is not used again

    def remembers(first: Tensor, *rest: Any) -> Any:
        if first.data_ptr() not in known:
            known[first.data_ptr()] = first, right(operation)(first, *rest)
        result = known[first.data_ptr()][1]
        return result.clone() if operation == APPLY else tuple(each.clone() for each in result)

    with pytest.raises(Nonconformance, match="replayed over other contents: "):
        require_replayable(wrong(operation, remembers), device, operation)


def test_what_cannot_be_captured_is_unsupported(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(call: Callable[[], Results]) -> None:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(device, "capture", refuses)
    runner = honest()
    with pytest.raises(NoVerdict, match=r"cannot be captured.*: operation not permit"):
        require_replayable(runner, device, APPLY)
    assert runner.unsupported


# --- devices -------------------------------------------------------------------------------------


def test_what_works_where_its_tensors_are_passes() -> None:
    runner = honest()
    require_where_its_tensors_are(runner, FakeDevice(second=CPU), APPLY)
    assert runner.cases == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return merge(*arguments).to('meta')", "the result is on meta, not cpu"),
        ("return merge(*arguments).long()", "the result is torch.int64"),
        ("raise RuntimeError('an illegal address')", "the call raised RuntimeError: an illegal"),
        ("return merge(*arguments).flip(0)", r"\d+ of \d+ elements differ"),
    ],
)
def test_a_call_that_goes_by_the_current_device_is_seen(
    add_module: Callable[[str, str], Runner], body: str, said: str
) -> None:
    """The tensors are on the CPU; a device called meta may be taken for the current one."""
    other = add_module("of_one_device", body)
    message = f"on cpu, while another device is the current one: .*{said}"
    with pytest.raises(Nonconformance, match=message):
        require_where_its_tensors_are(other, FakeDevice(second=CPU), APPLY)


def test_without_a_second_device_there_is_no_verdict() -> None:
    with pytest.raises(NoVerdict, match="cpu is the only device of this machine"):
        require_where_its_tensors_are(honest(), FakeDevice(), APPLY)


# --- batches -------------------------------------------------------------------------------------


@every_operation
def test_what_gives_the_same_bits_passes(device: FakeDevice, operation: Operation) -> None:
    runner = honest()
    require_repeatable(runner, device, operation, SIZE, 3)
    assert runner.cases == 2


@pytest.mark.parametrize("operation", [APPLY, SERVE, STATS])
def test_a_bit_that_differs_once_is_seen(device: FakeDevice, operation: Operation) -> None:
    calls = iter(range(100))

    def wavers(*arguments: Any) -> Any:
        result = right(operation)(*arguments)
        if next(calls) == 6:
            (*_, changed) = {SERVE: arguments[:1], APPLY: (result,)}.get(operation, result)
            changed.view(torch.int32).flatten()[-1].bitwise_xor_(1)
        return result

    with pytest.raises(Nonconformance, match="call 7 gives other bits than the first"):
        require_repeatable(wrong(operation, wavers), device, operation, SIZE, 10)
    require_repeatable(wrong(operation, right(operation)), device, operation, SIZE, 10)


def test_what_works_in_place_is_given_the_same_each_time(device: FakeDevice) -> None:
    adds = wrong(SERVE, lambda buffer, *_: buffer.add_(1))
    require_repeatable(adds, device, SERVE, SIZE, 3)


@every_operation
def test_rows_that_are_as_alone_pass(device: FakeDevice, operation: Operation) -> None:
    runner = honest()
    require_rows_as_alone(runner, device, operation, SIZE)
    assert runner.cases > 3


def test_a_row_that_goes_by_its_batch_mates_is_seen(device: FakeDevice) -> None:
    def by_the_longest(learned: Tensor, lengths: Tensor, *rest: int) -> Tensor:
        lengths = lengths.clone()
        lengths[64:128] = lengths.max() if len(lengths) > 64 else lengths[64:128]
        merged: Tensor = right(APPLY)(learned, lengths, *rest)
        return merged

    with pytest.raises(Nonconformance, match="its batch mates matter, 0 times 3 of them before"):
        require_rows_as_alone(wrong(APPLY, by_the_longest), device, APPLY, SIZE)


def test_a_head_that_goes_by_its_batch_mates_is_seen(device: FakeDevice) -> None:
    def by_the_largest(scores: Tensor, *rest: Any) -> Any:
        m, total = right(STATS)(scores, *rest)
        if len(m) > 1:
            m[-1] = m.max() + 1
        return m, total

    with pytest.raises(Nonconformance, match=r"its batch mates matter, \d+ times 3 of them"):
        require_rows_as_alone(wrong(STATS, by_the_largest), device, STATS, SIZE)


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrangement", get_args(Arrangement))
@pytest.mark.parametrize("operation", [INDICES, APPLY, SERVE])
def test_rows_with_offsets_of_64_bits_pass(
    device: FakeDevice, operation: Operation, arrangement: Arrangement
) -> None:
    runner = honest()
    require_rows_past(runner, device, operation, arrangement, WRAP, 16)
    assert runner.cases >= 7


def wrapped(view: Tensor) -> Tensor:
    """What a kernel reads whose offsets begin again at WRAP elements."""
    offsets = torch.zeros(view.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        place = torch.arange(size) * stride
        offsets += place.reshape(-1, *[1] * (view.dim() - 1 - dim))
    memory = view.as_strided((int(offsets.max()) + 1,), (1,))
    return memory[offsets % WRAP]


@pytest.mark.parametrize("arrangement", get_args(Arrangement))
def test_rows_with_offsets_that_wrap_are_seen(device: FakeDevice, arrangement: Arrangement) -> None:
    def merge(learned: Tensor, *rest: Any) -> Any:
        return right(APPLY)(wrapped(learned) if len(learned) > 6 else learned, *rest)

    with pytest.raises(Nonconformance, match=r"past 1,024 elements: .* elements differ"):
        require_rows_past(wrong(APPLY, merge), device, APPLY, arrangement, WRAP, 16)


def test_a_row_that_the_oracle_is_not_asked_for_is_judged_too(device: FakeDevice) -> None:
    def merge(*arguments: Any) -> Tensor:
        merged: Tensor = right(APPLY)(*arguments)
        merged[10, 3] += 1
        return merged

    with pytest.raises(Nonconformance, match="row 10 of 69 is wrong") as failure:
        require_rows_past(wrong(APPLY, merge), device, APPLY, "dense", WRAP, 16)
    assert failure.value.case.tensor("learned_indices").shape == (1, 16)


def test_a_store_between_the_rows_is_seen(device: FakeDevice) -> None:
    def serve(buffer: Tensor, *rest: Any) -> None:
        torch_reference.scatter_topology_witnesses_(buffer, *rest)
        buffer.as_strided((1,), (1,), buffer.stride(0) - 1).fill_(0)

    with pytest.raises(Nonconformance, match="1 elements between the rows changed"):
        require_rows_past(wrong(SERVE, serve), device, SERVE, "apart", WRAP, 16)


@pytest.mark.parametrize("operation", giants.OPERATIONS)
def test_scores_with_offsets_of_64_bits_pass(device: FakeDevice, operation: Operation) -> None:
    runner = honest()
    require_scores_past(runner, device, operation, WRAP, 32)
    assert runner.cases == 3


def test_scores_with_offsets_that_wrap_are_seen(device: FakeDevice) -> None:
    def statistics(scores: Tensor, *rest: Any) -> Any:
        return right(STATS)(wrapped(scores), *rest)

    with pytest.raises(Nonconformance, match=r"past 1,024 scores, block of rows 2: .* of m differ"):
        require_scores_past(wrong(STATS, statistics), device, STATS, WRAP, 32)


def test_where_memory_is_short_there_is_no_verdict() -> None:
    short = FakeDevice(free=2**20)
    with pytest.raises(NoVerdict, match=r"cpu has 0.0 GiB free, and this takes 4.0"):
        require_rows_past(honest(), short, APPLY, "dense", WRAP, 16)
    with pytest.raises(NoVerdict, match=r"cpu has 0.0 GiB free, and this takes 4.0"):
        require_scores_past(honest(), short, STATS, WRAP, 32)


# --- every row -----------------------------------------------------------------------------------

SCOPE = Scope(longest=3, topk=2)


@pytest.mark.parametrize("operation", [INDICES, APPLY, SERVE])
def test_every_row_is_judged(device: FakeDevice, operation: Operation) -> None:
    """35 + 245 rows, with 5 numbers of segments; a merge of 3 and of 6 ways to reserve slots."""
    runner = honest()
    verified = require_every_row(runner, device, operation, SCOPE)
    rows = {1: 5 * 7, 2: 5 * 7**2}
    ways = {1: 3, 2: 6} if operation == APPLY else {1: 1, 2: 1}
    assert verified == runner.cases == sum(5 * rows[topk] * ways[topk] for topk in rows)


def test_a_single_row_that_is_wrong_is_found(device: FakeDevice) -> None:
    def indices(lengths: Tensor, learned: Tensor, segments: int) -> Tensor:
        found: Tensor = right(INDICES)(lengths, learned, segments)
        if segments == 4 and learned.shape[1] == 2 and len(learned) > 10:
            found[(lengths == 3) & (learned == torch.tensor([1, -1])).all(1), 2] = 1
        return found

    with pytest.raises(Nonconformance, match="1 of 245 rows are wrong") as failure:
        require_every_row(wrong(INDICES, indices), device, INDICES, SCOPE)
    assert failure.value.case.integers("learned_indices") == [1, -1]
    assert failure.value.case.integers("context_lens") == [3]


@pytest.mark.parametrize("operation", [INDICES, APPLY, SERVE])
def test_edges_rounded_down_are_found(
    device: FakeDevice, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = torch_reference._witness_slots

    def down(learned: Tensor, lengths: Tensor, segments: int) -> Tensor:
        edges = slots(learned, lengths, segments)
        s, length = torch.arange(segments), lengths.long().clamp(min=1)[:, None]
        return edges.where(edges < 0, s * length // length.clamp(max=segments))

    monkeypatch.setattr(torch_reference, "_witness_slots", down)
    with pytest.raises(Nonconformance, match="rows are wrong, such as row"):
        require_every_row(honest(), device, operation, SCOPE)


# --- the CPU and the device ----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_cases() -> None:
    assert len(generated(APPLY, 3)) == 30
    assert generated(APPLY, 3) == generated(APPLY, 3) != generated(APPLY, 4)


@pytest.mark.parametrize("operation", [SERVE, STATS])
def test_what_is_the_same_on_the_cpu_passes(operation: Operation) -> None:
    runner = honest()
    require_same_as_on_the_cpu(runner, generated(operation, 0))
    assert runner.cases == 30


def test_what_is_not_the_same_on_the_cpu_is_seen() -> None:
    def statistics(*arguments: Any, **named: Any) -> Any:
        m, total = right(STATS)(*arguments, **named)
        return m, total * 1.01

    other = Runner(Implementation("torch", {STATS: statistics}), CPU)
    with pytest.raises(Nonconformance, match=r"the device and the CPU disagree .*: .* of l differ"):
        require_same_as_on_the_cpu(other, generated(STATS, 0))


def test_what_cannot_run_on_the_cpu_has_no_verdict(
    add_module: Callable[[str, str], Runner],
) -> None:
    runner = add_module("of_a_gpu", "raise RuntimeError('no GPU')")
    with pytest.raises(NoVerdict, match=r"no case can be run on the CPU: .* no GPU"):
        require_same_as_on_the_cpu(runner, generated(APPLY, 0))


# --- compute-sanitizer ---------------------------------------------------------------------------

# Finds what it is told to find, in whatever program it runs.
SANITIZER = """#!{python}
import subprocess, sys
assert sys.argv[1:5] == ["--tool", "racecheck", "--error-exitcode", "9"], sys.argv
cases = sys.stdin.buffer.read()
print("========= COMPUTE-SANITIZER")
if {needle!r} in cases:
    print("========= Error: Race reported between Write access at merge+0x90")
    print("=========     and Read access at merge+0xc0 [4 hazards]")
    sys.exit(9)
sys.exit(subprocess.run(sys.argv[5:], input=cases).returncode)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Puts a compute-sanitizer on the path."""

    def put(needle: bytes) -> None:
        program = tmp_path / "compute-sanitizer"
        program.write_text(SANITIZER.format(python=sys.executable, needle=needle))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


def test_where_nothing_is_found_all_vectors_are_judged(install: Callable[[bytes], None]) -> None:
    install(b"\0 found nowhere")
    runner, sanitizer = honest(), Sanitizer()
    sanitizer.require_nothing_found(runner, CPU, "racecheck", APPLY)
    assert runner.cases == len(vectors(APPLY)) > 10


def test_a_finding_is_narrowed_down_to_a_call(install: Callable[[bytes], None]) -> None:
    guilty = next(case for case in vectors(APPLY) if case.number("num_segments") == 8)
    install(msgpack.encode(dict(guilty.inputs)))
    sanitizer = Sanitizer()
    message = r"racecheck: Error: Race reported between Write access at merge\+0x90; and Read"
    with pytest.raises(Nonconformance, match=message) as failure:
        sanitizer.require_nothing_found(honest(), CPU, "racecheck", APPLY)
    assert failure.value.case == guilty
    innocent = honest()
    sanitizer.require_nothing_found(innocent, CPU, "racecheck", SERVE)
    assert innocent.cases == len(vectors(SERVE))


def test_an_operation_whose_calls_all_fail_has_no_verdict(
    install: Callable[[bytes], None], add_module: Callable[[str, str], Runner]
) -> None:
    """Though nothing is found, and the calls of another operation are made."""
    install(b"\0 found nowhere")
    runner = add_module(
        "of_one_call",
        "raise RuntimeError('not today')\n"
        "from kernels.witness.torch_reference import scatter_topology_witnesses_",
    )
    sanitizer = Sanitizer()
    sanitizer.require_nothing_found(runner, CPU, "racecheck", SERVE)
    assert runner.cases == len(vectors(SERVE))
    with pytest.raises(NoVerdict, match=r"no call of apply_.* under racecheck: .* not today"):
        sanitizer.require_nothing_found(runner, CPU, "racecheck", APPLY)


def test_without_the_program_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoVerdict, match="no compute-sanitizer on the path"):
        Sanitizer().require_nothing_found(honest(), CPU, "memcheck", APPLY)


def test_a_tool_that_fails_itself_is_no_verdict(install: Callable[[bytes], None]) -> None:
    install(b"\0 found nowhere")
    with pytest.raises(RuntimeError, match="ended with 1: AssertionError"):
        Sanitizer().require_nothing_found(honest(), CPU, "memcheck", APPLY)
