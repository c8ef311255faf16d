"""Takes fp32 and returns fp32, and computes in fp16 between the two."""

from torch import Tensor

from kernels.xattention import torch_reference


def softmax_compute_partial_stats(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int = 0,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    m, total = honest(
        attn_weights_slice,
        reshaped_block_size,
        segment_size,
        scale,
        chunk_start,
        kv_offset,
        is_causal,
    )
    return m.half().float(), total.half().float()


honest = torch_reference.softmax_compute_partial_stats
