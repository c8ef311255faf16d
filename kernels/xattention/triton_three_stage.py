"""XAttention in Triton, in three stages: statistics of each chunk of keys, merge, normalised sums.

``segment_size`` chooses no tile, so that no result depends on it (R-X21). All addressing is in 64
bits (R-X15). Operations as `kernels.api.XAttentionKernels` describes them.
"""

from collections.abc import Sequence
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
    shift,
    visible_keys,
    weights,
)

# Query positions, key positions, components of them.
SCORE_TILE: Final = {"M": 64, "N": 128, "D": 32, "num_warps": 8}
STATISTICS_TILE: Final = {"M": 8, "N": 256}  # rows, columns: a row is read far at a time
MERGE_TILE: Final = {"M": 1024}  # rows

# Which kernel each operation launches: the suite holds an operation to it.
KERNELS: Final = {
    "flat_group_gemm_fuse_reshape": "score_kernel",
    "softmax_fuse_block_sum": "one_pass_kernel",
    "softmax_compute_partial_stats": "statistics_kernel",
    "merge_softmax_stats": "merge_kernel",
    "softmax_normalize_and_block_sum": "block_sum_kernel",
    "find_blocks_chunked": "selection_kernel",
}


# --- device code ---------------------------------------------------------------------------------


@triton.jit
def row_statistics(
    scores: tl.tensor,  # a pointer a row
    limit: tl.tensor,
    k_len: tl.tensor,
    column_stride: tl.tensor,
    scale: tl.tensor,
    N: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """m and l of each row."""
    m_i = tl.full(limit.shape, float("-inf"), tl.float32)
    l_i = tl.zeros(limit.shape, tl.float32)
    for first in range(0, tl.max(limit, 0), N):
        j = first + tl.arange(0, N).to(tl.int64)
        raw = tl.load(
            scores[:, None] + j[None, :] * column_stride,
            mask=(limit > 0)[:, None] & (j < k_len)[None, :],
            other=0,
        )
        m_i, l_i = accumulate(m_i, l_i, logits(raw, j[None, :] < limit[:, None], scale))
    return tl.where(l_i == l_i, m_i, l_i), l_i


@triton.jit
def block_masses(
    scores: tl.tensor,  # a pointer a row
    limit: tl.tensor,
    m_i: tl.tensor,
    l_i: tl.tensor,
    first_block: tl.tensor,
    k_len: tl.tensor,
    column_stride: tl.tensor,
    scale: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """The softmax mass of all rows in each of ``BLOCKS`` blocks, ``WIDTH`` columns at a time."""
    limit = tl.where(l_i == 0, 0, limit)  # a row without mass contributes none (R-X4)
    masses = tl.zeros([limit.shape[0], BLOCKS], tl.float32)
    lane = tl.arange(0, BLOCKS * WIDTH).to(tl.int64)
    seen = first_block * BLOCK_SIZE < tl.max(limit, 0)
    for first in range(0, tl.where(seen, BLOCK_SIZE, 0), WIDTH):
        within = first + lane % WIDTH
        j = (first_block + lane // WIDTH) * BLOCK_SIZE + within
        raw = tl.load(
            scores[:, None] + j[None, :] * column_stride,
            mask=(limit > 0)[:, None] & ((within < BLOCK_SIZE) & (j < k_len))[None, :],
            other=0,
        )
        visible = (within < BLOCK_SIZE)[None, :] & (j[None, :] < limit[:, None])
        weight = weights(logits(raw, visible, scale), visible, m_i)
        masses += tl.sum(tl.reshape(weight, [limit.shape[0], BLOCKS, WIDTH]), 2)
    return tl.sum(normalised(masses, l_i), 0)


@triton.jit
def score_kernel(
    query: tl.tensor,
    key: tl.tensor,
    scores: tl.tensor,  # contiguous
    query_shape: tl.tuple,
    key_shape: tl.tuple,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    stride: tl.tensor,
    diagonal: tl.tensor,
    IS_CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
) -> None:
    _, heads, q_tokens, head_dim = query_shape
    k_tokens = key_shape[2]
    q_len = tl.cdiv(q_tokens, stride)
    k_len = tl.cdiv(k_tokens, stride)
    k_tiles = tl.cdiv(k_len, N)
    tile, head, batch = place(tl.cdiv(q_len, M) * k_tiles, heads)
    i = tile // k_tiles * M + tl.arange(0, M)
    j = tile % k_tiles * N + tl.arange(0, N)

    if IS_CAUSAL:  # of a tile that no query sees, nothing is read, and zeros are written
        future = tile % k_tiles * N > diagonal + tile // k_tiles * M + (M - 1)
        head_dim = tl.where(future, 0, head_dim)
    tile_scores = score_tile(
        query + batch * query_strides[0] + head * query_strides[1],
        key + batch * key_strides[0] + head * key_strides[1],
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
    row = (batch * heads + head) * q_len + i
    tl.store(
        scores + row[:, None] * k_len + j[None, :],
        tile_scores,
        mask=(i < q_len)[:, None] & (j < k_len)[None, :],
    )


@triton.jit
def statistics_kernel(
    scores: tl.tensor,
    m_partial: tl.tensor,  # contiguous
    l_partial: tl.tensor,  # contiguous
    shape: tl.tuple,
    strides: tl.tuple,
    diagonal: tl.tensor,
    scale: tl.tensor,
    IS_CAUSAL: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
) -> None:
    _, heads, q_len, k_len = shape
    tile, head, batch = place(tl.cdiv(q_len, M), heads)
    i = tile * M + tl.arange(0, M)
    limit = visible_keys(i, q_len, k_len, diagonal, IS_CAUSAL)
    scores += batch * strides[0] + head * strides[1] + i * strides[2]
    m_i, l_i = row_statistics(scores, limit, k_len, strides[3], scale, N)
    row = (batch * heads + head) * q_len + i
    tl.store(m_partial + row, m_i, mask=i < q_len)
    tl.store(l_partial + row, l_i, mask=i < q_len)


@triton.jit
def merge_kernel(
    m_chunks: tl.tensor,  # [chunks, rows], contiguous, as the others are
    l_chunks: tl.tensor,
    m_global: tl.tensor,
    l_global: tl.tensor,
    chunks: tl.tensor,
    rows: tl.tensor,
    M: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    chunk = row
    m_i = tl.full([M], float("-inf"), tl.float32)
    for _ in range(0, chunks):
        m_i = tl.maximum(m_i, tl.load(m_chunks + chunk, mask=row < rows, other=float("-inf")))
        chunk += rows
    chunk = row
    l_i = tl.zeros([M], tl.float32)
    for _ in range(0, chunks):
        m_c = tl.load(m_chunks + chunk, mask=row < rows, other=float("-inf"))
        l_c = tl.load(l_chunks + chunk, mask=row < rows, other=0)
        l_i += l_c * tl.exp(m_c - shift(m_i))
        chunk += rows
    tl.store(m_global + row, tl.where(l_i == l_i, m_i, l_i), mask=row < rows)
    tl.store(l_global + row, l_i, mask=row < rows)


@triton.jit
def block_sum_kernel(
    scores: tl.tensor,
    m_global: tl.tensor,
    l_global: tl.tensor,
    block_sums: tl.tensor,
    shape: tl.tuple,
    strides: tl.tuple,
    m_strides: tl.tuple,
    l_strides: tl.tuple,
    block_sums_strides: tl.tuple,
    real_rows: tl.tensor,
    diagonal: tl.tensor,
    scale: tl.tensor,
    IS_CAUSAL: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    M: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    _, heads, q_len, k_len = shape
    k_blocks = tl.cdiv(k_len, BLOCK_SIZE)
    k_tiles = tl.cdiv(k_blocks, BLOCKS)
    tile, head, batch = place(tl.cdiv(q_len, BLOCK_SIZE) * k_tiles, heads)
    q_block = tile // k_tiles
    k_block = tile % k_tiles * BLOCKS

    i = q_block * BLOCK_SIZE + tl.arange(0, M)
    counted = tl.minimum((q_block + 1) * BLOCK_SIZE, real_rows)
    m_global += batch * m_strides[0] + head * m_strides[1] + i * m_strides[2]
    l_global += batch * l_strides[0] + head * l_strides[1] + i * l_strides[2]
    masses = block_masses(
        scores + batch * strides[0] + head * strides[1] + i * strides[2],
        visible_keys(i, counted, k_len, diagonal, IS_CAUSAL),
        tl.load(m_global, mask=i < counted, other=float("-inf")),
        tl.load(l_global, mask=i < counted, other=0),
        k_block,
        k_len,
        strides[3],
        scale,
        BLOCK_SIZE,
        BLOCKS,
        WIDTH,
    )
    block_sums += batch * block_sums_strides[0] + head * block_sums_strides[1]
    block = k_block + tl.arange(0, BLOCKS)
    tl.store(
        block_sums + q_block * block_sums_strides[2] + block * block_sums_strides[3],
        masses,
        mask=block < k_blocks,
    )


@triton.jit
def one_pass_kernel(
    scores: tl.tensor,
    block_sums: tl.tensor,  # contiguous
    shape: tl.tuple,
    strides: tl.tuple,
    real_rows: tl.tensor,
    diagonal: tl.tensor,
    scale: tl.tensor,
    IS_CAUSAL: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    M: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    _, heads, q_len, k_len = shape
    q_blocks = q_len // BLOCK_SIZE
    k_blocks = k_len // BLOCK_SIZE
    q_block, head, batch = place(q_blocks, heads)

    i = q_block * BLOCK_SIZE + tl.arange(0, M)
    counted = tl.minimum((q_block + 1) * BLOCK_SIZE, real_rows)
    limit = visible_keys(i, counted, k_len, diagonal, IS_CAUSAL)
    scores += batch * strides[0] + head * strides[1] + i * strides[2]
    m_i, l_i = row_statistics(scores, limit, k_len, strides[3], scale, BLOCKS * WIDTH)
    block_sums += ((batch * heads + head) * q_blocks + q_block) * k_blocks
    for k_block in range(0, k_blocks, BLOCKS):
        masses = block_masses(
            scores,
            limit,
            m_i,
            l_i,
            k_block,
            k_len,
            strides[3],
            scale,
            BLOCK_SIZE,
            BLOCKS,
            WIDTH,
        )
        block = k_block + tl.arange(0, BLOCKS)
        tl.store(block_sums + block, masses, mask=block < k_blocks)


# --- launches ------------------------------------------------------------------------------------


def _scores(
    query: Tensor, key: Tensor, stride: int, diagonal: int, is_causal: bool, dtype: torch.dtype
) -> Tensor:
    """Scores of ``ceil(tokens / stride)`` positions; tokens that the last one lacks add nothing."""
    (batch, heads, q_tokens, _), k_tokens = query.shape, key.shape[2]
    q_len, k_len = triton.cdiv(q_tokens, stride), triton.cdiv(k_tokens, stride)
    scores = query.new_empty((batch, heads, q_len, k_len), dtype=dtype)
    q_tiles, k_tiles = triton.cdiv(q_len, SCORE_TILE["M"]), triton.cdiv(k_len, SCORE_TILE["N"])
    if scores.numel():
        with on_device_of(query):
            score_kernel[(batch * heads * q_tiles * k_tiles,)](
                query,
                key,
                scores,
                tuple(query.shape),
                tuple(key.shape),
                query.stride(),
                key.stride(),
                stride,
                diagonal,
                IS_CAUSAL=is_causal,
                RAGGED=q_tokens % stride != 0 or k_tokens % stride != 0,
                **SCORE_TILE,
            )
    return scores


def _statistics(
    scores: Tensor, scale: float, diagonal: int, is_causal: bool
) -> tuple[Tensor, Tensor]:
    batch, heads, q_len, _ = scores.shape
    m_partial = scores.new_empty((batch, heads, q_len), dtype=torch.float32)
    l_partial = torch.empty_like(m_partial)
    if m_partial.numel():
        with on_device_of(scores):
            statistics_kernel[(batch * heads * triton.cdiv(q_len, STATISTICS_TILE["M"]),)](
                scores,
                m_partial,
                l_partial,
                tuple(scores.shape),
                scores.stride(),
                diagonal,
                scale,
                IS_CAUSAL=is_causal,
                **STATISTICS_TILE,
                enable_fp_fusion=False,
            )
    return m_partial, l_partial


def _block_tile(block_size: int) -> dict[str, int]:
    """All rows of a block of queries, and columns of one block of keys or of several.

    The size of a block is compiled into a kernel: only so does the compiler see that blocks of 8
    begin where a vector may.
    """
    rows: int = triton.next_power_of_2(block_size)
    columns = max(1, min(256, 2048 // rows))
    width = min(rows, columns)
    return {"BLOCK_SIZE": block_size, "M": rows, "BLOCKS": columns // width, "WIDTH": width}


def _block_sums(
    scores: Tensor,
    m_global: Tensor,
    l_global: Tensor,
    block_sums: Tensor,
    block_size: int,
    real_rows: int,
    scale: float,
    diagonal: int,
    is_causal: bool,
) -> None:
    """Write the sums of whole and of ragged blocks to ``block_sums``, of any strides."""
    batch, heads, q_blocks, k_blocks = block_sums.shape
    tile = _block_tile(block_size)
    if block_sums.numel():
        with on_device_of(scores):
            block_sum_kernel[(batch * heads * q_blocks * triton.cdiv(k_blocks, tile["BLOCKS"]),)](
                scores,
                m_global,
                l_global,
                block_sums,
                tuple(scores.shape),
                scores.stride(),
                m_global.stride(),
                l_global.stride(),
                block_sums.stride(),
                max(min(real_rows, scores.shape[2]), 0),
                diagonal,
                scale,
                IS_CAUSAL=is_causal,
                **tile,
                enable_fp_fusion=False,
            )


# --- operations ----------------------------------------------------------------------------------


def flat_group_gemm_fuse_reshape(
    query_states: Tensor,
    key_states: Tensor,
    stride: int,
    chunk_start: int,
    chunk_end: int,
    is_causal: bool = True,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """When ``is_causal``, tiles in the future hold 0 and no logits: for causal consumers only."""
    refusals.check_scores(query_states, key_states, stride, chunk_start, chunk_end, out_dtype)
    dtype = query_states.dtype if out_dtype is None else out_dtype
    return _scores(query_states, key_states, stride, chunk_start, is_causal, dtype)


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
    batch, heads, q_len, k_len = attn_weights_slice.shape
    q_blocks, k_blocks = q_len // reshaped_block_size, k_len // reshaped_block_size
    block_sums = attn_weights_slice.new_empty((batch, heads, q_blocks, k_blocks))
    if block_sums.numel():
        with on_device_of(attn_weights_slice):
            one_pass_kernel[(batch * heads * q_blocks,)](
                attn_weights_slice,
                block_sums,
                tuple(attn_weights_slice.shape),
                attn_weights_slice.stride(),
                max(real_q_len - chunk_start, 0),
                chunk_start,
                scale,
                IS_CAUSAL=is_causal,
                **_block_tile(reshaped_block_size),
                enable_fp_fusion=False,
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
    return _statistics(attn_weights_slice, scale, chunk_start - kv_offset, is_causal)


def merge_softmax_stats(
    m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The chunks are copied to one tensor first, since each may have strides of its own."""
    refusals.check_chunks(m_chunks, l_chunks)
    m_stacked, l_stacked = torch.stack(list(m_chunks)), torch.stack(list(l_chunks))
    m_global, l_global = torch.empty_like(m_stacked[0]), torch.empty_like(l_stacked[0])
    if rows := m_global.numel():
        with on_device_of(m_stacked):
            merge_kernel[(triton.cdiv(rows, MERGE_TILE["M"]),)](
                m_stacked,
                l_stacked,
                m_global,
                l_global,
                len(m_chunks),
                rows,
                **MERGE_TILE,
                enable_fp_fusion=False,
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
    batch, heads, q_len, k_len = attn_weights_slice.shape
    block_sums = attn_weights_slice.new_empty(
        (batch, heads, q_len // reshaped_block_size, k_len // reshaped_block_size)
    )
    _block_sums(
        attn_weights_slice,
        m_global,
        l_global,
        block_sums,
        reshaped_block_size,
        real_q_len - chunk_start,
        scale,
        chunk_start - kv_offset,
        is_causal,
    )
    return block_sums


def find_blocks_chunked(
    input_tensor: Tensor,
    current_index: int,
    threshold: float,
    num_to_choose: None = None,
    decoding: bool = False,
    mode: str = "prefill",
    causal: bool = True,
) -> Tensor:
    """One kernel: every pair of a row's blocks is compared, which no sort or cumulative sum of a
    library has to agree with. A row with a NaN among its visible sums selects all of them.
    """
    refusals.check_selection(
        input_tensor, current_index, threshold, num_to_choose, decoding, mode, causal
    )
    return select(input_tensor, current_index, threshold, causal)


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
    """Holds the fp32 scores of one chunk of queries at a time: O(k_len * chunk_size)."""
    refusals.check_estimate(
        query_states, key_states, block_size, stride, norm, threshold, chunk_size, causal
    )
    (batch, heads, q_len, _), k_len = query_states.shape, key_states.shape[2]
    q_blocks, k_blocks = triton.cdiv(q_len, block_size), triton.cdiv(k_len, block_size)
    scale = refusals.estimate_scale(query_states, stride, norm)
    block_sums = query_states.new_zeros((batch, heads, q_blocks, k_blocks))
    for q_start in range(0, q_len, chunk_size):
        queries = query_states[:, :, q_start : q_start + chunk_size]
        chunks = []
        for k_start in range(0, k_len, chunk_size):
            diagonal = (k_len - q_len + q_start - k_start) // stride
            if causal and diagonal + triton.cdiv(queries.shape[2], stride) <= 0:
                break  # these keys, and the ones after, are in the future of every query
            keys = key_states[:, :, k_start : k_start + chunk_size]
            scores = _scores(queries, keys, stride, diagonal, causal, torch.float32)
            chunks.append((scores, diagonal, *_statistics(scores, scale, diagonal, causal)))
        m_global, l_global = merge_softmax_stats([c[2] for c in chunks], [c[3] for c in chunks])
        rows = block_sums[:, :, q_start // block_size : (q_start + chunk_size) // block_size]
        sums = torch.split(rows, chunk_size // block_size, -1)
        for chunk_sums, (scores, diagonal, _, _) in zip(sums, chunks, strict=False):
            _block_sums(
                scores,
                m_global,
                l_global,
                chunk_sums,
                block_size // stride,
                scores.shape[2],
                scale,
                diagonal,
                causal,
            )
    return block_sums, select(block_sums, k_blocks - q_blocks, threshold, causal)
