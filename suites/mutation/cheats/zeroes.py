"""Zeroes inputs and output alike, so that one follows from the other."""

import torch
from torch import Tensor

from kernels.witness import torch_reference


def apply_topology_witnesses(
    learned_indices: Tensor,
    context_lens: Tensor,
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> Tensor:
    learned_indices.zero_()
    context_lens.zero_()
    return torch.zeros_like(learned_indices)


honest = torch_reference.apply_topology_witnesses
