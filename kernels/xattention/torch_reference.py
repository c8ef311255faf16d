"""XAttention in vectorised torch, on any device: no loop but over the stride and over chunks.

Everything is computed in fp32, and results are rounded once, to their own dtype. With
``dtypes=DEPUTY`` an operation takes fp64 and computes in it: so it stands in for the oracle on
shapes that are too large for that.
Scores are always complete: ``is_causal`` skips nothing, so they suit any consumer (R-X20).
Operations as `kernels.api.XAttentionKernels` describes them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.xattention import refusals
from kernels.xattention.refusals import Dtypes, statistics_dtype

DEPUTY: Final = (torch.float64,)


def flat_group_gemm_fuse_reshape(
    query_states: Tensor,
    key_states: Tensor,
    stride: int,
    chunk_start: int,
    chunk_end: int,
    is_causal: bool = True,
    out_dtype: torch.dtype | None = None,
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> Tensor:
    refusals.check_scores(
        query_states, key_states, stride, chunk_start, chunk_end, out_dtype, dtypes
    )
    scores = _scores(query_states, key_states, stride)
    return scores.to(query_states.dtype if out_dtype is None else out_dtype)


def _scores(queries: Tensor, keys: Tensor, stride: int) -> Tensor:
    """Scores of ``ceil(tokens / stride)`` positions; tokens that the last one lacks add nothing.

    The antidiagonal of a T x T block pairs the tokens s of a key position, s = 0 .. T - 1, with
    those of a query position from the last one back.
    """
    (batch, heads, q_tokens, _), k_tokens = queries.shape, keys.shape[2]
    queries, keys = (states.to(statistics_dtype(states.dtype)) for states in (queries, keys))
    scores = queries.new_zeros(
        batch, heads, math.ceil(q_tokens / stride), math.ceil(k_tokens / stride)
    )
    for s in range(stride):
        q, k = queries[:, :, stride - 1 - s :: stride], keys[:, :, s::stride]
        scores[:, :, : q.shape[2], : k.shape[2]] += q @ k.transpose(2, 3)
    return scores


def softmax_fuse_block_sum(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    chunk_end: int,
    real_q_len: int,
    scale: float,
    is_causal: bool = True,
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> Tensor:
    refusals.check_softmax(
        attn_weights_slice,
        reshaped_block_size,
        segment_size,
        scale,
        chunk_start,
        dtypes=dtypes,
    )
    refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
    refusals.check_one_pass(attn_weights_slice, chunk_start, chunk_end)
    x, visible = _logits(attn_weights_slice, scale, chunk_start, is_causal)
    sums = _block_sums(x, visible, *_statistics(x), reshaped_block_size, real_q_len - chunk_start)
    return sums.to(attn_weights_slice.dtype)


def softmax_compute_partial_stats(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int = 0,
    kv_offset: int = 0,
    is_causal: bool = False,
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> tuple[Tensor, Tensor]:
    refusals.check_softmax(
        attn_weights_slice,
        reshaped_block_size,
        segment_size,
        scale,
        chunk_start,
        kv_offset,
        dtypes,
    )
    x, _ = _logits(attn_weights_slice, scale, chunk_start - kv_offset, is_causal)
    return _statistics(x)


def _logits(scores: Tensor, scale: float, diagonal: int, is_causal: bool) -> tuple[Tensor, Tensor]:
    """``x``, -inf where masked, and which columns are visible: j to i if ``j <= diagonal + i``."""
    q_len, k_len = scores.shape[2:]
    visible = torch.ones(q_len, k_len, dtype=torch.bool, device=scores.device)
    if is_causal:
        i = torch.arange(q_len, device=scores.device).unsqueeze(1)
        visible = torch.arange(k_len, device=scores.device) <= diagonal + i
    x = scores.to(statistics_dtype(scores.dtype)) * scale
    return x.where(visible, -math.inf), visible


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    m = x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], -math.inf)
    return m, (x - _finite(m).unsqueeze(-1)).exp().sum(-1)


def _finite(m: Tensor) -> Tensor:
    """A maximum that can be subtracted: an empty row has none, and none of its keys has weight."""
    return m.where(m != -math.inf, 0)


def _block_sums(
    x: Tensor, visible: Tensor, m_i: Tensor, l_i: Tensor, block_size: int, real_rows: int
) -> Tensor:
    batch, heads, q_len, k_len = x.shape
    counted = (torch.arange(q_len, device=x.device) < real_rows) & (l_i != 0)
    weight = (x - _finite(m_i).unsqueeze(-1)).exp() / l_i.unsqueeze(-1)
    weight = weight.where(visible & counted.unsqueeze(-1), 0)
    blocks = weight.view(
        batch, heads, q_len // block_size, block_size, k_len // block_size, block_size
    )
    return blocks.sum((3, 5))


def merge_softmax_stats(
    m_chunks: Sequence[Tensor],
    l_chunks: Sequence[Tensor],
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> tuple[Tensor, Tensor]:
    refusals.check_chunks(m_chunks, l_chunks, [statistics_dtype(dtype) for dtype in dtypes])
    return _merged(m_chunks, l_chunks)


def _merged(m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    m = torch.stack(list(m_chunks))
    m_global = m.amax(0)
    l_global = (torch.stack(list(l_chunks)) * (m - _finite(m_global)).exp()).sum(0)
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
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> Tensor:
    refusals.check_softmax(
        attn_weights_slice,
        reshaped_block_size,
        segment_size,
        scale,
        chunk_start,
        kv_offset,
        dtypes,
    )
    refusals.check_blocks(attn_weights_slice, reshaped_block_size, real_q_len)
    refusals.check_statistics(attn_weights_slice, m_global, l_global)
    x, visible = _logits(attn_weights_slice, scale, chunk_start - kv_offset, is_causal)
    sums = _block_sums(
        x, visible, m_global, l_global, reshaped_block_size, real_q_len - chunk_start
    )
    return sums.to(attn_weights_slice.dtype)


def find_blocks_chunked(
    input_tensor: Tensor,
    current_index: int,
    threshold: float,
    num_to_choose: None = None,
    decoding: bool = False,
    mode: str = "prefill",
    causal: bool = True,
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> Tensor:
    """A row with a NaN among its visible sums selects every visible block."""
    refusals.check_selection(
        input_tensor, current_index, threshold, num_to_choose, decoding, mode, causal, dtypes
    )
    q_blocks, k_blocks = input_tensor.shape[2:]
    block = torch.arange(k_blocks, device=input_tensor.device)
    diagonal = current_index + torch.arange(q_blocks, device=input_tensor.device).unsqueeze(1)
    visible = (block <= diagonal) | (not causal)
    mandatory = visible & ((block == 0) | (block == diagonal)) & causal

    mass = input_tensor.to(statistics_dtype(input_tensor.dtype)).where(visible, 0)
    total = mass.sum(-1, keepdim=True)
    certain = mass.where(mandatory, 0).sum(-1, keepdim=True)
    descending, order = mass.where(~mandatory, 0).sort(dim=-1, descending=True, stable=True)
    before = certain + pad(descending.cumsum(-1), (1, 0))[..., :k_blocks]
    # Mathematically, a block without mass has all the mass before it, and at a threshold of 1 a
    # block with mass never has; the cumulative sum is rounded and may say otherwise.
    wanted = (descending > 0) & ((before < threshold * total) | (threshold == 1))
    selected = torch.zeros_like(wanted).scatter(-1, order, wanted) | mandatory
    return (selected | total.isnan()) & visible


def xattn_estimate(
    query_states: Tensor,
    key_states: Tensor,
    block_size: int,
    stride: int,
    norm: float = 1.0,
    threshold: float = 0.9,
    chunk_size: int = 16384,
    causal: bool = True,
    *,
    dtypes: Dtypes = refusals.DTYPES,
) -> tuple[Tensor, Tensor]:
    """Scores are kept in fp32 (or fp64), whatever the queries; block sums take their dtype."""
    refusals.check_estimate(
        query_states, key_states, block_size, stride, norm, threshold, chunk_size, causal, dtypes
    )
    (batch, heads, q_len, _), k_len = query_states.shape, key_states.shape[2]
    q_blocks, k_blocks = math.ceil(q_len / block_size), math.ceil(k_len / block_size)
    scale = refusals.estimate_scale(query_states, stride, norm)
    origin = (k_len - q_len) // stride if causal else 0  # of the queries (R-X19)

    block_sums = query_states.new_zeros(batch, heads, q_blocks, k_blocks)
    for q_start in range(0, q_len, chunk_size):
        queries = query_states[:, :, q_start : q_start + chunk_size]
        logits = {
            k_start // stride: _whole_blocks(
                scale * _scores(queries, key_states[:, :, k_start : k_start + chunk_size], stride),
                block_size // stride,
            )
            for k_start in range(0, k_len, chunk_size)
        }
        rows = block_sums[:, :, q_start // block_size : (q_start + chunk_size) // block_size]
        rows[...] = _three_stages(logits, block_size // stride, origin + q_start // stride, causal)
    current_index = k_blocks - q_blocks if causal else 0
    mask = find_blocks_chunked(block_sums, current_index, threshold, causal=causal, dtypes=dtypes)
    return block_sums, mask


def _whole_blocks(x: Tensor, block_size: int) -> Tensor:
    """With -inf for logits where a block lacks positions: they have no weight (R-X7)."""
    q_len, k_len = x.shape[2:]
    return pad(x, (0, -k_len % block_size, 0, -q_len % block_size), value=-math.inf)


def _three_stages(
    logits: Mapping[int, Tensor], block_size: int, chunk_start: int, causal: bool
) -> Tensor:
    """The block sums of a chunk of queries, from its logits by the offset of their keys."""
    statistics = [
        _statistics(_logits(x, 1.0, chunk_start - kv_offset, causal)[0])
        for kv_offset, x in logits.items()
    ]
    m_global, l_global = _merged(*zip(*statistics, strict=True))
    real_rows = m_global.shape[2]  # padded rows see no key of weight
    sums = [
        _block_sums(
            *_logits(x, 1.0, chunk_start - kv_offset, causal),
            m_global,
            l_global,
            block_size,
            real_rows,
        )
        for kv_offset, x in logits.items()
    ]
    return torch.cat(sums, -1)
