"""A test double: XAttention as published base-2 kernels do it, with their sins and no other.

``EXPONENT_BASE = 2``: the caller folds log2(e) into ``scale``, and ``m`` is in log2 units. Scores
are read one segment of keys after another with a running maximum and sum, all rows at once.

What it does against the rulings, on purpose:

- R-X3: a block of rows takes every segment before that of its last row as wholly visible. At
  aligned offsets it is. Where ``(chunk_start - kv_offset) mod segment`` is in
  ``[segment - block + 1, segment - 2]`` the first rows of the block see keys of the future, and
  such offsets are not refused.
- R-X4, R-X6: in the segment of its last row, a block gives masked keys the score -1e6. A row that
  sees no key has ``m = -1e6`` and ``l =`` the length of that segment, and scores below -1e6 lose to
  masked ones.
- R-X4, R-X18: the running maximum begins at -inf. ``exp2(-inf - -inf)`` makes NaN of a row that
  begins with a segment of -inf, of the merge of two empty states, and of the block sums of a row
  whose state is empty.

A segment is rounded up to whole blocks, so that any ``segment_size`` is as good as another.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.xattention import refusals

EXPONENT_BASE: Final = 2
SENTINEL: Final = -1e6


def flat_group_gemm_fuse_reshape(
    query_states: Tensor,
    key_states: Tensor,
    stride: int,
    chunk_start: int,
    chunk_end: int,
    is_causal: bool = True,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    refusals.check_scores(query_states, key_states, stride, chunk_start, chunk_end, out_dtype)
    (batch, heads, q_len, head_dim), k_len = query_states.shape, key_states.shape[2]
    # One long vector a position; the queries' tokens run backwards, which makes it antidiagonal.
    queries = query_states.float().reshape(batch, heads, q_len // stride, stride, head_dim).flip(3)
    keys = key_states.float().reshape(batch, heads, k_len // stride, stride * head_dim)
    return (queries.flatten(3) @ keys.mT).to(out_dtype or query_states.dtype)


# --- softmax, a segment at a time ----------------------------------------------------------------


def _segments(
    scores: Tensor, block: int, segment_size: int, scale: float, diagonal: int, is_causal: bool
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Of each segment its columns, x, and which rows read it; row i is at key ``diagonal + i``."""
    q_len, k_len = scores.shape[2:]
    segment = math.ceil(segment_size / block) * block
    row = torch.arange(q_len, device=scores.device).unsqueeze(1)
    last_of_block = diagonal + (row // block + 1) * block - 1
    boundary = (last_of_block // segment).clamp(min=0)
    for number, start in enumerate(range(0, k_len, segment)):
        columns = slice(start, min(start + segment, k_len))
        x = scores[..., columns].float() * scale
        if not is_causal:
            yield columns, x, torch.ones_like(boundary, dtype=torch.bool)
            continue
        key = torch.arange(columns.start, columns.stop, device=scores.device)
        masked = (key > diagonal + row) & (boundary == number)
        yield columns, x.masked_fill(masked, SENTINEL), boundary >= number


def softmax_compute_partial_stats(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int = 0,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    tiling = (reshaped_block_size, segment_size, scale)
    refusals.check_softmax(attn_weights_slice, *tiling, chunk_start, kv_offset)
    m = attn_weights_slice.new_full(
        (*attn_weights_slice.shape[:3], 1), -math.inf, dtype=torch.float32
    )
    total = torch.zeros_like(m)
    diagonal = chunk_start - kv_offset
    for _, x, read in _segments(attn_weights_slice, *tiling, diagonal, is_causal):
        largest = m.maximum(x.amax(-1, keepdim=True))
        summed = total * (m - largest).exp2() + (x - largest).exp2().sum(-1, keepdim=True)
        m, total = largest.where(read, m), summed.where(read, total)
    return m.squeeze(-1), total.squeeze(-1)


def merge_softmax_stats(
    m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    refusals.check_chunks(m_chunks, l_chunks)
    m_global, l_global = m_chunks[0].clone(), l_chunks[0].clone()
    for m, total in zip(m_chunks[1:], l_chunks[1:], strict=True):
        largest = m_global.maximum(m)
        l_global = l_global * (m_global - largest).exp2() + total * (m - largest).exp2()
        m_global = largest
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
    tiling = (reshaped_block_size, segment_size, scale)
    refusals.check_softmax(attn_weights_slice, *tiling, chunk_start, kv_offset)
    refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
    refusals.check_statistics(attn_weights_slice, m_global, l_global)
    (batch, heads, q_len, k_len), block = attn_weights_slice.shape, reshaped_block_size
    position = chunk_start + torch.arange(q_len, device=attn_weights_slice.device).unsqueeze(1)
    weights = torch.zeros_like(attn_weights_slice, dtype=torch.float32)
    diagonal = chunk_start - kv_offset
    for columns, x, read in _segments(attn_weights_slice, *tiling, diagonal, is_causal):
        weight = (x - m_global.unsqueeze(-1)).exp2() / l_global.unsqueeze(-1)
        weights[..., columns] = weight.where(read & (position < real_q_len), 0)
    blocks = weights.reshape(batch, heads, q_len // block, block, k_len // block, block)
    return blocks.sum((3, 5)).to(attn_weights_slice.dtype)


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
    tiling = (reshaped_block_size, segment_size)
    refusals.check_softmax(attn_weights_slice, *tiling, scale, chunk_start)
    refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
    refusals.check_one_pass(attn_weights_slice, chunk_start, chunk_end)
    statistics = softmax_compute_partial_stats(
        attn_weights_slice, *tiling, scale, chunk_start, 0, is_causal
    )
    return softmax_normalize_and_block_sum(
        attn_weights_slice, *statistics, *tiling, chunk_start, real_q_len, scale, 0, is_causal
    )


# --- selection and the estimate ------------------------------------------------------------------


def find_blocks_chunked(
    input_tensor: Tensor,
    current_index: int,
    threshold: float,
    num_to_choose: None = None,
    decoding: bool = False,
    mode: str = "prefill",
    causal: bool = True,
) -> Tensor:
    refusals.check_selection(
        input_tensor, current_index, threshold, num_to_choose, decoding, mode, causal
    )
    q_blocks, k_blocks = input_tensor.shape[2:]
    column = torch.arange(k_blocks, device=input_tensor.device)
    diagonal = torch.arange(q_blocks, device=input_tensor.device).unsqueeze(1) + current_index
    visible = column <= diagonal if causal else torch.ones_like(column, dtype=torch.bool)
    mandatory = causal & ((column == 0) | (column == diagonal))

    mass = input_tensor.float().masked_fill(~visible, 0)
    total = mass.sum(-1, keepdim=True)
    # With the mandatory blocks in front, the mass before a block is what precedes it in a row.
    front = mass.masked_fill(mandatory, math.inf)
    order = front.argsort(dim=-1, descending=True)
    ordered = mass.gather(-1, order)
    before = pad(ordered.cumsum(-1), (1, -1))
    below = (before < threshold * total) | (threshold == 1)
    chosen = torch.zeros_like(below).scatter(-1, order, below & (ordered > 0))
    return (chosen | mandatory | total.isnan()) & visible


def _chunks(states: Tensor, block_size: int, chunk_size: int) -> list[Tensor]:
    whole = pad(states, (0, 0, 0, -states.shape[2] % block_size))
    return [
        whole[:, :, start : start + chunk_size] for start in range(0, whole.shape[2], chunk_size)
    ]


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
    q_len, k_len = query_states.shape[2], key_states.shape[2]
    scale = refusals.estimate_scale(query_states, stride, norm) / math.log(2)
    origin = (k_len - q_len) // stride if causal else 0
    queries, keys = (
        _chunks(states, block_size, chunk_size) for states in (query_states, key_states)
    )
    block, chunk = block_size // stride, chunk_size // stride
    tiling = (block, 4 * block)
    sums = []
    for q_start, q in enumerate(queries):
        chunk_start = origin + q_start * chunk
        rows = (chunk_start, chunk_start + q.shape[2] // stride)
        scores = {
            k_start * chunk: scale
            * flat_group_gemm_fuse_reshape(q, k, stride, *rows, False, torch.float32)
            for k_start, k in enumerate(keys)
        }
        for kv_offset, x in scores.items():  # a padded key has no weight, whatever the scale
            x[..., math.ceil(k_len / stride) - kv_offset :] = -math.inf
        statistics = [
            softmax_compute_partial_stats(x, *tiling, 1.0, chunk_start, kv_offset, causal)
            for kv_offset, x in scores.items()
        ]
        state = merge_softmax_stats(*zip(*statistics, strict=True))
        limits = (chunk_start, origin + math.ceil(q_len / stride))
        sums.append(
            torch.cat(
                [
                    softmax_normalize_and_block_sum(
                        x, *state, *tiling, *limits, 1.0, kv_offset, causal
                    )
                    for kv_offset, x in scores.items()
                ],
                -1,
            )
        )
    block_sums = torch.cat(sums, 2).to(query_states.dtype)
    current_index = origin // block
    return block_sums, find_blocks_chunked(block_sums, current_index, threshold, causal=causal)
