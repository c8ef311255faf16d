"""What every implementation of the family refuses: ValueError, one line that names the argument.

The specification says what is refused, whatever the implementation, so it is written once.
``dtypes`` are those that an implementation takes as scores, queries and keys.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)

Dtypes = Sequence[torch.dtype]


def statistics_dtype(scores: torch.dtype) -> torch.dtype:
    """fp32 (R-X10), unless an implementation takes fp64 scores."""
    return torch.float64 if scores is torch.float64 else torch.float32


def estimate_scale(query_states: Tensor, stride: int, norm: float) -> float:
    """What ``xattn_estimate`` multiplies a score by."""
    return 1 / (math.sqrt(query_states.shape[3]) * stride * norm)


def check_scores(
    query_states: Tensor,
    key_states: Tensor,
    stride: int,
    chunk_start: int,
    chunk_end: int,
    out_dtype: torch.dtype | None,
    dtypes: Dtypes = DTYPES,
) -> None:
    """The arguments of ``flat_group_gemm_fuse_reshape`` (R-X1, R-X16)."""
    _check_queries_and_keys(query_states, key_states, dtypes)
    _at_least("stride", stride, 1)
    for name, states in (("query_states", query_states), ("key_states", key_states)):
        if states.shape[2] % stride:
            raise ValueError(
                f"{name} must have a length that stride={stride} divides, got {states.shape[2]}"
            )
    _at_least("chunk_start", chunk_start, 0)
    _check_chunk_end(chunk_start, chunk_end, query_states.shape[2] // stride)
    if out_dtype is not None and out_dtype not in dtypes:
        raise ValueError(f"out_dtype must be {_names(dtypes)}, got {out_dtype}")


def check_softmax(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int,
    kv_offset: int = 0,
    dtypes: Dtypes = DTYPES,
) -> None:
    """The arguments that every softmax operation has (R-X3, R-X21)."""
    if attn_weights_slice.ndim != 4:
        raise ValueError(
            "attn_weights_slice must be 4-D [batch, heads, q_len, k_len], "
            f"got {attn_weights_slice.ndim}-D"
        )
    _one_of("attn_weights_slice", attn_weights_slice, dtypes)
    _at_least("reshaped_block_size", reshaped_block_size, 1)
    _at_least("segment_size", segment_size, 1)
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    _at_least("chunk_start", chunk_start, 0)
    _at_least("kv_offset", kv_offset, 0)


def check_blocks(attn_weights_slice: Tensor, reshaped_block_size: int, real_q_len: int) -> None:
    """The arguments that block sums need besides those of ``check_softmax`` (R-X7, R-X21)."""
    q_len, k_len = attn_weights_slice.shape[2:]
    if q_len % reshaped_block_size or k_len % reshaped_block_size:
        raise ValueError(
            "attn_weights_slice must have lengths that "
            f"reshaped_block_size={reshaped_block_size} divides, got {q_len} and {k_len}"
        )
    _at_least("real_q_len", real_q_len, 0)


def check_one_pass(attn_weights_slice: Tensor, chunk_start: int, chunk_end: int) -> None:
    """The arguments that ``softmax_fuse_block_sum`` needs besides those of ``check_blocks``."""
    _check_chunk_end(chunk_start, chunk_end, attn_weights_slice.shape[2])


def check_statistics(attn_weights_slice: Tensor, m_global: Tensor, l_global: Tensor) -> None:
    """One ``m`` and one ``l`` for each row of scores (R-X10)."""
    dtype, rows = statistics_dtype(attn_weights_slice.dtype), attn_weights_slice.shape[:3]
    for name, statistic in (("m_global", m_global), ("l_global", l_global)):
        _one_of(name, statistic, (dtype,))
        if statistic.shape != rows:
            raise ValueError(
                f"{name} must have one value a row, shape {list(rows)}, got {list(statistic.shape)}"
            )


def check_chunks(
    m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor], dtypes: Dtypes = (torch.float32,)
) -> None:
    """The arguments of ``merge_softmax_stats`` (R-X5)."""
    if not m_chunks:
        raise ValueError("m_chunks must have at least one chunk, got none")
    if len(l_chunks) != len(m_chunks):
        raise ValueError(
            f"l_chunks must have a chunk for each of the {len(m_chunks)} in m_chunks, "
            f"got {len(l_chunks)}"
        )
    first = m_chunks[0]
    for name, chunks in (("m_chunks", m_chunks), ("l_chunks", l_chunks)):
        for c, chunk in enumerate(chunks):
            if chunk.ndim != 3:
                raise ValueError(
                    f"{name}[{c}] must be 3-D [batch, heads, q_len], got {chunk.ndim}-D"
                )
            _one_of(f"{name}[{c}]", chunk, dtypes if chunk is first else (first.dtype,))
            if chunk.shape != first.shape:
                raise ValueError(
                    f"{name}[{c}] must have the shape of m_chunks[0], {list(first.shape)}, "
                    f"got {list(chunk.shape)}"
                )


def check_selection(
    input_tensor: Tensor,
    current_index: int,
    threshold: float,
    num_to_choose: None,
    decoding: bool,
    mode: str,
    causal: bool,
    dtypes: Dtypes = DTYPES,
) -> None:
    """The arguments of ``find_blocks_chunked`` (R-X12, R-X17)."""
    if input_tensor.ndim != 4:
        raise ValueError(
            "input_tensor must be 4-D [batch, heads, q_blocks, k_blocks], "
            f"got {input_tensor.ndim}-D"
        )
    _one_of("input_tensor", input_tensor, dtypes)
    q_blocks, k_blocks = input_tensor.shape[2:]
    if k_blocks == 0:
        raise ValueError("input_tensor must have at least one block of keys, got none")
    _at_least("current_index", current_index, 0)
    _check_threshold(threshold)
    if num_to_choose is not None:
        raise ValueError(f"num_to_choose is not supported and must be None, got {num_to_choose}")
    if decoding:
        raise ValueError(f"decoding is not supported and must be False, got {decoding}")
    if mode not in ("prefill", "both"):
        raise ValueError(f'mode must be "prefill" or "both", got {mode!r}')
    if causal and current_index + q_blocks > k_blocks:
        raise ValueError(
            f"current_index must be at most k_blocks - q_blocks = {k_blocks - q_blocks} when "
            f"causal, got {current_index}"
        )


def check_estimate(
    query_states: Tensor,
    key_states: Tensor,
    block_size: int,
    stride: int,
    norm: float,
    threshold: float,
    chunk_size: int,
    causal: bool,
    dtypes: Dtypes = DTYPES,
) -> None:
    """The arguments of ``xattn_estimate`` (R-X19, R-X21)."""
    _check_queries_and_keys(query_states, key_states, dtypes)
    for name, states in (("query_states", query_states), ("key_states", key_states)):
        if 0 in states.shape[2:]:
            raise ValueError(
                f"{name} must have a token and a head_dim of at least 1, "
                f"got shape {list(states.shape)}"
            )
    _at_least("stride", stride, 1)
    _at_least("block_size", block_size, 1)
    if block_size % stride:
        raise ValueError(f"block_size must be a multiple of stride={stride}, got {block_size}")
    _at_least("chunk_size", chunk_size, 1)
    if chunk_size % block_size:
        raise ValueError(
            f"chunk_size must be a multiple of block_size={block_size}, got {chunk_size}"
        )
    if norm == 0 or not math.isfinite(estimate_scale(query_states, stride, norm)):
        raise ValueError(f"norm must leave the scale finite, got {norm}")
    _check_threshold(threshold)
    q_len, k_len = query_states.shape[2], key_states.shape[2]
    if (k_len - q_len) % block_size:
        raise ValueError(
            "key_states and query_states must differ in length by a multiple of "
            f"block_size={block_size}, got {k_len} and {q_len}"
        )
    if causal and k_len < q_len:
        raise ValueError(
            "key_states must be at least as long as query_states when causal, "
            f"got {k_len} and {q_len}"
        )


def _check_queries_and_keys(query_states: Tensor, key_states: Tensor, dtypes: Dtypes) -> None:
    for name, states, length in (
        ("query_states", query_states, "q_len"),
        ("key_states", key_states, "k_len"),
    ):
        if states.ndim != 4:
            raise ValueError(
                f"{name} must be 4-D [batch, heads, {length}, head_dim], got {states.ndim}-D"
            )
    _one_of("query_states", query_states, dtypes)
    if key_states.dtype != query_states.dtype:
        raise ValueError(
            f"key_states must be {query_states.dtype} as query_states is, got {key_states.dtype}"
        )
    (*heads, _, head_dim), (*key_heads, _, key_dim) = query_states.shape, key_states.shape
    if (key_heads, key_dim) != (heads, head_dim):
        raise ValueError(
            "key_states must have the batch, heads and head_dim of query_states, "
            f"{[*heads, head_dim]}, got {[*key_heads, key_dim]}"
        )


def _check_chunk_end(chunk_start: int, chunk_end: int, positions: int) -> None:
    if chunk_end - chunk_start != positions:
        raise ValueError(
            f"chunk_end must be chunk_start + {positions}, one position a row of scores, "
            f"got {chunk_end} after chunk_start={chunk_start}"
        )


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _one_of(name: str, tensor: Tensor, dtypes: Dtypes) -> None:
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} must be {_names(dtypes)}, got {tensor.dtype}")


def _names(dtypes: Dtypes) -> str:
    return " or ".join(str(dtype) for dtype in dtypes)
