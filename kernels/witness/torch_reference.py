"""The witness policy in vectorised torch, on any device, without a loop over rows.

Operations as `kernels.api.WitnessKernels` describes them.
"""

import torch
from torch import Tensor

MAX_TOPOLOGY_SEGMENTS = 64


def _refuse(learned_name: str, learned: Tensor, context_lens: Tensor) -> None:
    if learned.dtype != torch.int32:
        raise ValueError(f"{learned_name} must be int32, got {learned.dtype}")
    if learned.dim() != 2:
        raise ValueError(f"{learned_name} must be 2-D [rows, topk], got {learned.dim()}-D")
    if context_lens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"context_lens must be int32 or int64, got {context_lens.dtype}")
    if context_lens.shape != learned.shape[:1]:
        raise ValueError(
            f"context_lens must be 1-D with one length a row ({learned.shape[0]}), "
            f"got shape {list(context_lens.shape)}"
        )


def _witness_slots(learned: Tensor, context_lens: Tensor, num_segments: int) -> Tensor:
    """int64 [rows, num_segments]: the witness of each segment, or -1."""
    rows, _ = learned.shape
    context = context_lens.to(torch.int64).unsqueeze(1)
    length = context.clamp(min=1)
    effective = length.clamp(max=num_segments)

    token = learned.to(torch.int64)
    marked = (token * effective // length).clamp(max=num_segments - 1)
    # Padding marks a segment past the last, whose column is dropped again.
    marked = marked.where(token >= 0, num_segments)
    occupied = torch.zeros(rows, num_segments + 1, dtype=torch.bool, device=learned.device)
    occupied.scatter_(1, marked, True)

    s = torch.arange(num_segments, dtype=torch.int64, device=learned.device)
    edge = (s * length + effective - 1) // effective
    missing = (s < effective) & (context > 0) & ~occupied[:, :num_segments]
    return edge.where(missing, -1)


def _merge_into(target: Tensor, witnesses: Tensor, keep: int, budget: int) -> None:
    """Write each row's witnesses, in order, to ``target[:, keep : keep + budget]``."""
    emitted = witnesses >= 0
    rank = emitted.cumsum(1) - 1
    row, s = (emitted & (rank < budget)).nonzero(as_tuple=True)
    target[row, keep + rank[row, s]] = witnesses[row, s].to(torch.int32)


def topology_witness_indices(
    context_lens: Tensor, learned_indices: Tensor, num_segments: int
) -> Tensor:
    _refuse("learned_indices", learned_indices, context_lens)
    if num_segments < 1:
        raise ValueError(f"num_segments must be at least 1, got {num_segments}")
    return _witness_slots(learned_indices, context_lens, num_segments).to(torch.int32)


def apply_topology_witnesses(
    learned_indices: Tensor,
    context_lens: Tensor,
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> Tensor:
    _refuse("learned_indices", learned_indices, context_lens)
    topk = learned_indices.shape[1]
    if not 1 <= num_segments <= MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be in [1, 64], got {num_segments}")
    if not 0 <= learned_keep <= topk:
        raise ValueError(f"learned_keep must be in [0, {topk}], got {learned_keep}")
    if max_replacements < 0:
        raise ValueError(f"max_replacements must not be negative, got {max_replacements}")

    merged = learned_indices.clone(memory_format=torch.contiguous_format)
    witnesses = _witness_slots(learned_indices, context_lens, num_segments)
    _merge_into(merged, witnesses, learned_keep, min(max_replacements, topk - learned_keep))
    return merged


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> None:
    _refuse("topk_indices", topk_indices, context_lens)
    if not 0 <= num_segments <= MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be in [0, 64], got {num_segments}")
    if num_segments == 0:  # the off switch
        return

    topk = topk_indices.shape[1]
    keep = max(topk - num_segments, 0)
    witnesses = _witness_slots(topk_indices, context_lens, num_segments)
    _merge_into(topk_indices, witnesses, keep, topk - keep)
