"""How operations are called to see what they launch: all that compilers tell apart.

Compilers of kernels turn some arguments into constants and assume others to be divisible by 16, so
a kernel has as many variants as its callers have kinds of tensors. Nothing is computed: tensors
are left uninitialised.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal

import torch
from torch import Tensor

Rows = Literal["aligned", "odd", "single"]
Make = Callable[..., Tensor]
Arguments = tuple[str, str, dict[str, Any]]  # of an operation, and what else matters of them

ROWS: Final[tuple[Rows, ...]] = ("aligned", "odd", "single")
LENGTHS: Final = {"int32": torch.int32, "int64": torch.int64}
FLOATS: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Call:
    """An operation and its arguments by name.

    ``dtype``: of context lengths or of scores, queries and keys. ``rows``: ``aligned``, every size
    and stride divisible by 16; ``odd``, none of them, and every other element of a wider tensor
    that begins off the boundary; ``single``, one row of one slot. ``also``: what else matters.
    """

    operation: str
    dtype: str
    rows: Rows
    also: str
    arguments: Mapping[str, Any]

    @property
    def label(self) -> str:
        return "-".join(filter(None, (self.dtype, self.rows, self.also)))


def calls() -> Iterator[Call]:
    """Every call, those of the parts of an estimate before those of the estimate."""
    for (dtype, lengths), rows in product(LENGTHS.items(), ROWS):
        for operation, arguments in _witness(lengths, rows).items():
            yield Call(operation, dtype, rows, "", arguments)
    for family in (_stages, _estimate):
        for (dtype, floats), rows, causal in product(FLOATS.items(), ROWS[:2], (True, False)):
            also = "causal" if causal else "full"
            for operation, suffix, arguments in family(_maker(rows, floats), rows, causal):
                yield Call(operation, dtype, rows, also + suffix, arguments)


def _maker(rows: Rows, dtype: torch.dtype) -> Make:
    def aligned(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def odd(*shape: int) -> Tensor:
        *others, last = shape
        return torch.empty(*others, 2 * last + 1, dtype=dtype)[..., 1::2]

    return odd if rows == "odd" else aligned


def _witness(lengths: torch.dtype, rows: Rows) -> dict[str, dict[str, Any]]:
    count, topk, segments, keep = {
        "aligned": (64, 2048, 64, 1024),
        "odd": (7, 777, 33, 111),
        "single": (1, 1, 1, 0),
    }[rows]
    learned = _maker(rows, torch.int32)(count, topk)
    shared = {"context_lens": _maker(rows, lengths)(count), "num_segments": segments}
    return {
        "topology_witness_indices": {"learned_indices": learned, **shared},
        "apply_topology_witnesses": {
            "learned_indices": learned,
            "learned_keep": keep,
            "max_replacements": segments,
            **shared,
        },
        "scatter_topology_witnesses_": {"topk_indices": learned, **shared},
    }


def _stages(make: Make, rows: Rows, is_causal: bool) -> Iterator[Arguments]:
    batch, heads, head_dim, stride, block, q_blocks, k_blocks = (
        (2, 16, 128, 8, 16, 16, 64) if rows == "aligned" else (3, 5, 81, 6, 6, 15, 255)
    )
    q_len, k_len = block * q_blocks, block * k_blocks
    place = {"chunk_start": q_len, "is_causal": is_causal}
    ends = {"chunk_end": 2 * q_len}
    yield (
        "flat_group_gemm_fuse_reshape",
        "",
        {
            "query_states": make(batch, heads, q_len * stride, head_dim),
            "key_states": make(batch, heads, k_len * stride, head_dim),
            "stride": stride,
            **place,
            **ends,
        },
    )
    scores = make(batch, heads, q_len, k_len)
    softmax = {
        "attn_weights_slice": scores,
        "reshaped_block_size": block,
        "segment_size": block,
        "scale": 0.1,
        **place,
    }
    rest = {"real_q_len": 2 * q_len}
    statistics = _maker(rows, torch.float32)(batch, heads, q_len)
    yield "softmax_fuse_block_sum", "", {**softmax, **ends, **rest}
    yield "softmax_compute_partial_stats", "", softmax
    yield "merge_softmax_stats", "", {"m_chunks": [statistics] * 2, "l_chunks": [statistics] * 2}
    yield (
        "softmax_normalize_and_block_sum",
        "",
        {**softmax, **rest, "m_global": statistics, "l_global": statistics},
    )
    thresholds = {"": 0.9, "-all": 1.0} if scores.dtype == torch.float32 else {"": 0.9}
    for suffix, threshold in thresholds.items():
        yield (
            "find_blocks_chunked",
            suffix,
            {
                "input_tensor": make(batch, heads, q_blocks, k_blocks),
                "current_index": q_blocks,
                "threshold": threshold,
                "causal": is_causal,
            },
        )


def _estimate(make: Make, rows: Rows, causal: bool) -> Iterator[Arguments]:
    """Queries and keys in one chunk each, whose last positions lack tokens where rows are odd."""
    batch, heads, head_dim, stride, block, queries, more = (
        (2, 16, 128, 16, 128, 4096, 4096) if rows == "aligned" else (3, 5, 81, 6, 126, 1000, 1260)
    )
    yield (
        "xattn_estimate",
        "-estimate",
        {
            "query_states": make(batch, heads, queries, head_dim),
            "key_states": make(batch, heads, queries + more, head_dim),
            "block_size": block,
            "stride": stride,
            "chunk_size": 128 * block,
            "causal": causal,
        },
    )
