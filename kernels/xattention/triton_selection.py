"""The selection of blocks in Triton: one kernel, which compares every pair of a row's blocks.

It sorts nothing and carries no cumulative sum, so it takes any number of blocks and no scratch
memory. Beside the scores that the sums come from, k_blocks comparisons a block are few.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.on_device import on_device_of
from kernels.xattention.triton_tiles import place, visible_keys

TILE: Final = {"N": 64}  # blocks


@triton.jit
def selection_kernel(
    block_sums: tl.tensor,
    selected: tl.tensor,  # contiguous
    shape: tl.tuple,
    strides: tl.tuple,
    current_index: tl.tensor,
    threshold: tl.tensor,
    TAKES_ALL: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    N: tl.constexpr,
) -> None:
    _, heads, q_blocks, k_blocks = shape
    k_tiles = tl.cdiv(k_blocks, N)
    tile, head, batch = place(q_blocks * k_tiles, heads)
    row = tile // k_tiles
    block = tile % k_tiles * N + tl.arange(0, N)
    diagonal = current_index + row
    limit = visible_keys(row, q_blocks, k_blocks, current_index, IS_CAUSAL)

    block_sums += batch * strides[0] + head * strides[1] + row * strides[2]
    own = tl.load(block_sums + block * strides[3], mask=block < limit, other=0).to(tl.float32)
    before = tl.zeros([N], tl.float32)
    total = tl.zeros([N], tl.float32)
    for first in range(0, limit, N):
        other = first + tl.arange(0, N).to(tl.int64)
        mass = tl.load(block_sums + other * strides[3], mask=other < limit, other=0).to(tl.float32)
        first_come = (mass[None, :] == own[:, None]) & (other[None, :] < block[:, None])
        precedes = (mass[None, :] > own[:, None]) | first_come
        if IS_CAUSAL:
            precedes |= ((other == 0) | (other == diagonal))[None, :]
        before += tl.sum(tl.where(precedes, mass[None, :], 0.0), 1)
        total += mass
    total = tl.sum(total, 0) + tl.zeros([N], tl.float32)

    # Mathematically, a block without mass has all the mass before it, and at a threshold of 1 a
    # block with mass never has; a rounded sum may say otherwise.
    wanted = own > 0
    if not TAKES_ALL:
        wanted &= before < threshold * total
    if IS_CAUSAL:
        wanted |= (block == 0) | (block == diagonal)
    wanted |= total != total
    output = selected + ((batch * heads + head) * q_blocks + row) * k_blocks + block
    tl.store(output, wanted & (block < limit), mask=block < k_blocks)


def select(block_sums: Tensor, current_index: int, threshold: float, causal: bool) -> Tensor:
    """As ``find_blocks_chunked``, for arguments that it does not refuse."""
    batch, heads, q_blocks, k_blocks = block_sums.shape
    selected = torch.empty(block_sums.shape, dtype=torch.bool, device=block_sums.device)
    if selected.numel():
        tiles = batch * heads * q_blocks * triton.cdiv(k_blocks, TILE["N"])
        with on_device_of(block_sums):
            selection_kernel[(tiles,)](
                block_sums,
                selected,
                tuple(block_sums.shape),
                block_sums.stride(),
                current_index,
                threshold,
                TAKES_ALL=threshold == 1,
                IS_CAUSAL=causal,
                **TILE,
            )
    return selected
