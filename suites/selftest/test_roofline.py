"""What a call must move and multiply, counted once more: by trying, and by enumeration.

An input element is needed if another value in its place can change what the oracle gives. Products
and operations are counted while the formulas of the specification are evaluated, pair by pair.
"""

import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from kernels import catalog
from oracles import witness, xattention
from oracles.selection import find_blocks_chunked
from suites import roofline
from suites.compile.architectures import ARCHITECTURES
from suites.devices import DEVICES, Board
from suites.roofline import WORK, Work

SIZES = {"int32": 4, "int64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}
FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Plain:
    """A tensor as the oracles take it."""

    dtype: str
    shape: tuple[int, ...]
    data: tuple[Any, ...]

    def having(self, place: int, value: Any) -> "Plain":
        return replace(self, data=(*self.data[:place], value, *self.data[place + 1 :]))


def floats(dtype: str, *shape: int) -> Plain:
    """Values of every type, none of them alike enough to cancel."""
    values = (0.25 + place % 7 / 8 for place in range(math.prod(shape)))
    return Plain(dtype, shape, tuple(values))


def integers(dtype: str, shape: tuple[int, ...], draw: Callable[[], int]) -> Plain:
    return Plain(dtype, shape, tuple(draw() for _ in range(math.prod(shape))))


def tensors(arguments: Mapping[str, Any]) -> Iterator[tuple[str, int | None, Plain]]:
    """Every tensor, by its parameter and its place in that one's list."""
    for name, value in arguments.items():
        if isinstance(value, Plain):
            yield name, None, value
        elif isinstance(value, list):
            yield from ((name, index, each) for index, each in enumerate(value))


def exchanged(arguments: Mapping[str, Any], name: str, index: int | None, by: Plain) -> Any:
    old = arguments[name]
    new = by if index is None else [*old[:index], by, *old[index + 1 :]]
    return {**arguments, name: new}


Outcome = Callable[[dict[str, Any]], Any]
Element = tuple[str, int | None, int]  # of a tensor


def needed(arguments: dict[str, Any], outcome: Outcome, values: list[Any]) -> dict[Element, int]:
    """The elements in whose place one of the values changes the outcome, and their bytes."""
    found, plain = {}, repr(outcome(arguments))
    for name, index, tensor in tensors(arguments):
        for place in range(len(tensor.data)):
            others = (exchanged(arguments, name, index, tensor.having(place, v)) for v in values)
            if any(repr(outcome(other)) != plain for other in others):
                found[name, index, place] = SIZES[tensor.dtype]
    return found


# --- segment witnesses ---------------------------------------------------------------------------

ROWS = ((2, 5, 3), (3, 4, 4), (1, 6, 8), (2, 1, 1), (2, 0, 2))  # rows, topk, segments


def read_by_rows(make: Callable[[], dict[str, Any]], oracle: Callable[..., Any]) -> int:
    """Which entries decide depends on the values, so that many rows are tried."""
    found: dict[Element, int] = {}
    for _ in range(60):
        found |= needed(make(), lambda arguments: oracle(**arguments), [-1, 0, 3, 7, 11])
    return sum(found.values())


def changed_slots(**arguments: Any) -> list[int | None]:
    """What the serving entry writes: None where a slot stays as it is."""
    left = witness.scatter_topology_witnesses_(**arguments)
    after = [value for row in left for value in row]
    before = arguments["topk_indices"].data
    return [new if new != old else None for new, old in zip(after, before, strict=True)]


@pytest.mark.parametrize("lengths", ["int32", "int64"])
@pytest.mark.parametrize(("rows", "topk", "segments"), ROWS)
def test_bytes_of_the_witness_operations(rows: int, topk: int, segments: int, lengths: str) -> None:
    draw = random.Random(0)

    def row_tensors(learned: str) -> dict[str, Any]:
        """Rows with tokens."""
        return {
            learned: integers("int32", (rows, topk), lambda: draw.randrange(-1, 12)),
            "context_lens": integers(lengths, (rows,), lambda: draw.randrange(1, 12)),
        }

    def indices() -> dict[str, Any]:
        return {**row_tensors("learned_indices"), "num_segments": segments}

    def serve(count: int) -> dict[str, Any]:
        return {**row_tensors("topk_indices"), "num_segments": count}

    work = roofline.topology_witness_indices(**indices())
    assert work.read == read_by_rows(indices, witness.topology_witness_indices)
    assert work.written == 4 * sum(map(len, witness.topology_witness_indices(**indices())))

    for keep, most in product(range(topk + 1), (0, 1, 9)):
        counts = {"learned_keep": keep, "num_segments": segments, "max_replacements": most}

        def merge(counts: dict[str, int] = counts) -> dict[str, Any]:
            return {**row_tensors("learned_indices"), **counts}

        work = roofline.apply_topology_witnesses(**merge())
        assert work.read == read_by_rows(merge, witness.apply_topology_witnesses)
        assert work.written == 4 * rows * topk

    for count in (segments, 0):
        assert any({*changed_slots(**serve(count))} <= {None} for _ in range(400))
        work = roofline.scatter_topology_witnesses_(**serve(count))
        assert work.written == 0
        assert work.read == read_by_rows(partial(serve, count), changed_slots)


def test_arithmetic_of_a_row() -> None:
    """By hand: 5 entries and 3 segments, a multiplication and a division each, in 2 rows."""
    learned, lengths = floats("int32", 2, 5), floats("int32", 2)
    assert roofline.topology_witness_indices(lengths, learned, 3).operations == 2 * (5 + 3) * 2
    assert roofline.apply_topology_witnesses(learned, lengths, 4, 3, 1).operations == 32
    assert roofline.scatter_topology_witnesses_(learned, lengths, 3).operations == 32
    copied = roofline.apply_topology_witnesses(learned, lengths, 5, 3, 1)
    assert copied == Work(read=40, written=40)
    assert roofline.scatter_topology_witnesses_(learned, lengths, 0) == Work()


# --- XAttention ----------------------------------------------------------------------------------


def sizes(outcome: Any) -> int:
    """Bytes of the arrays that an oracle gives."""
    arrays = outcome if isinstance(outcome, tuple) else (outcome,)
    return sum(SIZES[each.dtype] * math.prod(each.shape) for each in arrays)


def check(operation: str, arguments: dict[str, Any], outcome: Outcome | None = None) -> Work:
    """Bytes as the oracle needs them: NaN in place of an element that matters is seen (R-X11).

    A selection may be of all blocks already, and is then changed by one that has less mass.
    """
    oracle = getattr(xattention, operation)
    work = WORK[operation](**arguments)
    values = [math.nan, 0.0, 100.0]
    read = needed(arguments, outcome or (lambda each: oracle(**each)), values)
    assert work.read == sum(read.values())
    assert work.written == sizes(oracle(**arguments))
    return work


def sees(i: int, j: int, chunk_start: int, kv_offset: int, causal: bool) -> bool:
    return not causal or kv_offset + j <= chunk_start + i


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("q_positions", "k_positions", "stride", "chunk_start"),
    [(2, 3, 2, 0), (2, 3, 2, 1), (3, 2, 1, 0), (1, 4, 3, 2), (2, 2, 2, 9), (0, 2, 2, 1)],
)
@pytest.mark.parametrize(("dtype", "out"), [("float16", None), ("bfloat16", "float32")])
def test_work_of_scores(
    q_positions: int,
    k_positions: int,
    stride: int,
    chunk_start: int,
    causal: bool,
    dtype: str,
    out: str | None,
) -> None:
    arguments = {
        "query_states": floats(dtype, 1, 2, q_positions * stride, 2),
        "key_states": floats(dtype, 1, 2, k_positions * stride, 2),
        "stride": stride,
        "chunk_start": chunk_start,
        "chunk_end": chunk_start + q_positions,
        "is_causal": causal,
        "out_dtype": out,
    }
    places = list(product(range(2), range(q_positions), range(k_positions)))

    def specified(each: dict[str, Any]) -> list[float]:
        scores = xattention.flat_group_gemm_fuse_reshape(**each).data
        seen = (sees(i, j, chunk_start, 0, causal) for _, i, j in places)
        return [score for score, visible in zip(scores, seen, strict=True) if visible]

    work = check("flat_group_gemm_fuse_reshape", arguments, specified)
    queries, keys = ([[1.0, 1.0]] * (count * stride) for count in (q_positions, k_positions))
    pairs = sum(
        len(list(xattention.tile(queries, keys, i, j, stride)))
        for _, i, j in places
        if sees(i, j, chunk_start, 0, causal)
    )
    assert work.products == 2 * pairs
    assert (work.operations, work.exponentials) == (0, 0)
    assert work.dot == dtype


class Counting:
    """A number that counts what is done to it."""

    operations = exponentials = 0

    def step(self, *_: object) -> "Counting":
        Counting.operations += 1
        return self

    __add__ = __sub__ = __mul__ = __truediv__ = maximum = step

    def exp(self) -> "Counting":
        Counting.exponentials += 1
        return self


def counted(formula: Callable[[], object]) -> tuple[int, int]:
    """The operations and exponentials of a formula."""
    Counting.operations = Counting.exponentials = 0
    formula()
    return Counting.operations, Counting.exponentials


def statistics(row: list[Counting]) -> tuple[Counting, Counting, list[Counting]]:
    """m, l and exp(x - m) of a row, from its scores."""
    scale, m, total = Counting(), Counting(), Counting()
    x = [scale * score for score in row]
    for value in x:
        m = m.maximum(value)
    powers = [(value - m).exp() for value in x]
    for power in powers:
        total = total + power
    return m, total, powers


SOFTMAX = [
    # batch, heads, rows, keys, chunk_start, kv_offset, real_q_len
    (1, 2, 4, 4, 0, 0, 9),
    (2, 1, 4, 6, 2, 4, 5),
    (1, 1, 2, 4, 0, 3, 9),
    (1, 1, 6, 2, 4, 0, 0),
    (1, 1, 4, 8, 6, 0, 8),
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("batch", "heads", "q_len", "k_len", "chunk_start", "kv_offset", "real_q_len"), SOFTMAX
)
def test_work_of_the_softmax(
    batch: int,
    heads: int,
    q_len: int,
    k_len: int,
    chunk_start: int,
    kv_offset: int,
    real_q_len: int,
    dtype: str,
    causal: bool,
) -> None:
    common = {
        "attn_weights_slice": floats(dtype, batch, heads, q_len, k_len),
        "reshaped_block_size": 2,
        "segment_size": 2,
        "scale": 0.5,
        "chunk_start": chunk_start,
        "is_causal": causal,
    }
    chunk = {**common, "kv_offset": kv_offset}
    whole = {**common, "chunk_end": chunk_start + q_len, "real_q_len": real_q_len}
    given = {name: floats("float32", batch, heads, q_len) for name in ("m_global", "l_global")}

    def rows(offset: int, *, real: bool) -> list[list[Counting]]:
        return [
            [Counting() for j in range(k_len) if sees(i, j, chunk_start, offset, causal)]
            for _ in range(batch * heads)
            for i in range(q_len)
            if not real or chunk_start + i < real_q_len
        ]

    def stats() -> None:
        for row in rows(kv_offset, real=False):
            statistics(row)

    def normalise() -> None:
        scale, m, total, block = (Counting() for _ in range(4))
        for row in rows(kv_offset, real=True):
            for score in row:
                block = block + (scale * score - m).exp() / total

    def one_pass() -> None:
        block = Counting()
        for row in rows(0, real=True):
            _, total, powers = statistics(row)
            for power in powers:
                block = block + power / total

    work = check("softmax_compute_partial_stats", chunk)
    assert (work.operations, work.exponentials) == counted(stats)
    work = check("softmax_normalize_and_block_sum", {**chunk, **given, "real_q_len": real_q_len})
    assert (work.operations, work.exponentials) == counted(normalise)
    work = check("softmax_fuse_block_sum", whole)
    assert (work.operations, work.exponentials) == counted(one_pass)


@pytest.mark.parametrize("chunks", [1, 3])
def test_work_of_the_merge(chunks: int) -> None:
    each = [floats("float32", 2, 1, 3) for _ in range(chunks)]

    def merge() -> None:
        for _ in range(2 * 3):
            m, total = Counting(), Counting()
            for _ in range(chunks):
                m = m.maximum(Counting())
            for _ in range(chunks):
                total = total + Counting() * (Counting() - m).exp()

    work = check("merge_softmax_stats", {"m_chunks": each, "l_chunks": each})
    assert (work.operations, work.exponentials) == counted(merge)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("q_blocks", "k_blocks", "current_index"),
    [(3, 5, 0), (2, 5, 3), (1, 1, 0), (2, 2, 0), (3, 3, 0), (1, 6, 5)],
)
def test_work_of_the_selection(
    q_blocks: int, k_blocks: int, current_index: int, causal: bool, dtype: str
) -> None:
    arguments = {
        "input_tensor": floats(dtype, 1, 2, q_blocks, k_blocks),
        "current_index": current_index,
        "threshold": 0.6,
        "causal": causal,
    }

    def select() -> None:
        for row in list(range(q_blocks)) * 2:
            visible = current_index + row + 1 if causal else k_blocks
            mandatory = {0, current_index + row} if causal else set()
            others = [j for j in range(visible) if j not in mandatory]
            if not others:
                continue
            total, before = Counting(), Counting()
            for _ in range(visible):
                total = total + Counting()
            wanted = total * Counting()
            for _ in mandatory:
                before = before + Counting()
            for _ in others:
                before.maximum(wanted)
                before = before + Counting()

    work = check("find_blocks_chunked", arguments)
    assert (work.operations, work.exponentials) == counted(select)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("q_len", "k_len", "block", "stride"),
    [
        (4, 8, 4, 2),
        (5, 9, 4, 2),
        (1, 5, 4, 4),
        (3, 7, 4, 4),
        (2, 2, 4, 4),
        (7, 7, 2, 1),
        (6, 6, 6, 3),
    ],
)
def test_work_of_the_estimate(
    q_len: int, k_len: int, block: int, stride: int, causal: bool
) -> None:
    arguments = {
        "query_states": floats("bfloat16", 1, 2, q_len, 1),
        "key_states": floats("bfloat16", 1, 2, k_len, 1),
        "block_size": block,
        "stride": stride,
        "chunk_size": block,
        "causal": causal,
    }
    work = check("xattn_estimate", arguments)
    q_positions, k_positions = (-(-length // stride) for length in (q_len, k_len))
    queries, keys = ([[1.0]] * length for length in (q_len, k_len))
    visible = [
        (i, j)
        for i, j in product(range(q_positions), range(k_positions))
        if sees(i, j, (k_len - q_len) // stride, 0, causal)
    ]
    pairs = sum(len(list(xattention.tile(queries, keys, i, j, stride))) for i, j in visible)
    assert work.products == 2 * 2 * pairs
    assert work.exponentials == 2 * len(visible)

    blocks = 1, 2, -(-q_len // block), -(-k_len // block)
    sums, index = floats("bfloat16", *blocks), (k_len - q_len) // block
    assert find_blocks_chunked(sums, index, 0.9, causal=causal).shape == blocks
    selection = roofline.find_blocks_chunked(sums, index, 0.9, causal=causal)
    assert work.operations == 6 * 2 * len(visible) + selection.operations


# --- what all have in common ---------------------------------------------------------------------


def test_every_operation_has_work_and_its_own_parameters() -> None:
    """Their names, their order and their defaults."""
    wanted = {
        operation for protocol in catalog.KERNELS for operation in catalog.operations(protocol)
    }
    assert {*WORK} == wanted
    for operation, work in WORK.items():
        found, specified = inspect.signature(work), catalog.signatures()[operation]
        assert [(p.name, p.default) for p in found.parameters.values()] == [
            (p.name, p.default) for p in specified.parameters.values()
        ]


def test_tensors_of_torch_will_do() -> None:
    plain = floats("bfloat16", 1, 2, 4, 4), floats("float32", 1, 2, 4)
    scores, stats = torch.empty(1, 2, 4, 4, dtype=torch.bfloat16), torch.empty(1, 2, 4)
    arguments: dict[str, Any] = {"chunk_start": 1, "real_q_len": 9, "scale": 1.0}
    assert roofline.softmax_normalize_and_block_sum(
        scores, stats, stats, 2, 2, **arguments
    ) == roofline.softmax_normalize_and_block_sum(plain[0], plain[1], plain[1], 2, 2, **arguments)
    queries, half = torch.empty(1, 1, 4, 8), floats("float32", 1, 1, 4, 8)
    assert roofline.flat_group_gemm_fuse_reshape(
        queries, queries, 2, 0, 2, out_dtype=torch.float16
    ) == roofline.flat_group_gemm_fuse_reshape(half, half, 2, 0, 2, out_dtype="float16")


def test_the_floor_is_the_longer_of_moving_and_multiplying() -> None:
    """By hand, on a device of 100 bytes a second that makes 10 products of fp32 and 50 of fp16."""
    device = Board("sm_90", 100, {"float32": 10, "float16": 50})
    assert Work(read=300, written=100, products=20).floor(device) == 4.0
    assert Work(read=300, written=100, products=200).floor(device) == 20.0
    assert Work(read=100, products=200, dot="float16").floor(device) == 4.0
    assert Work(read=100, operations=10**9, exponentials=10**9).floor(device) == 1.0


def test_floors_by_hand() -> None:
    """64 queries and keys in 16 bits, T = 16, head_dim 128: 16 scores, 2 KiB of each factor."""
    states = floats("bfloat16", 1, 1, 64, 128)
    work = roofline.flat_group_gemm_fuse_reshape(states, states, 16, 0, 4, is_causal=False)
    assert work == Work(2 * 64 * 128 * 2, 16 * 2, 2 * 16 * 16 * 128, dot="bfloat16")
    h200 = DEVICES["H200 SXM"]
    assert work.floor(h200) == pytest.approx(32800 / 4.8e12)
    # A copy of the rows of the source's largest measurement: 512 rows of 2048 slots, in and out.
    rows, lengths = floats("int32", 512, 2048), floats("int32", 512)
    merged = roofline.apply_topology_witnesses(rows, lengths, 1984, 64, 64)
    assert merged.floor(h200) == pytest.approx((2 * 4 * 512 * 2048 + 4 * 512) / 4.8e12)


def test_every_device_is_of_an_architecture_that_is_compiled_for() -> None:
    assert {device.architecture for device in DEVICES.values()} == {*ARCHITECTURES}
    for device in DEVICES.values():
        assert {*device.rates} == {*FLOATS, "tf32"}
