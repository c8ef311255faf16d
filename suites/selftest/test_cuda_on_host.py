"""CUDA C++ on the host: each primitive against its definition, each mistake against its message.

The kernels below are plain CUDA. What they should give is worked out here from CUDA's own
definitions; the order in which threads get their turn must not matter to any of it.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.cuda import SEED, LaunchFault, Module

ROOT = Path(__file__).parents[2]
SEEDS = [0, 1, 2, 7]
FULL = 0xFFFFFFFF

VALUES = {  # C++ name -> dtype
    "int": torch.int32,
    "long long": torch.int64,
    "float": torch.float32,
    "double": torch.float64,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
}


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each of several orders in turn, set for the launches of the test."""
    token = SEED.set(request.param)
    yield request.param
    SEED.reset(token)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


Build = Callable[..., Module]


@pytest.fixture
def build(sources: Path) -> Build:
    """A module of one source text; ``kernels``: from expressions to parameter types."""

    def build(text: str, name: str = "test", /, **kernels: str) -> Module:
        path = sources / f"{name}.cu"
        path.write_text(text, encoding="utf-8")
        return Module(path, kernels)

    return build


def integers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


# --- where a thread is ---------------------------------------------------------------------------

WHERE = """
__global__ void where(int* out) {
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int* mine = out + 6 * (block * threads + thread);
    mine[0] = blockIdx.x, mine[1] = blockIdx.y, mine[2] = blockIdx.z;
    mine[3] = threadIdx.x, mine[4] = threadIdx.y, mine[5] = threadIdx.z;
}
"""


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(
    ("grid", "block"), [((2, 3, 4), (5, 3, 2)), ((7,), (1024,)), ((1, 2), (1, 1, 64))]
)
def test_every_thread_of_every_block_runs_once(
    build: Build, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    gx, gy, gz = (*grid, 1, 1)[:3]
    bx, by, bz = (*block, 1, 1)[:3]
    wanted = [
        [x, y, z, i, j, k]
        for z in range(gz)
        for y in range(gy)
        for x in range(gx)
        for k in range(bz)
        for j in range(by)
        for i in range(bx)
    ]
    out = torch.full((len(wanted), 6), -1, dtype=torch.int32)
    build(WHERE, where="int*")["where"].launch(grid, block, out)
    assert out.tolist() == wanted


ORDER = """
__global__ void order(int* threads, int* blocks, int* count) {
    const int place = atomicAdd(count, 1);
    threads[place] = threadIdx.x;
    blocks[place] = blockIdx.x;
}
"""


def order_of(build: Build, seed: int) -> tuple[list[int], list[int]]:
    """The threads of 6 blocks of 96, in the order in which they ran, and the blocks."""
    threads, blocks = zeros(6 * 96), zeros(6 * 96)
    token = SEED.set(seed)
    kernel = build(ORDER, order="int*, int*, int*")["order"]
    kernel.launch(6, 96, threads, blocks, zeros(1))
    SEED.reset(token)
    assert sorted(threads.tolist()) == sorted(list(range(96)) * 6)
    return threads.tolist(), blocks.tolist()[::96]


def test_seed_0_is_the_order_of_the_numbers(build: Build) -> None:
    assert order_of(build, 0) == (list(range(96)) * 6, list(range(6)))


def test_other_seeds_permute_threads_and_blocks(build: Build) -> None:
    orders = [order_of(build, seed) for seed in range(8)]
    assert orders == [order_of(build, seed) for seed in range(8)]
    assert len({tuple(threads) for threads, _ in orders}) == 8
    assert len({tuple(blocks) for _, blocks in orders}) > 4
    # Warps in all orders, so that each one runs ahead of each other; lanes too.
    first_warps = {threads[0] // 32 for threads, _ in orders}
    assert first_warps == {0, 1, 2}
    assert len({threads[0] % 32 for threads, _ in orders}) > 3


RACE = """
__global__ void race(int* out) {
    __shared__ int flag;
    if (threadIdx.x == 40) flag = 1;
    BARRIER;
    out[threadIdx.x] = flag;
}
"""


def test_a_missing_barrier_shows_under_some_order(build: Build) -> None:
    wrong = {"": 0, "__syncthreads()": 0}
    for barrier in wrong:
        kernel = build(RACE.replace("BARRIER", barrier), "race", race="int*")["race"]
        for seed in range(10):
            token = SEED.set(seed)
            out = zeros(64)
            kernel.launch(1, 64, out)
            SEED.reset(token)
            wrong[barrier] += out.tolist() != [1] * 64
    assert wrong[""] > 6  # unless thread 40 happens to be the first
    assert wrong["__syncthreads()"] == 0


# --- barriers ------------------------------------------------------------------------------------

BARRIERS = """
__global__ void barriers(const int* in, int* out) {
    __shared__ int shared[96];
    int predicate = in[threadIdx.x];
    for (int round = 0; round < 5; ++round) {
        shared[threadIdx.x] = round * 1000 + threadIdx.x;
        __syncthreads();
        const int other = shared[(threadIdx.x + 37 * (round + 1)) % 96];
        int* mine = out + 4 * (round * 96 + threadIdx.x);
        mine[0] = other;
        mine[1] = __syncthreads_count(predicate);
        mine[2] = __syncthreads_or(predicate);
        mine[3] = __syncthreads_and(predicate);
        predicate = predicate && threadIdx.x % (round + 2) == 0;
    }
}
"""


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("predicates", [[0] * 96, [5] * 96, [i % 3 for i in range(96)]])
def test_barriers(build: Build, predicates: list[int]) -> None:
    out = zeros(5, 96, 4)
    build(BARRIERS, barriers="const int*, int*")["barriers"].launch(
        1, 96, integers(predicates), out
    )
    for number in range(5):
        count = sum(map(bool, predicates))
        assert out[number].tolist() == [
            [number * 1000 + (i + 37 * (number + 1)) % 96, count, int(count > 0), int(count == 96)]
            for i in range(96)
        ]
        predicates = [p if i % (number + 2) == 0 else 0 for i, p in enumerate(predicates)]


# --- warps ---------------------------------------------------------------------------------------

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


# --- bits, vectors, numbers ----------------------------------------------------------------------

BITS = """
__global__ void bits(const long long* in, long long* out) {
    const long long x = in[threadIdx.x], y = in[(threadIdx.x + 1) % blockDim.x];
    long long* mine = out + 16 * threadIdx.x;
    mine[0] = __popc((unsigned)x);
    mine[1] = __popcll(x);
    mine[2] = __clz((int)x);
    mine[3] = __clzll(x);
    mine[4] = __ffs((int)x);
    mine[5] = __ffsll(x);
    mine[6] = __brev((unsigned)x);
    mine[7] = __brevll(x);
    mine[8] = __umulhi((unsigned)x, (unsigned)y);
    mine[9] = __mulhi((int)x, (int)y);
    mine[10] = __umul64hi(x, y);
    mine[11] = __mul64hi(x, y);
    mine[12] = __float_as_int(__int_as_float((int)x));
    mine[13] = __float_as_uint(__uint_as_float((unsigned)x));
    mine[14] = __double_as_longlong(__longlong_as_double(x));
    mine[15] = __ldg(in + threadIdx.x) + __ldcs(in) - __ldcg(in);
}
"""


def test_bits(build: Build) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), 0x8000, 3 << 40]
    # Patterns of a signalling NaN are left out: a float in a register may become quiet.
    drawn = torch.randint(-(2**63), 2**63 - 1, (200,), generator=generator).tolist()
    values = [v for v in [*edges, *drawn] if not (v % 2**31 > 0x7F800000 and not v >> 22 & 1)]
    out = torch.zeros(len(values), 16, dtype=torch.int64)
    kernel = build(BITS, bits="const long long*, long long*")["bits"]
    kernel.launch(1, len(values), torch.tensor(values), out)

    def low(value: int, bits: int, sign: bool = False) -> int:
        value %= 2**bits
        return value - 2**bits if sign and value >> (bits - 1) else value

    def first(value: int) -> int:
        return (value & -value).bit_length()

    for x, y, got in zip(values, values[1:] + values[:1], out.tolist(), strict=True):
        x32, x64 = low(x, 32), low(x, 64)
        assert got == [
            x32.bit_count(),
            x64.bit_count(),
            32 - x32.bit_length(),
            64 - x64.bit_length(),
            first(x32),
            first(x64),
            int(f"{x32:032b}"[::-1], 2),
            low(int(f"{x64:064b}"[::-1], 2), 64, sign=True),
            x32 * low(y, 32) >> 32,
            low(x, 32, sign=True) * low(y, 32, sign=True) >> 32,
            low(x64 * low(y, 64) >> 64, 64, sign=True),
            x * y >> 64,
            low(x, 32, sign=True),
            x32,
            x,
            x,
        ]


VECTORS = """
template <class V> struct Padded { char one; V v; };
#define SHOW(V) out[i++] = sizeof(V), out[i++] = alignof(Padded<V>);
__global__ void layout(int* out) {
    int i = 0;
    SHOW(char2) SHOW(uchar4) SHOW(short2) SHOW(ushort4) SHOW(int2) SHOW(int3) SHOW(int4)
    SHOW(uint4) SHOW(longlong2) SHOW(ulonglong2) SHOW(float2) SHOW(float3) SHOW(float4)
    SHOW(double2) SHOW(longlong4) SHOW(double4)
}
__global__ void vectors(const float* in, float* out) {
    const float4 v = reinterpret_cast<const float4*>(in)[threadIdx.x];
    reinterpret_cast<float4*>(out)[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
}
"""


def test_vectors_have_cudas_layout(build: Build) -> None:
    module = build(VECTORS, "vectors", layout="int*", vectors="const float*, float*")
    out = zeros(32)
    module["layout"].launch(1, 1, out)
    sizes = [2, 4, 4, 8, 8, 12, 16, 16, 16, 16, 8, 12, 16, 16, 32, 32]
    alignments = [2, 4, 4, 8, 8, 4, 16, 16, 16, 16, 8, 4, 16, 16, 16, 16]
    pairs = chain.from_iterable(zip(sizes, alignments, strict=True))
    assert out.tolist() == list(pairs)
    values, turned = torch.arange(128.0), torch.empty(128)
    module["vectors"].launch(1, 32, values, turned)
    assert turned.view(32, 4).equal(values.view(32, 4).flip(1))


NUMBERS = """
__global__ void numbers(const float* a, const float* b, float* out) {
    const float x = a[threadIdx.x], y = b[threadIdx.x];
    float* mine = out + 20 * threadIdx.x;
    mine[0] = min(x, y), mine[1] = max(x, y), mine[2] = fminf(x, y), mine[3] = fmaxf(x, y);
    mine[4] = __saturatef(x), mine[5] = __fadd_rn(x, y), mine[6] = __fsub_rn(x, y);
    mine[7] = __fmul_rn(x, y), mine[8] = __fdiv_rn(x, y), mine[9] = __frcp_rn(x);
    mine[10] = isnan(x), mine[11] = isinf(x), mine[12] = fabsf(x);
    mine[13] = min((double)x, (double)y), mine[14] = max((double)x, (double)y);
    mine[15] = isfinite(x), mine[16] = signbit(x) ? 1 : 0, mine[17] = __fdividef(x, y);
}
__global__ void functions(const float* in, float* out) {
    const float x = in[threadIdx.x];
    float* mine = out + 14 * threadIdx.x;
    mine[0] = expf(x), mine[1] = exp2f(x), mine[2] = logf(x), mine[3] = log2f(x);
    mine[4] = sqrtf(x), mine[5] = rsqrtf(x), mine[6] = __expf(x), mine[7] = __logf(x);
    mine[8] = __log2f(x), mine[9] = __powf(x, 1.5f), mine[10] = __fsqrt_rn(x);
    mine[11] = fmaf(x, x, x), mine[12] = __fmaf_rn(x, x, -x), mine[13] = exp(double(x));
}
__global__ void integers(const long long* in, long long* out) {
    const long long x = in[threadIdx.x], y = in[(threadIdx.x + 1) % blockDim.x];
    long long* mine = out + 8 * threadIdx.x;
    mine[0] = min(x, y), mine[1] = max(x, y);
    mine[2] = min((int)x, (int)y), mine[3] = max((int)x, (int)y);
    mine[4] = min((unsigned)x, (unsigned)y), mine[5] = max((unsigned)x, (unsigned)y);
    mine[6] = min((unsigned long long)x, (unsigned long long)y);
    mine[7] = max((unsigned long long)x, (unsigned long long)y);
}
"""


@pytest.fixture
def numbers(build: Build) -> Module:
    return build(
        NUMBERS,
        "numbers",
        numbers="const float*, const float*, float*",
        functions="const float*, float*",
        integers="const long long*, long long*",
    )


def test_arithmetic_of_floats(numbers: Module) -> None:
    special = [0.0, -0.0, 1.0, -1.5, 0.25, float("nan"), float("inf"), -float("inf"), 1e-42, 3e38]
    a = torch.tensor([x for x in special for _ in special])
    b = torch.tensor([y for _ in special for y in special])
    out = torch.empty(100, 20)
    numbers["numbers"].launch(1, 100, a, b, out)
    smaller, larger = torch.fmin(a, b), torch.fmax(a, b)  # a number before a NaN
    wanted = [
        smaller,
        larger,
        smaller,
        larger,
        a.clamp(0, 1).nan_to_num(),
        a + b,
        a - b,
        a * b,
        a / b,
        1 / a,
        a.isnan().float(),
        a.isinf().float(),
        a.abs(),
        smaller,
        larger,
        a.isfinite().float(),
        a.signbit().float(),
        a / b,
    ]
    for column, expected in enumerate(wanted):
        assert torch.equal(out[:, column].nan_to_num(7), expected.nan_to_num(7)), column


def test_functions_of_floats(numbers: Module) -> None:
    x = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 20 + 1e-3
    out = torch.empty(500, 14)
    numbers["functions"].launch(1, 500, x, out)
    d = x.double()
    wanted = [d.exp(), d.exp2(), d.log(), d.log2(), d.sqrt(), d.rsqrt(), d.exp(), d.log()]
    wanted += [d.log2(), d**1.5, d.sqrt(), d * d + d, d * d - d, d.exp()]
    for column, expected in enumerate(wanted):
        ulp = (expected.abs() * 2.0**-23).clamp(min=2.0**-149)
        assert (out[:, column].double() - expected).abs().le(2 * ulp).all(), column
    fused = out[:, 12].double()  # rounded once
    assert torch.equal(fused.float(), (d * d - d).float())


def test_smaller_and_larger_integers(numbers: Module) -> None:
    values = [0, -1, 1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 5]
    out = torch.empty(len(values), 8, dtype=torch.int64)
    numbers["integers"].launch(1, len(values), torch.tensor(values), out)
    for x, y, got in zip(values, values[1:] + values[:1], out.tolist(), strict=True):
        wanted: list[int] = []
        for bits, has_sign in ((64, True), (32, True), (32, False), (64, False)):
            a, b = (
                n - 2**bits if has_sign and n >> (bits - 1) else n
                for n in (x % 2**bits, y % 2**bits)
            )
            wanted += [min(a, b), max(a, b)]
        wanted[6:] = [n - 2**64 if n >= 2**63 else n for n in wanted[6:]]
        assert got == wanted


# --- atomics -------------------------------------------------------------------------------------

ATOMICS = """
template <class T>
__global__ void atomics(const T* in, T* cells, T* before) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(cells + 0, in[i]);
    before[i] = atomicExch(cells + 1, in[i]);
}
template <class T>
__global__ void extremes(const T* in, T* cells) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMin(cells + 0, in[i]);
    atomicMax(cells + 1, in[i]);
}
template <class T>
__global__ void bitwise(const long long* in, long long* cells) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const T x = static_cast<T>(in[i]);
    T* as = reinterpret_cast<T*>(cells);
    atomicAnd(as + 0, x), atomicOr(as + 8, x), atomicXor(as + 16, x);
}
__global__ void counters(unsigned most, int* up, int* down, int* sum) {
    atomicInc(reinterpret_cast<unsigned*>(up), most);
    atomicDec(reinterpret_cast<unsigned*>(down), most);
    atomicSub(sum, 3);
}
template <class T>
__global__ void swaps(T* cell, int* tries) {
    // A product, which has no atomic of its own.
    T seen = *cell, expected;
    do {
        atomicAdd(tries, 1);
        expected = seen;
        seen = atomicCAS(cell, expected, static_cast<T>(expected * 3));
    } while (seen != expected);
}
__global__ void swaps_long(long long* cell, int* tries) {
    swaps<unsigned long long>(reinterpret_cast<unsigned long long*>(cell), tries);
}
"""


@pytest.fixture
def atomics(build: Build) -> Module:
    return build(
        ATOMICS,
        "atomics",
        **{f"atomics<{t}>": f"const {t}*, {t}*, {t}*" for t in ("int", "float")},
        **{f"extremes<{t}>": f"const {t}*, {t}*" for t in ("int", "long long")},
        **{f"bitwise<{t}>": "const long long*, long long*" for t in ("int", "unsigned long long")},
        counters="unsigned, int*, int*, int*",
        swaps_long="long long*, int*",
        **{"swaps<int>": "int*, int*"},
    )


@pytest.mark.parametrize("type_", ["int", "float"])
def test_atomic_sums_and_exchanges(atomics: Module, seed: int, type_: str) -> None:
    values = torch.arange(1, 769).to(VALUES[type_])
    cells = torch.tensor([10, -5], dtype=VALUES[type_])
    before = torch.zeros_like(values)
    atomics[f"atomics<{type_}>"].launch(3, 256, values, cells, before)
    assert cells[0] == 10 + values.sum()
    # Every value but the last one is handed on, once.
    assert sorted([*before.tolist(), cells[1].item()]) == sorted([-5, *values.tolist()])
    assert (cells[1] == 768) == (seed == 0)


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("type_", ["int", "long long"])
def test_atomic_extremes(atomics: Module, type_: str) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-(2**31), 2**31, (768,), generator=generator).to(VALUES[type_])
    cells = torch.zeros(2, dtype=VALUES[type_])
    atomics[f"extremes<{type_}>"].launch(3, 256, values, cells)
    assert cells.tolist() == [values.min(), values.max()]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(("type_", "bits"), [("int", 32), ("unsigned long long", 64)])
def test_atomic_bits(atomics: Module, type_: str, bits: int) -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(-(2**63), 2**63 - 1, (96,), generator=generator)
    cells = torch.zeros(24, dtype=torch.int64)
    size = bits // 32
    cells.view(torch.int32)[:size] = -1
    atomics[f"bitwise<{type_}>"].launch(3, 32, values, cells)
    both, either, odd = -1, 0, 0
    for value in values.tolist():
        both, either, odd = both & value, either | value, odd ^ value
    found = [cells.view(torch.int32)[8 * size * i : 8 * size * i + size].tolist() for i in range(3)]
    for got, wanted in zip(found, (both, either, odd), strict=True):
        assert sum((word % 2**32) << 32 * i for i, word in enumerate(got)) == wanted % 2**bits


@pytest.mark.usefixtures("seed")
def test_atomic_counters(atomics: Module) -> None:
    up, down, total = zeros(1), zeros(1), zeros(1)
    atomics["counters"].launch(2, 50, 6, up, down, total)
    assert up.item() == 100 % 7  # 0, 1, ... 6, 0
    assert down.item() == -100 % 7  # 0, 6, 5, ... 0
    assert total.item() == -300
    down[0] = 9  # more than the most
    atomics["counters"].launch(1, 1, 6, up, down, total)
    assert down.item() == 6


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("name", ["swaps<int>", "swaps_long"])
def test_compare_and_swap(atomics: Module, name: str) -> None:
    threads = 19
    cell = torch.ones(1, dtype=torch.int64 if "long" in name else torch.int32)
    atomics[name].launch(1, threads, cell, zeros(1))
    assert cell.item() == 3**threads
    cell = torch.zeros_like(cell)
    tries = zeros(1)
    atomics[name].launch(1, 1, cell, tries)
    assert (cell.item(), tries.item()) == (0, 1)


# --- floats of 16 bits ---------------------------------------------------------------------------

FLOAT16 = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>

template <class H>
__global__ void narrow(const float* in, H* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = H(in[i]);
}
template <class H>
__global__ void narrow_double(const double* in, H* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = H(in[i]);
}
template <class H>
__global__ void widen(const H* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}
template <class H>
__global__ void arithmetic(const H* a, const H* b, H* out, int* comparisons) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const H x = a[i], y = b[i];
    H* mine = out + 9 * i;
    mine[0] = x + y, mine[1] = x - y, mine[2] = x * y, mine[3] = x / y, mine[4] = -x;
    mine[5] = x, mine[5] += y;
    mine[6] = x, mine[6] -= y;
    mine[7] = x, mine[7] *= y;
    mine[8] = x, mine[8] /= y;
    comparisons[i] = (x < y) | (x <= y) << 1 | (x > y) << 2 | (x >= y) << 3 | (x == y) << 4
                     | (x != y) << 5;
}
__global__ void named_half(const float* in, float* out) {
    const __half a = __float2half(in[0]), b = __float2half_rn(in[1]), c = __double2half(in[2]);
    const __half2 ab = __halves2half2(a, b), cd = __floats2half2_rn(in[2], in[3]);
    const float2 wide = __half22float2(__float22half2_rn(make_float2(in[4], in[5])));
    out[0] = __low2float(ab), out[1] = __high2float(ab), out[2] = __half2float(c);
    out[3] = __half2float(__high2half(cd)), out[4] = wide.x, out[5] = wide.y;
    out[6] = __half2float(__low2half(cd)), out[7] = __half_as_ushort(a);
    out[8] = __half2float(__ushort_as_half(0x3c01)), out[9] = sizeof(half2) + alignof(half2);
    out[10] = half(7);
}
__global__ void named_bf16(const float* in, float* out) {
    const __nv_bfloat16 a = __float2bfloat16(in[0]), b = __float2bfloat16_rn(in[1]);
    const __nv_bfloat16 c = __double2bfloat16(in[2]);
    const __nv_bfloat162 ab = __halves2bfloat162(a, b), cd = __floats2bfloat162_rn(in[2], in[3]);
    const float2 wide = __bfloat1622float2(__float22bfloat162_rn(make_float2(in[4], in[5])));
    out[0] = __low2float(ab), out[1] = __high2float(ab), out[2] = __bfloat162float(c);
    out[3] = __bfloat162float(__high2bfloat16(cd)), out[4] = wide.x, out[5] = wide.y;
    out[6] = __bfloat162float(__low2bfloat16(cd)), out[7] = __bfloat16_as_ushort(a);
    out[8] = __bfloat162float(__ushort_as_bfloat16(0x3f81));
    out[9] = sizeof(nv_bfloat162) + alignof(nv_bfloat162);
    out[10] = nv_bfloat16(7);
}
"""
NARROW = {"__half": torch.float16, "__nv_bfloat16": torch.bfloat16}
narrow_types = pytest.mark.parametrize("type_", NARROW)


@pytest.fixture
def float16(build: Build) -> Module:
    kernels = {"named_half": "const float*, float*", "named_bf16": "const float*, float*"}
    for type_ in NARROW:
        kernels[f"narrow<{type_}>"] = f"const float*, {type_}*, int"
        kernels[f"narrow_double<{type_}>"] = f"const double*, {type_}*, int"
        kernels[f"widen<{type_}>"] = f"const {type_}*, float*, int"
        kernels[f"arithmetic<{type_}>"] = f"const {type_}*, const {type_}*, {type_}*, int*"
    return build(FLOAT16, "float16", **kernels)


def every(dtype: torch.dtype) -> Tensor:
    """All values of a 16-bit dtype, NaN and infinities among them."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def narrowed(module: Module, name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.zeros(values.shape, dtype=dtype)
    module[name].launch(-(-len(values) // 256), 256, values, out, len(values))
    return out


def same_numbers(got: Tensor, wanted: Tensor) -> bool:
    """Bit for bit, NaN for any NaN."""
    both = got.isnan() & wanted.isnan()
    width = torch.int16 if got.element_size() == 2 else torch.int32
    return bool((both | (got.view(width) == wanted.view(width))).all())


@narrow_types
def test_widening_is_exact(float16: Module, type_: str) -> None:
    values = every(NARROW[type_])
    out = torch.zeros(2**16)
    float16[f"widen<{type_}>"].launch(256, 256, values, out, 2**16)
    assert same_numbers(out, values.float())


@narrow_types
def test_narrowing_rounds_to_nearest_even(float16: Module, type_: str) -> None:
    """Every value, every tie between two of them, and the floats on both sides of both."""
    dtype = NARROW[type_]
    finite = every(dtype)[every(dtype).isfinite()].double().sort().values
    ties = ((finite[:-1] + finite[1:]) / 2).float()
    middle = torch.cat([finite.float(), ties])
    infinity = torch.tensor(float("inf"))
    drawn = torch.randint(-(2**31), 2**31, (2**16,), generator=torch.Generator().manual_seed(0))
    top = finite[-1].item() * (1 + 2.0 ** (-12 if dtype is torch.float16 else -9))  # a tie, to inf
    values = torch.cat(
        [
            middle,
            middle.nextafter(infinity),
            middle.nextafter(-infinity),
            drawn.to(torch.int32).view(torch.float32),
            torch.tensor([top, -top, 3.4e38, 1e-45, -1e-45, 0.0, -0.0, float("nan")]),
            torch.tensor([65519.9, 65520.0, float("inf"), -float("inf")]),
        ]
    )
    wanted = values.to(dtype)
    # It matters which: ties, subnormals, overflow and NaN are all among them.
    assert wanted.isinf().any()
    assert wanted.isnan().any()
    assert (wanted.abs() < torch.finfo(dtype).tiny).sum() > 2**9
    assert same_numbers(narrowed(float16, f"narrow<{type_}>", values, dtype), wanted)


@narrow_types
def test_narrowing_a_double_rounds_once(float16: Module, type_: str) -> None:
    """Just off a tie by less than a float can tell, which going by way of a float would lose."""
    dtype = NARROW[type_]
    last = 2.0**-10 if dtype is torch.float16 else 2.0**-7
    tie = 1 + last / 2
    values = torch.tensor([tie, tie + 2**-40, tie - 2**-40, tie + last], dtype=torch.float64)
    assert float(np.float32(tie + 2**-40)) == tie
    got = narrowed(float16, f"narrow_double<{type_}>", values, dtype)
    exact = [Fraction(value) for value in (1.0, 1 + last, 1.0, 1 + 2 * last)]
    assert [Fraction(value) for value in got.tolist()] == exact


@narrow_types
def test_arithmetic_of_16_bits(float16: Module, type_: str) -> None:
    dtype = NARROW[type_]
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(-(2**15), 2**15, (2, 2**13), generator=generator)
    a, b = drawn.to(torch.int16).view(dtype)
    near = a.view(torch.int16)[: 2**12] ^ 1  # compare neighbours too
    b[: 2**12] = near.view(dtype)
    b[:64] = a[:64]
    out, comparisons = torch.zeros(2**13, 9, dtype=dtype), zeros(2**13)
    float16[f"arithmetic<{type_}>"].launch(32, 256, a, b, out, comparisons)
    x, y = a.float(), b.float()
    results = [x + y, x - y, x * y, x / y, -x, x + y, x - y, x * y, x / y]
    for column, wanted in enumerate(results):
        assert same_numbers(out[:, column].contiguous(), wanted.to(dtype)), column
    orders = [x < y, x <= y, x > y, x >= y, x == y, x != y]
    assert comparisons.equal(sum(order.int() << i for i, order in enumerate(orders)))


@pytest.mark.parametrize("type_", NARROW)
def test_named_conversions(float16: Module, type_: str) -> None:
    values, dtype = torch.tensor([1.0009, -2.7, 3.14159, 1e5, 0.1, -7e-8]), NARROW[type_]
    out = torch.zeros(11)
    name = "named_half" if type_ == "__half" else "named_bf16"
    float16[name].launch(1, 1, values, out)
    a, b, c, d, e, f = values.to(dtype).float().tolist()
    bits = values[:1].to(dtype).view(torch.int16).item()
    eps = torch.finfo(dtype).eps
    assert out.tolist() == [a, b, c, d, e, f, c, bits, 1 + eps, 8, 7]


# --- shared memory -------------------------------------------------------------------------------

SHARED = """
__global__ void fixed(float* seen) {
    __shared__ float values[32];
    seen[blockIdx.x * 32 + threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = 1.0f;
}
__global__ void dynamic(int* out, int n) {
    extern __shared__ int numbers[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) numbers[i] = 3 * i + 1;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = numbers[n - 1 - i];
}
template <class T>
__global__ void named(T* out) {
    extern __shared__ __align__(16) unsigned char bytes[];
    T* mine = reinterpret_cast<T*>(bytes);
    if (threadIdx.x == 0) out[0] = mine[0];
    mine[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[1 + threadIdx.x] = mine[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.fixture
def shared(build: Build) -> Module:
    return build(
        SHARED,
        "shared",
        fixed="float*",
        dynamic="int*, int",
        **{"named<double>": "double*", "named<float>": "float*"},
    )


@pytest.mark.usefixtures("seed")
def test_shared_memory_starts_as_garbage_in_every_block(shared: Module) -> None:
    seen = torch.zeros(4 * 32)
    shared["fixed"].launch(4, 32, seen)
    assert seen.isnan().all()


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("size", [1, 1000, 227 * 256])
def test_dynamic_shared_memory(shared: Module, size: int) -> None:
    out = zeros(size)
    shared["dynamic"].launch(1, 64, out, size, shared_bytes=4 * size)
    assert out.equal((torch.arange(size, dtype=torch.int32) * 3 + 1).flip(0))


def test_dynamic_shared_memory_is_one_whatever_its_name_and_type(shared: Module) -> None:
    single, double = torch.zeros(65), torch.zeros(65, dtype=torch.float64)
    shared["named<float>"].launch(1, 64, single, shared_bytes=256)
    shared["named<double>"].launch(1, 64, double, shared_bytes=512)
    assert single[1:].tolist() == double[1:].tolist() == list(range(63, -1, -1))
    assert single[0].isnan()


def test_builds_do_not_share_variables(build: Build) -> None:
    """Two sources with a variable of one name, in a template as well, loaded at once."""
    text = """
    template <int n> __device__ int* scratch() { __shared__ int array[SIZE]; return array; }
    __global__ void fill(int* out) {
        for (int i = threadIdx.x; i < SIZE; i += 32) scratch<1>()[i] = SIZE;
        __syncthreads();
        for (int i = threadIdx.x; i < SIZE; i += 32) out[i] = scratch<1>()[i];
    }
    """
    for size in (8, 4000):
        out = zeros(size)
        module = build(text.replace("SIZE", str(size)), f"scratch{size}", fill="int*")
        module["fill"].launch(1, 32, out)
        assert out.eq(size).all()


def test_launches_from_several_threads(shared: Module) -> None:
    """Long enough to overlap, if they could: the interpreter's lock is free meanwhile."""
    results = {size: zeros(size) for size in range(500, 504)}

    def work(size: int) -> None:
        shared["dynamic"].launch(3000, 64, results[size], size, shared_bytes=4 * size)

    workers = [threading.Thread(target=work, args=(size,)) for size in results]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for size, out in results.items():
        assert out.equal((torch.arange(size, dtype=torch.int32) * 3 + 1).flip(0))


# --- mistakes ------------------------------------------------------------------------------------

# Each kernel makes one mistake when asked to; the message is in terms of its own lines.
MISTAKES = """__global__ void divergent(int* out, int x) {
    if (threadIdx.x < 40 + 1000 * !x) __syncthreads();
    else __syncthreads();
}
__global__ void early(int* out, int x) {
    if (x && threadIdx.x % 32 == 5) return;
    __syncthreads();
}
__global__ void not_in_mask(int* out, int x) {
    if (!x || threadIdx.x < 16) out[0] = __ballot_sync(x ? 0xfff0 : 0xffffffff, 1);
}
__global__ void missing_lanes(int* out, int x) {
    if (!x || threadIdx.x % 32 < 30) out[0] = __shfl_sync(0xffffffff, 1, 0);
}
__global__ void absent_source(int* out, int x) {
    if (threadIdx.x % 32 < 8) out[0] = __shfl_sync(0xff, 1, x ? 9 : 3);
}
__global__ void deadlock(int* out, int x) {
    if (!x) return;
    if (threadIdx.x < 16) __syncwarp();
    else __syncthreads();
}
__global__ void other_operation(int* out, int x) {
    if (x && threadIdx.x == 3) __any_sync(0xffffffff, 1);
    else __all_sync(0xffffffff, 1);
}
__global__ void misaligned(int* out, int x) {
    reinterpret_cast<int4*>(out + x)[threadIdx.x] = make_int4(1, 2, 3, 4);
}
__global__ void shift(int* out, int x) {
    out[threadIdx.x] = 1u << (x ? threadIdx.x : threadIdx.x & 31);
}
__global__ void product(int* out, int x) {
    out[threadIdx.x] = (threadIdx.x + 3) * (x ? 1000000000 : 1) * 1;
    out[0] = (int)(threadIdx.x + 3) * (x ? 1000000000 : 1);
}
__global__ void sum(int* out, int x) {
    out[0] = (int)threadIdx.x + (x ? 2147483647 : 0);
}
__global__ void quotient(int* out, int x) {
    out[0] = 7 / (x ? (int)threadIdx.x - 9 : 1);
}
__global__ void conversion(int* out, int x) {
    out[0] = (int)((x ? 1e9f : 1.0f) * threadIdx.x);
}
__global__ void outside(int* out, int x) {
    __shared__ int few[50];
    few[x ? threadIdx.x : 0] = 1;
}
__global__ void past_dynamic(int* out, int x) {
    extern __shared__ int numbers[];
    numbers[x ? threadIdx.x : 0] = 1;
}
"""
MESSAGES = {
    "divergent": "divergent barrier: __syncthreads() in line 2 has threads 0-39; "
    "__syncthreads() in line 3 has threads 40-63",
    "early": "a barrier is not reached by threads that returned: "
    "__syncthreads() in line 7 has threads 0-4, 6-36, 38-63; returned have threads 5, 37",
    "not_in_mask": "__ballot_sync(0xfff0) in line 10: the mask lacks lane # of thread #, "
    "which calls it",
    "missing_lanes": "lanes that a mask names do not come: __shfl_sync(0xffffffff) in line 13 "
    "has threads 0-29, 32-61; returned have threads 30-31, 62-63",
    "absent_source": "__shfl_sync(0xff) in line 16: thread # reads from lane 9, "
    "which is not in the mask",
    "deadlock": "deadlock: __syncwarp(0xffffffff) in line 20 has threads 0-15; "
    "__syncthreads() in line 21 has threads 16-63",
    "other_operation": "lanes that a mask names do not come: __all_sync(0xffffffff) in line 25 has "
    "threads 0-2, 4-31; __any_sync(0xffffffff) in line 24 has threads 3; returned have "
    "threads 32-63",
    "misaligned": "an access off its alignment in mistakes.cu, line 28, by thread #",
    "shift": "a shift by as many bits as the operand has, or more, in mistakes.cu, line 31, "
    "by thread #",
    "product": "a signed product that overflows in mistakes.cu, line 35, by thread #",
    "sum": "a signed sum that overflows in mistakes.cu, line 38, by thread #",
    "quotient": "a division by zero, or one that overflows, in mistakes.cu, line 41, by thread 9",
    "conversion": "a conversion of a float that the integer cannot hold, in mistakes.cu, line 44, "
    "by thread #",
    "outside": "an index outside its array in mistakes.cu, line 48, by thread #",
    "past_dynamic": "a store past its 196 bytes of dynamic shared memory",
}


@pytest.fixture
def mistakes(build: Build) -> Module:
    return build(MISTAKES, "mistakes", **dict.fromkeys(MESSAGES, "int*, int"))


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("mistake", MESSAGES)
def test_a_mistake_stops_the_launch_with_one_line(mistakes: Module, mistake: str) -> None:
    out = zeros(4 * 64 + 16)
    kernel = mistakes[mistake]
    kernel.launch(2, 64, out, 0, shared_bytes=196)  # nothing to complain of
    with pytest.raises(LaunchFault) as failure:
        kernel.launch(1, 64, out, 1, shared_bytes=196)
    message = str(failure.value)
    beginning = f"mistakes.cu, {mistake}, block (0, 0, 0): "
    assert message.startswith(beginning)
    words = message.removeprefix(beginning).split(" ")
    wanted = MESSAGES[mistake].split(" ")
    assert len(words) == len(wanted), message
    for word, expected in zip(words, wanted, strict=True):
        number = word.rstrip(",").isdigit() and expected.rstrip(",") == "#"
        assert word == expected or number, message
    kernel.launch(2, 64, out, 0, shared_bytes=196)  # and a failure leaves nothing behind


def test_the_block_of_a_mistake_is_named(build: Build) -> None:
    text = (
        "__global__ void k(int* out) { if (blockIdx.y == 2) out[0] = 1 / (int)(3 - blockIdx.z); }"
    )
    with pytest.raises(LaunchFault, match=r"block \(0, 2, 3\): a division by zero"):
        build(text, "where", k="int*")["k"].launch((1, 3, 4), 32, zeros(1))


DEEP = """
__device__ int deep(int levels) {
    volatile char frame[1024];
    frame[levels] = 1;
    return levels ? deep(levels - 1) + frame[levels] : 0;
}
__global__ void k(int* out, int levels) { if (threadIdx.x == 1) out[0] = deep(levels); }
"""


def test_a_stack_that_overflows_is_a_crash_and_no_damage(sources: Path) -> None:
    """Of 60 KiB a thread. In a process of its own."""
    (sources / "deep.cu").write_text(DEEP, encoding="utf-8")
    program = (
        "import sys, torch; from pathlib import Path; from kernels.cuda import Module\n"
        "kernel = Module(Path(sys.argv[1]), {'k': 'int*, int'})['k']\n"
        "kernel.launch(1, 32, torch.zeros(1, dtype=torch.int32), int(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", program, str(sources / "deep.cu")]
    enough, too_many = (
        subprocess.run([*command, levels], cwd=ROOT, capture_output=True) for levels in ("45", "75")
    )
    assert enough.returncode == 0, enough.stderr.decode()
    assert too_many.returncode == -signal.SIGSEGV


def test_a_library_maps_stacks_for_the_threads_that_it_has_run(build: Build) -> None:
    """A system allows a process some 65,000 mappings, and a stack takes two."""
    maps = Path("/proc/self/maps")
    module = build("__global__ void k(int* out) { out[0] = 1; }", "few", k="int*")
    before = len(maps.read_text("utf-8").splitlines())
    module["k"].launch(1, 64, zeros(1))
    assert len(maps.read_text("utf-8").splitlines()) < before + 2 * 64 + 50
