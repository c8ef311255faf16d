"""The witness policy in CUDA C++: cuda_fused.cu, and how its kernels are launched.

Operations as `kernels.api.WitnessKernels` describes them, on CUDA tensors by a GPU and on CPU
tensors by the host (`kernels.cuda`). CUDA's ``__reduce_or_sync`` needs sm_80 or newer.
"""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.cuda import Module

MAX_TOPOLOGY_SEGMENTS: Final = 64
THREADS: Final = 128  # kThreads, a block
BITS: Final = 64  # kBits, segments a block
LENGTHS: Final = {torch.int32: "int", torch.int64: "long long"}
KERNELS: Final = {
    "topology_witness_indices": "witness_indices",
    "apply_topology_witnesses": "witness_merge",
    "scatter_topology_witnesses_": "witness_serve",
}

MODULE: Final = Module(
    Path(__file__).with_suffix(".cu"),
    {
        f"{kernel}<{length}>": parameters.format(length=length)
        for length in LENGTHS.values()
        for kernel, parameters in {
            "witness_indices": (
                "const int*, const {length}*, int*, int, int, long long, long long, long long"
            ),
            "witness_merge": (
                "const int*, const {length}*, int*, "
                "int, int, int, int, long long, long long, long long"
            ),
            "witness_serve": (
                "int*, const {length}*, int, int, int, int, long long, long long, long long"
            ),
        }.items()
    },
)


def _refuse(name: str, learned: Tensor, context_lens: Tensor) -> None:
    """ValueError for tensors that no row can be read from (R-W4)."""
    if learned.dtype != torch.int32 or learned.dim() != 2:
        raise ValueError(f"{name} must be int32 [rows, topk], got {_shown(learned)}")
    if context_lens.dtype not in LENGTHS or context_lens.shape != learned.shape[:1]:
        raise ValueError(
            f"context_lens must be int32 or int64 [{learned.shape[0]}], one length for each row "
            f"of {name}, got {_shown(context_lens)}"
        )


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def topology_witness_indices(
    context_lens: Tensor, learned_indices: Tensor, num_segments: int
) -> Tensor:
    _refuse("learned_indices", learned_indices, context_lens)
    if num_segments < 1:
        raise ValueError(f"num_segments must be 1 or more, got {num_segments}")

    rows, topk = learned_indices.shape
    witnesses = learned_indices.new_empty(rows, num_segments)
    if rows > 0:
        MODULE[f"witness_indices<{LENGTHS[context_lens.dtype]}>"].launch(
            rows * -(-num_segments // BITS),
            THREADS,
            learned_indices,
            context_lens,
            witnesses,
            topk,
            num_segments,
            *learned_indices.stride(),
            *context_lens.stride(),
        )
    return witnesses


def apply_topology_witnesses(
    learned_indices: Tensor,
    context_lens: Tensor,
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> Tensor:
    _refuse("learned_indices", learned_indices, context_lens)
    rows, topk = learned_indices.shape
    if not 0 < num_segments <= MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be 1 to 64, got {num_segments}")
    if not 0 <= learned_keep <= topk:
        raise ValueError(f"learned_keep must be 0 to topk, {topk}, got {learned_keep}")
    if max_replacements < 0:
        raise ValueError(f"max_replacements must be 0 or more, got {max_replacements}")

    merged = learned_indices.new_empty(rows, topk)
    if rows > 0:
        MODULE[f"witness_merge<{LENGTHS[context_lens.dtype]}>"].launch(
            rows,
            THREADS,
            learned_indices,
            context_lens,
            merged,
            topk,
            learned_keep,
            min(max_replacements, topk - learned_keep, num_segments),
            num_segments,
            *learned_indices.stride(),
            *context_lens.stride(),
        )
    return merged


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> None:
    _refuse("topk_indices", topk_indices, context_lens)
    if not 0 <= num_segments <= MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be 0 to 64, got {num_segments}")

    rows, topk = topk_indices.shape
    if rows > 0 and num_segments > 0:
        MODULE[f"witness_serve<{LENGTHS[context_lens.dtype]}>"].launch(
            rows,
            THREADS,
            topk_indices,
            context_lens,
            topk,
            max(topk - num_segments, 0),
            min(topk, num_segments),
            num_segments,
            *topk_indices.stride(),
            *context_lens.stride(),
        )
