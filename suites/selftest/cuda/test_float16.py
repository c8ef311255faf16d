"""Floats of 16 bits against torch: conversions, rounding, arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.cuda import Module
from suites.selftest.cuda.programs import Build, zeros

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
