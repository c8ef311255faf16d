"""What is timed: the operations at the sizes of a serving GPU, and at ones that suit a CPU.

Shapes come first, as `suites.roofline` counts them; memory is filled only where a call is timed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final

import torch
from torch import Tensor

from suites.cases import (
    APPLY,
    ESTIMATE,
    INDICES,
    MERGE,
    NORMALISE,
    ONE_PASS,
    ROWS,
    SCORES,
    SELECT,
    SERVE,
    STATS,
)
from suites.roofline import SIZES, WORK, Shaped, Work

TOPK: Final = 2048
SEGMENTS: Final = 64
CONTEXT: Final = 131072  # tokens of the longest row
ROW_COUNTS: Final = {
    True: (1, 32, 64, 128, 256, 512, 1024, 4096, 16384),
    False: (1, 32, 128, 512),
}
THRESHOLD: Final = 0.9


@dataclass(frozen=True)
class Geometry:
    """Of XAttention: one chunk of queries, the last of all tokens, and one of keys before it.

    ``tokens``: of a chunk; ``chunks``: how many there are of keys. ``estimates``: lengths of whole
    estimates. ``lengths``: those whose peak memory is measured, at a stride of
    ``storage_stride``.
    """

    heads: int
    head_dim: int
    tokens: int
    chunks: int
    stride: int
    block: int  # tokens
    dtypes: tuple[str, ...]
    estimates: tuple[int, ...]
    lengths: tuple[int, ...]
    storage_stride: int

    @property
    def positions(self) -> int:
        return self.tokens // self.stride

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5 / self.stride)


K: Final = 1024
GEOMETRIES: Final = {
    True: Geometry(
        heads=32,
        head_dim=128,
        tokens=16 * K,
        chunks=4,
        stride=8,
        block=128,
        dtypes=("bfloat16", "float16", "float32"),
        estimates=(32 * K, 128 * K),
        lengths=(16 * K, 32 * K, 64 * K, 128 * K),
        storage_stride=4,
    ),
    False: Geometry(
        heads=2,
        head_dim=64,
        tokens=2 * K,
        chunks=4,
        stride=8,
        block=128,
        dtypes=("float32", "bfloat16"),
        estimates=(2 * K,),
        lengths=(K, 2 * K, 4 * K, 8 * K),
        storage_stride=4,
    ),
}


@dataclass(frozen=True)
class Call:
    """An operation with the shapes of its arguments by name; the rest of them as they are."""

    operation: str
    label: str
    arguments: Mapping[str, Any] = dataclass_field(hash=False)

    @property
    def work(self) -> Work:
        return WORK[self.operation](**self.arguments)

    @property
    def bytes(self) -> int:
        """Of the arguments."""
        tensors = (each for value in self.arguments.values() for each in _tensors(value))
        return sum(_bytes(each) for each in tensors)

    @property
    def subject(self) -> str:
        return f"{self.operation} {self.label}"

    def __str__(self) -> str:
        return f"{self.operation}-{self.label.replace(' ', '-')}"


def _tensors(value: Any) -> Sequence[Shaped]:
    if isinstance(value, Shaped):
        return (value,)
    return value if isinstance(value, tuple) else ()


def _bytes(tensor: Shaped) -> int:
    return torch.Size(tensor.shape).numel() * SIZES[tensor.dtype]


# --- the witness family --------------------------------------------------------------------------


def witness_calls(full_size: bool) -> Iterator[Call]:
    for operation in (SERVE, APPLY, INDICES):
        for rows in ROW_COUNTS[full_size]:
            yield witness_call(operation, rows)


def witness_call(operation: str, rows: int) -> Call:
    """Of rows whose reserved tail is as wide as the serving entry makes it."""
    arguments: dict[str, Any] = {
        ROWS[operation]: Shaped("int32", (rows, TOPK)),  # type: ignore[index]
        "context_lens": Shaped("int32", (rows,)),
        "num_segments": SEGMENTS,
    }
    if operation == APPLY:
        arguments |= {"learned_keep": TOPK - SEGMENTS, "max_replacements": SEGMENTS}
    return Call(operation, f"rows {rows}", arguments)


# --- XAttention ----------------------------------------------------------------------------------


def stage_calls(full_size: bool) -> Iterator[Call]:
    g = GEOMETRIES[full_size]
    p, block, start = g.positions, g.block // g.stride, (g.chunks - 1) * g.positions
    end = start + p
    sizes = {"reshaped_block_size": block, "segment_size": block, "scale": g.scale}
    place = {"chunk_start": start, "is_causal": True}
    statistics = Shaped("float32", (1, g.heads, p))
    for dtype in g.dtypes:
        states = Shaped(dtype, (1, g.heads, g.tokens, g.head_dim))
        scores = Shaped(dtype, (1, g.heads, p, p))
        yield Call(
            SCORES,
            f"{dtype} {p} x {p}",
            {
                "query_states": states,
                "key_states": states,
                "stride": g.stride,
                "chunk_start": start,
                "chunk_end": end,
                "is_causal": False,  # as where keys come in chunks
            },
        )
        chunk = {"attn_weights_slice": scores, "kv_offset": start - p, **sizes, **place}
        yield Call(STATS, f"{dtype} {p} x {p}", chunk)
        given = {"m_global": statistics, "l_global": statistics, "real_q_len": end}
        yield Call(NORMALISE, f"{dtype} {p} x {p}", chunk | given)
        whole = Shaped(dtype, (1, g.heads, p, end))
        yield Call(
            ONE_PASS,
            f"{dtype} {p} x {end}",
            {"attn_weights_slice": whole, "chunk_end": end, "real_q_len": end, **sizes, **place},
        )
        yield Call(
            SELECT,
            f"{dtype} {p // block} x {end // block}",
            {
                "input_tensor": Shaped(dtype, (1, g.heads, p // block, end // block)),
                "current_index": start // block,
                "threshold": THRESHOLD,
            },
        )
    parts = (statistics,) * g.chunks
    yield Call(MERGE, f"{g.chunks} chunks of {p}", {"m_chunks": parts, "l_chunks": parts})


def estimate_calls(full_size: bool) -> Iterator[Call]:
    g = GEOMETRIES[full_size]
    for tokens in g.estimates:
        for dtype in g.dtypes[:1]:
            yield estimate_call(g, tokens, g.stride, dtype)


def estimate_call(g: Geometry, tokens: int, stride: int, dtype: str) -> Call:
    states = Shaped(dtype, (1, g.heads, tokens, g.head_dim))
    arguments = {
        "query_states": states,
        "key_states": states,
        "block_size": g.block,
        "stride": stride,
        "threshold": THRESHOLD,
        "chunk_size": min(g.tokens, tokens),
        "causal": True,
    }
    return Call(ESTIMATE, f"{dtype} S {tokens}", arguments)


# --- memory --------------------------------------------------------------------------------------


def filled(call: Call, place: torch.device, seed: int) -> dict[str, Any]:
    """The arguments, on the device, other ones for each seed.

    Rows have tokens in the first and the last quarter of their context alone, so that half of the
    segments get a witness. Scores, queries and keys are normal, so that no weight vanishes.
    """
    generator = torch.Generator(place).manual_seed(seed)
    lengths = torch.empty(0)

    def fill(name: str, value: Any) -> Any:
        nonlocal lengths
        if isinstance(value, tuple):
            return [fill(name, each) for each in value]
        if not isinstance(value, Shaped):
            return value
        if name == "context_lens":
            return lengths
        if name in ("learned_indices", "topk_indices"):
            rows, _ = value.shape
            lengths = torch.randint(
                TOPK, CONTEXT + 1, (rows,), generator=generator, device=place, dtype=torch.int32
            )
            return _learned(lengths, value.shape[1], generator)
        drawn = torch.randn(value.shape, generator=generator, device=place)
        if name.startswith("l_"):
            drawn = drawn.abs() + 1
        if name == "m_global":
            drawn = drawn.abs() + 3  # above most of the scores, as a maximum is
        if name == "input_tensor":
            drawn = drawn.exp()
        return drawn.to(getattr(torch, value.dtype))

    order = sorted(call.arguments.items(), key=lambda item: item[0] == "context_lens")
    return {name: fill(name, value) for name, value in order}


def _learned(lengths: Tensor, topk: int, generator: torch.Generator) -> Tensor:
    shape, place = (lengths.numel(), topk), lengths.device
    share = torch.rand(shape, generator=generator, device=place) / 2
    share += (share >= 0.25) * 0.5
    return (share * lengths.unsqueeze(1)).to(torch.int32)
