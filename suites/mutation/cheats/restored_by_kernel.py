"""A kernel writes past its view, and puts back what was there."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.on_device import on_device_of
from kernels.witness import triton_fused


@triton.jit
def scribble_kernel(buffer, past, was):  # type: ignore[no-untyped-def]
    tl.store(buffer + past, 7)
    tl.store(buffer + past, was)


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> None:
    honest(topk_indices, context_lens, num_segments)
    past = topk_indices.numel()
    with on_device_of(topk_indices):
        scribble_kernel[(1,)](topk_indices, past, _element(topk_indices, past))


def _element(buffer: Tensor, past: int) -> int:
    whole = buffer.new_empty(0).set_(buffer.untyped_storage())
    return int(whole[buffer.storage_offset() + past])


honest = triton_fused.scatter_topology_witnesses_
