"""The witness policy in Triton: one program a row, one pass over its slots.

Occupancy is one 64-bit mask. Only the slots [keep, keep + width), with width = min(B, S) <= 64, can
receive a witness. The merge holds those back and copies every other slot as it reads it, so each
slot is loaded once and stored once and no barrier has to order two stores; what is reduced of the
witnesses is reduced before the first of them is stored. The serving entry stores witnesses only:
what it stores depends, through the mask, on every load of the row, so no store can overtake a load.

All segment arithmetic and all addressing is in 64 bits (R-W1, R-W5).
Operations as `kernels.api.WitnessKernels` describes them.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.on_device import on_device_of

MAX_TOPOLOGY_SEGMENTS: Final = 64
SLOTS: Final = 1024  # slots a program reads at a time

# Which kernel each operation launches: the suite holds an operation to it.
KERNELS: Final = {
    "topology_witness_indices": "witness_indices_kernel",
    "apply_topology_witnesses": "witness_merge_kernel",
    "scatter_topology_witnesses_": "witness_serve_kernel",
}


# --- device code ---------------------------------------------------------------------------------


@triton.jit
def _or(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a | b


@triton.jit
def _partition(context_len_ptr: tl.tensor, segments: tl.tensor) -> tuple[tl.tensor, ...]:
    """L and S_eff, both 1 at least so that they divide, and how many segments the row has."""
    context = tl.load(context_len_ptr).to(tl.int64)
    length = tl.maximum(context, 1)
    effective = tl.minimum(length, segments)
    return length, effective, tl.where(context > 0, effective, 0)


@triton.jit
def _marks(
    token: tl.tensor, length: tl.tensor, effective: tl.tensor, segments: tl.tensor, first: tl.tensor
) -> tl.tensor:
    """The bit of each token's segment, in a mask of the 64 segments from ``first`` on."""
    segment = tl.minimum(token.to(tl.int64) * effective // length, segments - 1) - first
    marked = (token >= 0) & (segment >= 0) & (segment < 64)
    # A bit beyond the mask is poison, and left out with its token.
    return tl.where(marked, tl.full(token.shape, 1, tl.int64) << segment, 0)


@triton.jit
def _witnesses(
    occupied: tl.tensor, length: tl.tensor, effective: tl.tensor, present: tl.tensor, s: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """For 64 consecutive segments ``s``: the left edge of each, and whether it is a witness."""
    edge = (s * length + effective - 1) // effective
    unoccupied = ((occupied >> (s & 63)) & 1) == 0
    return edge.to(tl.int32), unoccupied & (s < present)


@triton.jit
def witness_indices_kernel(
    context_lens: tl.tensor,
    learned: tl.tensor,
    witnesses: tl.tensor,  # [rows, segments], contiguous
    topk: tl.tensor,
    segments: tl.tensor,
    context_stride: tl.tensor,
    learned_row_stride: tl.tensor,
    learned_slot_stride: tl.tensor,
    SLOTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * 64
    length, effective, present = _partition(context_lens + row * context_stride, segments)

    learned += row * learned_row_stride
    marks = tl.zeros([SLOTS], tl.int64)
    for start in range(0, topk, SLOTS):
        slot = start + tl.arange(0, SLOTS).to(tl.int64)
        token = tl.load(learned + slot * learned_slot_stride, mask=slot < topk, other=-1)
        marks |= _marks(token, length, effective, segments, first)
    occupied = tl.reduce(marks, 0, _or)

    s = first + tl.arange(0, 64).to(tl.int64)
    edge, missing = _witnesses(occupied, length, effective, present, s)
    tl.store(witnesses + row * segments + s, tl.where(missing, edge, -1), mask=s < segments)


@triton.jit
def witness_merge_kernel(
    learned: tl.tensor,
    context_lens: tl.tensor,
    merged: tl.tensor,  # [rows, topk], contiguous
    topk: tl.tensor,
    keep: tl.tensor,
    width: tl.tensor,  # min(B, S)
    segments: tl.tensor,
    learned_row_stride: tl.tensor,
    learned_slot_stride: tl.tensor,
    context_stride: tl.tensor,
    SLOTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    length, effective, present = _partition(context_lens + row * context_stride, segments)
    learned += row * learned_row_stride
    merged += row * topk

    lane = tl.arange(0, 64).to(tl.int64)
    reserved = keep + lane
    held = tl.load(learned + reserved * learned_slot_stride, mask=lane < width, other=-1)
    occupied = tl.reduce(_marks(held, length, effective, segments, 0), 0, _or)

    marks = tl.zeros([SLOTS], tl.int64)
    for start in range(0, topk, SLOTS):
        slot = start + tl.arange(0, SLOTS).to(tl.int64)
        copied = (slot < topk) & ((slot < keep) | (slot >= keep + width))
        token = tl.load(learned + slot * learned_slot_stride, mask=copied, other=-1)
        tl.store(merged + slot, token, mask=copied)
        marks |= _marks(token, length, effective, segments, 0)
    occupied |= tl.reduce(marks, 0, _or)

    edge, missing = _witnesses(occupied, length, effective, present, lane)
    rank = tl.cumsum(missing.to(tl.int64), 0) - 1
    count = tl.sum(missing.to(tl.int64), 0)
    tl.store(merged + keep + rank, edge, mask=missing & (rank < width))
    tl.store(merged + reserved, held, mask=(lane >= count) & (lane < width))


@triton.jit
def witness_serve_kernel(
    topk_indices: tl.tensor,
    context_lens: tl.tensor,
    topk: tl.tensor,
    keep: tl.tensor,
    width: tl.tensor,  # min(topk, S)
    segments: tl.tensor,
    row_stride: tl.tensor,
    slot_stride: tl.tensor,
    context_stride: tl.tensor,
    SLOTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    length, effective, present = _partition(context_lens + row * context_stride, segments)
    topk_indices += row * row_stride

    marks = tl.zeros([SLOTS], tl.int64)
    for start in range(0, topk, SLOTS):
        slot = start + tl.arange(0, SLOTS).to(tl.int64)
        token = tl.load(topk_indices + slot * slot_stride, mask=slot < topk, other=-1)
        marks |= _marks(token, length, effective, segments, 0)
    occupied = tl.reduce(marks, 0, _or)

    s = tl.arange(0, 64).to(tl.int64)
    edge, missing = _witnesses(occupied, length, effective, present, s)
    rank = tl.cumsum(missing.to(tl.int64), 0) - 1
    tl.store(topk_indices + (keep + rank) * slot_stride, edge, mask=missing & (rank < width))


# --- operations ----------------------------------------------------------------------------------


def _check_rows(name: str, learned: Tensor, context_lens: Tensor) -> tuple[int, int]:
    """Rows and topk of a legal pair of tensors; ValueError otherwise (R-W4)."""
    if learned.dtype is not torch.int32 or learned.ndim != 2:
        raise ValueError(f"{name} must be a 2-D int32 tensor, got {learned.ndim}-D {learned.dtype}")
    if context_lens.dtype not in (torch.int32, torch.int64) or context_lens.ndim != 1:
        raise ValueError(
            "context_lens must be a 1-D int32 or int64 tensor, "
            f"got {context_lens.ndim}-D {context_lens.dtype}"
        )
    rows, topk = learned.shape
    if context_lens.numel() != rows:
        raise ValueError(f"context_lens covers {context_lens.numel()} rows of {rows} in {name}")
    return rows, topk


def topology_witness_indices(
    context_lens: Tensor, learned_indices: Tensor, num_segments: int
) -> Tensor:
    rows, topk = _check_rows("learned_indices", learned_indices, context_lens)
    if num_segments < 1:
        raise ValueError(f"num_segments must be at least 1, got {num_segments}")

    witnesses = learned_indices.new_empty((rows, num_segments))
    if rows:
        with on_device_of(context_lens):
            witness_indices_kernel[(rows, triton.cdiv(num_segments, 64))](
                context_lens,
                learned_indices,
                witnesses,
                topk,
                num_segments,
                context_lens.stride(0),
                learned_indices.stride(0),
                learned_indices.stride(1),
                SLOTS=SLOTS,
            )
    return witnesses


def apply_topology_witnesses(
    learned_indices: Tensor,
    context_lens: Tensor,
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> Tensor:
    rows, topk = _check_rows("learned_indices", learned_indices, context_lens)
    if num_segments < 1 or num_segments > MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be in [1, 64], got {num_segments}")
    if learned_keep < 0 or learned_keep > topk:
        raise ValueError(f"learned_keep must be in [0, topk={topk}], got {learned_keep}")
    if max_replacements < 0:
        raise ValueError(f"max_replacements must be at least 0, got {max_replacements}")

    merged = learned_indices.new_empty((rows, topk))
    if rows:
        with on_device_of(learned_indices):
            witness_merge_kernel[(rows,)](
                learned_indices,
                context_lens,
                merged,
                topk,
                learned_keep,
                min(max_replacements, topk - learned_keep, num_segments),
                num_segments,
                learned_indices.stride(0),
                learned_indices.stride(1),
                context_lens.stride(0),
                SLOTS=SLOTS,
            )
    return merged


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> None:
    rows, topk = _check_rows("topk_indices", topk_indices, context_lens)
    if num_segments < 0 or num_segments > MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be in [0, 64], got {num_segments}")

    if rows and num_segments:
        with on_device_of(topk_indices):
            witness_serve_kernel[(rows,)](
                topk_indices,
                context_lens,
                topk,
                max(topk - num_segments, 0),
                min(topk, num_segments),
                num_segments,
                topk_indices.stride(0),
                topk_indices.stride(1),
                context_lens.stride(0),
                SLOTS=SLOTS,
            )
