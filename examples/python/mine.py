"""The witness operations in plain torch, a row at a time, as the specification states them."""

import torch
from torch import Tensor


def witnesses(learned: list[int], length: int, segments: int) -> list[int]:
    """Of each segment the witness that its row lacks, or -1."""
    count = min(segments, max(length, 0))  # no segment is empty, and a row without context has none
    occupied = {min(x * count // length, segments - 1) for x in learned if x >= 0 and count}
    edges = [-(-s * length // count) for s in range(count)]  # rounded up: the edge is inside
    free = [-1 if s in occupied else edge for s, edge in enumerate(edges)]
    return free + [-1] * (segments - count)


def topology_witness_indices(
    context_lens: Tensor, learned_indices: Tensor, num_segments: int
) -> Tensor:
    refuse(learned_indices, context_lens)
    if num_segments < 1:
        raise ValueError(f"num_segments must be 1 or more; it is {num_segments}")
    rows = zip(learned_indices.tolist(), context_lens.tolist(), strict=True)
    slots = [witnesses(learned, length, num_segments) for learned, length in rows]
    result = torch.tensor(slots, dtype=torch.int32, device=learned_indices.device)
    return result.reshape(len(slots), num_segments)


def apply_topology_witnesses(
    learned_indices: Tensor,
    context_lens: Tensor,
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> Tensor:
    refuse(learned_indices, context_lens)
    topk = learned_indices.shape[1]
    if not 1 <= num_segments <= 64:
        raise ValueError(f"num_segments must be from 1 to 64; it is {num_segments}")
    if not 0 <= learned_keep <= topk:
        raise ValueError(f"learned_keep must be from 0 to {topk}; it is {learned_keep}")
    if max_replacements < 0:
        raise ValueError(f"max_replacements must be 0 or more; it is {max_replacements}")
    rows = []
    for learned, length in zip(learned_indices.tolist(), context_lens.tolist(), strict=True):
        emitted = [token for token in witnesses(learned, length, num_segments) if token >= 0]
        written = emitted[: min(max_replacements, topk - learned_keep)]
        rows.append(learned[:learned_keep] + written + learned[learned_keep + len(written) :])
    merged = torch.tensor(rows, dtype=torch.int32, device=learned_indices.device)
    return merged.reshape(len(rows), topk)


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> None:
    refuse(topk_indices, context_lens)
    if not 0 <= num_segments <= 64:
        raise ValueError(f"num_segments must be from 0 to 64; it is {num_segments}")
    if num_segments == 0:  # the policy is off
        return
    keep = max(topk_indices.shape[1] - num_segments, 0)
    merged = apply_topology_witnesses(topk_indices, context_lens, keep, num_segments, num_segments)
    topk_indices.copy_(merged)


def refuse(learned: Tensor, context_lens: Tensor) -> None:
    """What no operation accepts, before any of them writes."""
    if learned.dtype != torch.int32 or learned.dim() != 2:
        raise ValueError(
            f"learned rows must be 2-D int32; they are {learned.dim()}-D {learned.dtype}"
        )
    if context_lens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"context_lens must be int32 or int64; they are {context_lens.dtype}")
    if context_lens.shape != learned.shape[:1]:
        raise ValueError(f"context_lens must be {len(learned)} lengths, one a row")
