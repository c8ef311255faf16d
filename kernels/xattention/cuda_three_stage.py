"""XAttention's softmax in CUDA C++: cuda_three_stage.cu, and how its kernels are launched.

Operations as `kernels.api.XAttentionKernels` describes them, on CUDA tensors by a GPU and on CPU
tensors by the host (`kernels.cuda`). ``segment_size`` chooses no tile, so that no result depends on
it (R-X21); the same call gives the same bits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.cuda import Module
from kernels.xattention import refusals

THREADS: Final = 256  # kThreads, a block
WARPS: Final = THREADS // 32
VECTOR: Final = 16  # bytes that a thread reads at once
KERNELS: Final = {
    "softmax_fuse_block_sum": "one_pass_block_sums",
    "softmax_compute_partial_stats": "partial_statistics",
    "merge_softmax_stats": "merge_statistics",
    "softmax_normalize_and_block_sum": "normalised_block_sums",
}
TYPES: Final = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}

MODULE: Final = Module(
    Path(__file__).with_suffix(".cu"),
    {"merge_statistics": "const float*, const float*, float*, float*, int, long long"}
    | {
        f"{kernel}<{type_}>": parameters.format(
            type=type_,
            shape="int, int, int",  # heads, q_len, k_len
            strides="long long, long long, long long, long long",
            row_strides="long long, long long, long long",
            mask="long long, float",  # diagonal, and scale
        )
        for type_ in TYPES.values()
        for kernel, parameters in {
            "partial_statistics": (
                "const {type}*, float*, float*, long long, {shape}, {strides}, {mask}"
            ),
            "normalised_block_sums": (
                "const {type}*, const float*, const float*, {type}*, {shape}, "
                "{strides}, {row_strides}, {row_strides}, int, int, {mask}"
            ),
            "one_pass_block_sums": (
                "const {type}*, float*, float*, {type}*, {shape}, {strides}, int, int, {mask}"
            ),
        }.items()
    },
)


def softmax_fuse_block_sum(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    chunk_end: int,
    real_q_len: int,
    scale: float,
    is_causal: bool = True,
) -> Tensor:
    refusals.check_softmax(
        attn_weights_slice, reshaped_block_size, segment_size, scale, chunk_start
    )
    refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
    refusals.check_one_pass(attn_weights_slice, chunk_start, chunk_end)

    block_sums = _new_block_sums(attn_weights_slice, reshaped_block_size)
    batch, heads, q_blocks, _ = block_sums.shape
    if block_sums.numel():
        MODULE[f"one_pass_block_sums<{TYPES[block_sums.dtype]}>"].launch(
            batch * heads * q_blocks,
            THREADS,
            attn_weights_slice,
            *_new_statistics(attn_weights_slice),
            block_sums,
            *attn_weights_slice.shape[1:],
            *attn_weights_slice.stride(),
            reshaped_block_size,
            _real_rows(attn_weights_slice, chunk_start, real_q_len),
            _diagonal(attn_weights_slice, chunk_start, 0, is_causal),
            scale,
        )
    return block_sums


def softmax_compute_partial_stats(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int = 0,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    refusals.check_softmax(
        attn_weights_slice, reshaped_block_size, segment_size, scale, chunk_start, kv_offset
    )

    m_partial, l_partial = _new_statistics(attn_weights_slice)
    if rows := m_partial.numel():
        MODULE[f"partial_statistics<{TYPES[attn_weights_slice.dtype]}>"].launch(
            -(-rows // WARPS),
            THREADS,
            attn_weights_slice,
            m_partial,
            l_partial,
            rows,
            *attn_weights_slice.shape[1:],
            *attn_weights_slice.stride(),
            _diagonal(attn_weights_slice, chunk_start, kv_offset, is_causal),
            scale,
        )
    return m_partial, l_partial


def merge_softmax_stats(
    m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The chunks are copied to one tensor first, since each may have strides of its own."""
    refusals.check_chunks(m_chunks, l_chunks)

    m_stacked, l_stacked = torch.stack(list(m_chunks)), torch.stack(list(l_chunks))
    m_global, l_global = torch.empty_like(m_stacked[0]), torch.empty_like(l_stacked[0])
    if rows := m_global.numel():
        MODULE["merge_statistics"].launch(
            -(-rows // THREADS),
            THREADS,
            m_stacked,
            l_stacked,
            m_global,
            l_global,
            len(m_chunks),
            rows,
        )
    return m_global, l_global


def softmax_normalize_and_block_sum(
    attn_weights_slice: Tensor,
    m_global: Tensor,
    l_global: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    real_q_len: int,
    scale: float,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> Tensor:
    refusals.check_softmax(
        attn_weights_slice, reshaped_block_size, segment_size, scale, chunk_start, kv_offset
    )
    refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
    refusals.check_statistics(attn_weights_slice, m_global, l_global)

    block_sums = _new_block_sums(attn_weights_slice, reshaped_block_size)
    batch, heads, q_blocks, k_blocks = block_sums.shape
    if block_sums.numel():
        columns = THREADS * VECTOR // block_sums.itemsize
        tiles = -(-k_blocks // max(columns // reshaped_block_size, 1))
        MODULE[f"normalised_block_sums<{TYPES[block_sums.dtype]}>"].launch(
            batch * heads * q_blocks * tiles,
            THREADS,
            attn_weights_slice,
            m_global,
            l_global,
            block_sums,
            *attn_weights_slice.shape[1:],
            *attn_weights_slice.stride(),
            *m_global.stride(),
            *l_global.stride(),
            reshaped_block_size,
            _real_rows(attn_weights_slice, chunk_start, real_q_len),
            _diagonal(attn_weights_slice, chunk_start, kv_offset, is_causal),
            scale,
        )
    return block_sums


def _new_statistics(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Room for m and l of each row."""
    m = scores.new_empty(scores.shape[:3], dtype=torch.float32)
    return m, torch.empty_like(m)


def _new_block_sums(scores: Tensor, block_size: int) -> Tensor:
    batch, heads, q_len, k_len = scores.shape
    return scores.new_empty((batch, heads, q_len // block_size, k_len // block_size))


def _real_rows(scores: Tensor, chunk_start: int, real_q_len: int) -> int:
    """How many rows of a head are no padding (R-X7)."""
    return max(min(real_q_len - chunk_start, scores.shape[2]), 0)


def _diagonal(scores: Tensor, chunk_start: int, kv_offset: int, is_causal: bool) -> int:
    """Row i sees key j where j <= diagonal + i (R-X3): every key, where nothing is masked.

    An offset may be any number; what is farther than all rows or all keys is no different.
    """
    q_len, k_len = scores.shape[2:]
    return max(min(chunk_start - kv_offset, k_len), -q_len) if is_causal else k_len
