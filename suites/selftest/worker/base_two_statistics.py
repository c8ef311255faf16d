"""A user's module: statistics in base 2 by a Triton kernel, as published kernels have them.

Nothing of this project is imported, and nothing is declared: its caller folds log2(e) into
``scale``, takes ``m`` in log2 units, and a TOML file says so. Innermost dims are dense.
"""

import torch
import triton
import triton.language as tl

# ruff: noqa: E741
# mypy: ignore-errors

KERNELS = {"softmax_compute_partial_stats": "partial_stats_kernel"}


@triton.jit
def partial_stats_kernel(
    scores, m, l, q_len, k_len, row_stride, first, scale, causal: tl.constexpr, tile: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    position = first + row % q_len
    maximum = float("-inf")
    total = 0.0
    for start in range(0, k_len, tile):
        columns = start + tl.arange(0, tile)
        seen = columns < k_len
        if causal:
            seen = seen & (columns <= position)
        x = tl.load(scores + row * row_stride + columns, seen, float("-inf")).to(tl.float32) * scale
        x = tl.where(seen, x, float("-inf"))
        larger = tl.maximum(maximum, tl.max(x, 0))
        held = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp2(maximum - held) + tl.sum(tl.exp2(x - held), 0)
        maximum = larger
    tl.store(m + row, maximum)
    tl.store(l + row, total)


def softmax_compute_partial_stats(
    attn_weights_slice,
    reshaped_block_size,
    segment_size,
    scale,
    chunk_start=0,
    kv_offset=0,
    is_causal=False,
):
    if not attn_weights_slice.is_contiguous():
        raise ValueError("attn_weights_slice must be contiguous")
    batch, heads, q_len, k_len = attn_weights_slice.shape
    m = attn_weights_slice.new_empty((batch, heads, q_len), dtype=torch.float32)
    l = torch.empty_like(m)
    if m.numel():
        partial_stats_kernel[(m.numel(),)](
            attn_weights_slice,
            m,
            l,
            q_len,
            k_len,
            k_len,
            chunk_start - kv_offset,
            scale,
            is_causal,
            16,
        )
    return m, l


def merge_softmax_stats(m_chunks, l_chunks):
    m, l = torch.stack(list(m_chunks)), torch.stack(list(l_chunks))
    largest = m.amax(0)
    held = torch.where(largest == -torch.inf, 0, largest)
    return largest, (l * torch.exp2(m - held)).sum(0)
