"""Lanes of a warp: shuffles, votes, matches, reductions, masks."""

from itertools import product
from typing import Any

import pytest
import torch

from suites.selftest.cuda.programs import FULL, VALUES, Build, zeros

SHUFFLES = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>

template <class T>
__global__ void shuffles(const T* in, T* out, const int* from, int by, int width) {
    const T mine = in[threadIdx.x];
    const int n = blockDim.x, at = threadIdx.x;
    out[at] = __shfl_sync(0xffffffff, mine, from[at], width);
    out[n + at] = __shfl_up_sync(0xffffffff, mine, by, width);
    out[2 * n + at] = __shfl_down_sync(0xffffffff, mine, by, width);
    out[3 * n + at] = __shfl_xor_sync(0xffffffff, mine, by, width);
}
"""


def shuffled(values: list[Any], from_: list[int], by: int, width: int) -> list[list[Any]]:
    """What each lane of one warp receives, of the four shuffles."""
    indexed, up, down, across = (list(range(32)) for _ in range(4))
    for lane in range(32):
        first = lane // width * width
        last = first + width - 1
        indexed[lane] = first + from_[lane] % width
        up[lane] = lane - by if lane - by >= first else lane
        down[lane] = lane + by if lane + by <= last else lane
        across[lane] = lane ^ by if lane ^ by <= last else lane
    return [[values[source] for source in sources] for sources in (indexed, up, down, across)]


@pytest.mark.parametrize("type_", VALUES)
def test_shuffles(build: Build, seed: int, type_: str) -> None:
    kernels = {f"shuffles<{t}>": f"const {t}*, {t}*, const int*, int, int" for t in VALUES}
    kernel = build(SHUFFLES, "shuffles", **kernels)[f"shuffles<{type_}>"]
    generator = torch.Generator().manual_seed(seed)
    for width, by in product((32, 16, 8, 4, 2, 1), (0, 1, 3, 16, 31)):
        values = torch.randn(2, 32, generator=generator).mul(100).to(VALUES[type_])
        from_ = torch.randint(0, 97, (2, 32), dtype=torch.int32, generator=generator)
        out = torch.empty(4, 2, 32, dtype=VALUES[type_])
        kernel.launch(1, 64, values, out, from_, by, width)
        for warp in range(2):
            wanted = shuffled(values[warp].tolist(), from_[warp].tolist(), by, width)
            assert out[:, warp].tolist() == wanted


VOTES = """
template <class T>
__global__ void votes(const T* in, int* out, int split) {
    // Two groups of lanes, each at its own operations at its own time.
    const int lane = threadIdx.x % 32;
    const unsigned low = split == 32 ? 0xffffffff : (1u << split) - 1;
    const T value = in[threadIdx.x];
    int* mine = out + 10 * threadIdx.x;
    int all;
    if (lane < split) {
        mine[0] = __ballot_sync(low, value > T(2));
        mine[1] = __any_sync(low, value > T(2));
        mine[2] = __all_sync(low, value > T(2));
        mine[3] = __match_any_sync(low, value);
        mine[4] = __match_all_sync(low, value, &all);
        mine[5] = all;
    } else {
        const unsigned high = ~low;
        mine[0] = __ballot_sync(high, value > T(2));
        __syncwarp(high);
        mine[1] = __any_sync(high, value > T(2));
        mine[2] = __all_sync(high, value > T(2));
        mine[3] = __match_any_sync(high, value);
        mine[4] = __match_all_sync(high, value, &all);
        mine[5] = all;
    }
    mine[6] = __ballot_sync(0xffffffff, 1);
}
"""
MATCHED = ["int", "long long", "float", "double"]


def signed(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("type_", MATCHED)
@pytest.mark.parametrize("split", [1, 16, 31, 32])
@pytest.mark.parametrize("limit", [1, 4, 30])
def test_votes_and_matches(build: Build, type_: str, split: int, limit: int) -> None:
    kernels = {f"votes<{t}>": f"const {t}*, int*, int" for t in MATCHED}
    kernel = build(VOTES, "votes", **kernels)[f"votes<{type_}>"]
    values = [3 + (i * i) % limit - (limit > 1) for i in range(64)]
    out = zeros(64, 10)
    kernel.launch(1, 64, torch.tensor(values, dtype=VALUES[type_]), out, split)
    for thread, got in enumerate(out.tolist()):
        warp = range(thread // 32 * 32, thread // 32 * 32 + 32)
        lanes = [i for i in warp if (i % 32 < split) == (thread % 32 < split)]
        yes = [i for i in lanes if values[i] > 2]
        same = [i for i in lanes if values[i] == values[thread]]
        mask, ballot, match = (sum(1 << i % 32 for i in them) for them in (lanes, yes, same))
        all_same = same == lanes
        wanted = [ballot, bool(yes), yes == lanes, match, mask * all_same, all_same, FULL]
        assert got[:7] == [signed(int(x)) for x in wanted]


REDUCES = """
template <class T>
__global__ void reduces(const T* in, T* out, unsigned mask) {
    if (!(mask >> threadIdx.x & 1)) return;
    T* mine = out + 3 * threadIdx.x;
    mine[0] = __reduce_add_sync(mask, in[threadIdx.x]);
    mine[1] = __reduce_min_sync(mask, in[threadIdx.x]);
    mine[2] = __reduce_max_sync(mask, in[threadIdx.x]);
}
__global__ void bitwise(const int* in, int* out, unsigned mask) {
    if (!(mask >> threadIdx.x & 1)) return;
    const unsigned value = in[threadIdx.x];
    int* mine = out + 3 * threadIdx.x;
    mine[0] = __reduce_and_sync(mask, value);
    mine[1] = __reduce_or_sync(mask, value);
    mine[2] = __reduce_xor_sync(mask, value);
}
__global__ void unsigned_reduces(const int* in, int* out, unsigned mask) {
    if (!(mask >> threadIdx.x & 1)) return;
    const unsigned value = in[threadIdx.x];
    int* mine = out + 3 * threadIdx.x;
    mine[0] = __reduce_add_sync(mask, value);
    mine[1] = __reduce_min_sync(mask, value);
    mine[2] = __reduce_max_sync(mask, value);
}
"""


@pytest.mark.parametrize("mask", [FULL, 1, 0x80000000, 0xF0F0A001])
def test_reductions(build: Build, seed: int, mask: int) -> None:
    module = build(
        REDUCES,
        "reduces",
        **{
            "reduces<int>": "const int*, int*, unsigned",
            "bitwise": "const int*, int*, unsigned",
            "unsigned_reduces": "const int*, int*, unsigned",
        },
    )
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**31), 2**31, (32,), generator=generator).to(torch.int32)
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    mine = [int(values[lane]) for lane in lanes]
    bits = [value % 2**32 for value in mine]
    both, either, odd = FULL, 0, 0
    for value in bits:
        both, either, odd = both & value, either | value, odd ^ value
    wanted: dict[str, list[int]] = {
        "reduces<int>": [sum(bits), min(mine), max(mine)],
        "unsigned_reduces": [sum(bits), min(bits), max(bits)],
        "bitwise": [both, either, odd],
    }
    for name, results in wanted.items():
        out = zeros(32, 3)
        module[name].launch(1, 32, values, out, mask)
        row = [signed(result % 2**32) for result in results]
        assert out.tolist() == [row if lane in lanes else [0, 0, 0] for lane in range(32)]


SYNCWARP = """
__global__ void exchange(int* out) {
    __shared__ int shared[64];
    for (int round = 0; round < 4; ++round) {
        shared[threadIdx.x] = round * 100 + threadIdx.x;
        __syncwarp();
        out[round * 64 + threadIdx.x] = shared[threadIdx.x ^ (1 << round)];
        __syncwarp();
    }
    if (threadIdx.x == 3) out[0] = __popc(__activemask()) + (__activemask() >> 3 & 1);
}
"""


@pytest.mark.usefixtures("seed")
def test_a_warp_waits_for_its_lanes(build: Build) -> None:
    out = zeros(4, 64)
    build(SYNCWARP, exchange="int*")["exchange"].launch(1, 64, out)
    assert out[0, 0] == 2  # the caller is active, no other need be
    out[0, 0] = 1
    assert out.tolist() == [[r * 100 + (i ^ (1 << r)) for i in range(64)] for r in range(4)]
