"""Bits, vectors and the arithmetic of numbers."""

from itertools import chain

import pytest
import torch

from kernels.cuda import Module
from suites.selftest.cuda.programs import Build, zeros

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
