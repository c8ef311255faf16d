"""Writes before its view, and puts back what was there, in torch."""

from torch import Tensor

from kernels.witness import torch_reference


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> None:
    honest(topk_indices, context_lens, num_segments)
    before = topk_indices.as_strided((1,), (1,), topk_indices.storage_offset() - 1)
    was = before.clone()
    before.fill_(7)
    before.copy_(was)


honest = torch_reference.scatter_topology_witnesses_
