"""XAttention's estimate in Triton without raw scores: two kernels, each of which makes its own.

The first makes tiles of scores and keeps only the statistics of their rows; the second makes the
tiles again, normalises them and keeps only the sums of their blocks. Scores cost twice the
arithmetic and no memory: what is held is m and l, O(q_len / stride), and the result. Nothing
depends on ``chunk_size``. The operation is as `kernels.api.XAttentionKernels` describes it.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.on_device import on_device_of
from kernels.xattention import refusals
from kernels.xattention.triton_selection import select
from kernels.xattention.triton_tiles import (
    accumulate,
    logits,
    normalised,
    place,
    score_tile,
    visible_keys,
    weights,
)

# Query positions, key positions, components of them: 128 bytes of a token, by the bytes of an
# element, so that each of 512 threads on AMD's side has 128 bits to load. fp32 is multiplied
# without tensor cores, from registers: a narrower tile, and one tile loaded ahead instead of two,
# leave enough of them.
TILES: Final = {
    4: {"M": 64, "N": 32, "D": 32, "num_warps": 8, "num_stages": 2},
    2: {"M": 64, "N": 64, "D": 64, "num_warps": 8},
}


# --- device code ---------------------------------------------------------------------------------


@triton.jit
def streaming_statistics_kernel(
    query: tl.tensor,
    key: tl.tensor,
    m_global: tl.tensor,  # contiguous
    l_global: tl.tensor,  # contiguous
    query_shape: tl.tuple,
    key_shape: tl.tuple,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    stride: tl.tensor,
    diagonal: tl.tensor,
    scale: tl.tensor,
    IS_CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
) -> None:
    _, heads, q_tokens, head_dim = query_shape
    k_tokens = key_shape[2]
    q_len = tl.cdiv(q_tokens, stride)
    tile, head, batch = place(tl.cdiv(q_len, M), heads)
    i = tile * M + tl.arange(0, M)
    limit = visible_keys(i, q_len, tl.cdiv(k_tokens, stride), diagonal, IS_CAUSAL)
    query += batch * query_strides[0] + head * query_strides[1]
    key += batch * key_strides[0] + head * key_strides[1]

    m_i = tl.full([M], float("-inf"), tl.float32)
    l_i = tl.zeros([M], tl.float32)
    for first in range(0, tl.max(limit, 0), N):
        j = first + tl.arange(0, N).to(tl.int64)
        scores = score_tile(
            query,
            key,
            i,
            j,
            q_tokens,
            k_tokens,
            head_dim,
            stride,
            query_strides,
            key_strides,
            RAGGED,
            D,
        )
        m_i, l_i = accumulate(m_i, l_i, logits(scores, j[None, :] < limit[:, None], scale))

    row = (batch * heads + head) * q_len + i
    tl.store(m_global + row, tl.where(l_i == l_i, m_i, l_i), mask=i < q_len)
    tl.store(l_global + row, l_i, mask=i < q_len)


@triton.jit
def streaming_block_sum_kernel(
    query: tl.tensor,
    key: tl.tensor,
    m_global: tl.tensor,  # contiguous
    l_global: tl.tensor,  # contiguous
    block_sums: tl.tensor,  # contiguous
    query_shape: tl.tuple,
    key_shape: tl.tuple,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    block_size: tl.tensor,
    stride: tl.tensor,
    diagonal: tl.tensor,
    scale: tl.tensor,
    IS_CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr,
    Q_WIDTH: tl.constexpr,
    K_WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """A tile has M / Q_WIDTH blocks of queries, Q_WIDTH rows of each at a time, and so for keys."""
    Q_BLOCKS: tl.constexpr = M // Q_WIDTH
    K_BLOCKS: tl.constexpr = N // K_WIDTH
    _, heads, q_tokens, head_dim = query_shape
    k_tokens = key_shape[2]
    q_len, k_len = tl.cdiv(q_tokens, stride), tl.cdiv(k_tokens, stride)
    q_blocks, k_blocks = tl.cdiv(q_len, block_size), tl.cdiv(k_len, block_size)
    k_tiles = tl.cdiv(k_blocks, K_BLOCKS)
    tile, head, batch = place(tl.cdiv(q_blocks, Q_BLOCKS) * k_tiles, heads)
    first_q_block, first_k_block = tile // k_tiles * Q_BLOCKS, tile % k_tiles * K_BLOCKS
    query += batch * query_strides[0] + head * query_strides[1]
    key += batch * key_strides[0] + head * key_strides[1]
    m_global += (batch * heads + head) * q_len
    l_global += (batch * heads + head) * q_len
    q_lane, k_lane = tl.arange(0, M).to(tl.int64), tl.arange(0, N).to(tl.int64)

    sums = tl.zeros([Q_BLOCKS, K_BLOCKS], tl.float32)
    for q_first in range(0, block_size, Q_WIDTH):
        q_within = q_first + q_lane % Q_WIDTH
        i = (first_q_block + q_lane // Q_WIDTH) * block_size + q_within
        rows = tl.where(q_within < block_size, q_len, 0)
        m_i = tl.load(m_global + i, mask=i < rows, other=float("-inf"))
        l_i = tl.load(l_global + i, mask=i < rows, other=0)
        limit = visible_keys(i, rows, k_len, diagonal, IS_CAUSAL)
        seen = first_k_block * block_size < tl.max(limit, 0)
        for k_first in range(0, tl.where(seen, block_size, 0), K_WIDTH):
            k_within = k_first + k_lane % K_WIDTH
            j = (first_k_block + k_lane // K_WIDTH) * block_size + k_within
            scores = score_tile(
                query,
                key,
                i,
                j,
                q_tokens,
                k_tokens,
                head_dim,
                stride,
                query_strides,
                key_strides,
                RAGGED,
                D,
            )
            visible = (k_within < block_size)[None, :] & (j[None, :] < limit[:, None])
            weight = weights(logits(scores, visible, scale), visible, m_i)
            masses = tl.sum(tl.reshape(weight, [M, K_BLOCKS, K_WIDTH]), 2)
            masses = normalised(masses, l_i)
            sums += tl.sum(tl.reshape(masses, [Q_BLOCKS, Q_WIDTH, K_BLOCKS]), 1)

    q_block = first_q_block + tl.arange(0, Q_BLOCKS)
    k_block = first_k_block + tl.arange(0, K_BLOCKS)
    row = (batch * heads + head) * q_blocks + q_block
    tl.store(
        block_sums + row[:, None] * k_blocks + k_block[None, :],
        sums,
        mask=(q_block < q_blocks)[:, None] & (k_block < k_blocks)[None, :],
    )


# --- operation -----------------------------------------------------------------------------------


def xattn_estimate(
    query_states: Tensor,
    key_states: Tensor,
    block_size: int,
    stride: int,
    norm: float = 1.0,
    threshold: float = 0.9,
    chunk_size: int = 16384,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    refusals.check_estimate(
        query_states, key_states, block_size, stride, norm, threshold, chunk_size, causal
    )
    (batch, heads, q_len, _), k_len = query_states.shape, key_states.shape[2]
    q_blocks, k_blocks = triton.cdiv(q_len, block_size), triton.cdiv(k_len, block_size)
    block_sums = query_states.new_empty((batch, heads, q_blocks, k_blocks))
    if block_sums.numel():
        tile = TILES[query_states.element_size()]
        rows = (batch, heads, triton.cdiv(q_len, stride))
        m_global = query_states.new_empty(rows, dtype=torch.float32)
        l_global = torch.empty_like(m_global)
        operands = (query_states, key_states, m_global, l_global)
        shapes = (tuple(query_states.shape), tuple(key_states.shape))
        strides = (query_states.stride(), key_states.stride())
        diagonal = (k_len - q_len) // stride
        ragged = q_len % stride != 0 or k_len % stride != 0
        scale = refusals.estimate_scale(query_states, stride, norm)
        with on_device_of(operands[0]):
            streaming_statistics_kernel[(batch * heads * triton.cdiv(rows[2], tile["M"]),)](
                *operands,
                *shapes,
                *strides,
                stride,
                diagonal,
                scale,
                IS_CAUSAL=causal,
                RAGGED=ragged,
                **tile,
                enable_fp_fusion=False,
            )
        reshaped_block_size = block_size // stride
        width = triton.next_power_of_2(reshaped_block_size)
        q_width, k_width = min(width, tile["M"]), min(width, tile["N"])
        q_tiles = triton.cdiv(q_blocks, tile["M"] // q_width)
        k_tiles = triton.cdiv(k_blocks, tile["N"] // k_width)
        with on_device_of(operands[0]):
            streaming_block_sum_kernel[(batch * heads * q_tiles * k_tiles,)](
                *operands,
                block_sums,
                *shapes,
                *strides,
                reshaped_block_size,
                stride,
                diagonal,
                scale,
                IS_CAUSAL=causal,
                RAGGED=ragged,
                Q_WIDTH=q_width,
                K_WIDTH=k_width,
                **tile,
                enable_fp_fusion=False,
            )
    return block_sums, select(block_sums, k_blocks - q_blocks, threshold, causal)
