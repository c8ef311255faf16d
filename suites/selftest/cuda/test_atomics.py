"""Atomic operations, whatever the order of those who do them."""

import pytest
import torch

from kernels.cuda import Module
from suites.selftest.cuda.programs import VALUES, Build, zeros

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
