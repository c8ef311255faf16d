"""A kernel with one mistake, to see what the suite says: left edges are rounded down."""

import torch
from torch import Tensor


def topology_witness_indices(
    context_lens: Tensor, learned_indices: Tensor, num_segments: int
) -> Tensor:
    length = context_lens.long().unsqueeze(1)
    segments = length.clamp(min=1, max=num_segments)  # of each row, none of them empty
    home = learned_indices.long() * segments // length.clamp(min=1)
    home = home.clamp(max=num_segments - 1).where(learned_indices >= 0, num_segments)
    occupied = torch.zeros(len(home), num_segments + 1, dtype=torch.bool, device=home.device)
    occupied.scatter_(1, home, True)

    segment = torch.arange(num_segments, device=home.device)
    edge = segment * length // segments  # the mistake: the token may lie in the segment before
    missing = (segment < segments) & (length > 0) & ~occupied[:, :num_segments]
    return edge.where(missing, -1).int()
