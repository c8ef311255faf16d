"""Kernels that are bad on purpose: each fails the bound that is there for it, and its twin passes.

They are compiled and read as the tier does it, NVIDIA's by NVRTC and AMD's by Triton.
"""

import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import msgspec
import pytest

from kernels.cuda import device
from kernels.cuda.toolchain import ToolchainMissing
from suites.compile import cuda_launches, tools
from suites.compile.architectures import ARCHITECTURES
from suites.compile.compiler import Compiled
from suites.compile.figures import Figures
from suites.compile.machine_code import Cubin
from suites.compile.variants import Variant
from suites.selftest.whole_runs import ROOT

SERVE: Final = "scatter_topology_witnesses_"


@pytest.fixture
def bounds(pytestconfig: pytest.Config) -> ModuleType:
    """The bounds, which use a marker that pytest knows where the tier runs."""
    pytestconfig.addinivalue_line("markers", "about(predicate): the variants of a bound")
    return import_module("suites.compile.test_bounds")


def compiled(architecture: str, operation: str = SERVE, dtype: str = "int32") -> Compiled:
    variant = Variant("family/planted", "kernel", operation, dtype, "aligned", "planted", "key")
    return Compiled(variant, architecture)


# --- NVIDIA --------------------------------------------------------------------------------------

MANY: Final = """
__global__ void __launch_bounds__(THREADS) kernel(float* values) {
    float kept[128];
    for (int i = 0; i < 128; ++i) kept[i] = values[i * THREADS + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 128; ++i) values[i * THREADS + threadIdx.x] = kept[127 - i];
}
"""
LOADS: Final = """
__global__ void kernel(TYPE* row, int* sum) {
    TYPE entry = row[threadIdx.x];
    atomicAdd(sum, SUM);
}
"""
STORES: Final = """
__global__ void kernel(int* row, int bound) {
    const int entry = row[threadIdx.x];
    BEFORE
    __syncthreads();
    row[entry] = bound;
}
"""
SHARED: Final = "__global__ void kernel(int* row) { row[threadIdx.x] = 0; }"


@cache
def planted(
    architecture: str, text: str, parameters: str, threads: int = 128, shared: int = 0
) -> Figures:
    """A kernel of CUDA C++, compiled and read."""
    try:
        cuda_launches.toolchain()
        with TemporaryDirectory() as folder:
            source = Path(folder) / "planted.cu"
            source.write_text(text, encoding="utf-8")
            made = device.compile_for(architecture, source, {"kernel": parameters})
        cubin = Cubin(made.code, made.symbol_mapping["kernel"].decode(), threads, shared)
        (figures,) = tools.read([cubin], ARCHITECTURES[architecture])
    except ToolchainMissing as error:
        pytest.skip(str(error))
    return figures


def fails(bound: Any, compiled: Compiled, bad: Figures, good: Figures) -> None:
    bound(compiled, good)
    with pytest.raises(AssertionError):
        bound(compiled, bad)


nvidia = pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])


@nvidia
def test_a_kernel_that_spills(bounds: ModuleType, architecture: str) -> None:
    """A thread of 1024 may have 64 registers, and one of 128 has enough for 128 values."""
    bad, good = (
        planted(architecture, MANY.replace("THREADS", threads), "float*", int(threads))
        for threads in ("1024", "128")
    )
    assert bad.registers <= 64 < good.registers
    assert bad.spill_stores > 0
    assert bad.spill_loads > 0
    fails(bounds.test_nothing_spills, compiled(architecture), bad, good)


@nvidia
def test_a_kernel_whose_block_does_not_fit(bounds: ModuleType, architecture: str) -> None:
    bad, good = (
        planted(architecture, SHARED, "int*", shared=shared) for shared in (230 * 1024, 4096)
    )
    fails(bounds.test_a_block_fits, compiled(architecture), bad, good)


@nvidia
def test_a_kernel_that_loads_one_entry_at_a_time(bounds: ModuleType, architecture: str) -> None:
    scalar, vector = (
        planted(
            architecture,
            LOADS.replace("TYPE", kind).replace("SUM", total),
            f"{kind}*, int*",
        )
        for kind, total in (
            ("int", "entry"),
            ("int4", "entry.x + entry.y + entry.z + entry.w"),
        )
    )
    assert (scalar.widest_load, vector.widest_load) == (32, 128)
    bound = bounds.test_aligned_rows_are_loaded_128_bits_at_a_time
    fails(bound, compiled(architecture), scalar, vector)


@nvidia
@pytest.mark.parametrize(
    "operation", [SERVE, "topology_witness_indices", "apply_topology_witnesses"]
)
def test_a_kernel_with_a_barrier_between_two_stores(
    bounds: ModuleType, architecture: str, operation: str
) -> None:
    """Of a merge, slots are stored before a barrier too: there a second one is too many."""
    store = "row[threadIdx.x + 1024] = entry;"
    twice = f"{store} __syncthreads(); row[entry + 1] = entry;"
    merges = operation == "apply_topology_witnesses"
    bad, good = (
        planted(architecture, STORES.replace("BEFORE", before), "int*, int")
        for before in ((twice, store) if merges else (store, ""))
    )
    assert good.order == ("LSBS" if merges else "LBS")
    bound = bounds.test_no_barrier_stands_between_the_stores_of_a_slot
    fails(bound, compiled(architecture, operation), bad, good)


# --- AMD -----------------------------------------------------------------------------------------

TRITON: Final = """
import sys

from suites.compile import worker

worker.prepare(sys.argv[1])

import msgspec
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from suites.compile import tools
from suites.compile.architectures import ARCHITECTURES
from suites.compile.machine_code import Assembly


@triton.jit
def plain_kernel(row, out, N: tl.constexpr):
    at = tl.arange(0, N)
    entry = tl.load(row + at)
    tl.debug_barrier()
    tl.store(out + at, entry)


@triton.jit
def barrier_kernel(row, out, N: tl.constexpr):
    at = tl.arange(0, N)
    entry = tl.load(row + at)
    tl.store(out + at, entry)
    tl.debug_barrier()
    tl.store(out + N + at, entry)


def figures(kernel, entries, divisible=True):
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(2)} if divisible else {}
    types = {"row": "*i32", "out": "*i32", "N": "constexpr"}
    source = ASTSource(kernel, types, {(2,): entries}, attributes)
    made = triton.compile(source, target=GPUTarget("hip", "gfx942", 64), options={"num_warps": 2})
    assembly = Assembly(made.asm["amdgcn"], 128, made.metadata.shared)
    (found,) = tools.read([assembly], ARCHITECTURES["gfx942"])
    return found


found = {
    "plain": figures(plain_kernel, 1024),
    "scalar": figures(plain_kernel, 1024, divisible=False),
    "barrier": figures(barrier_kernel, 1024),
    "many": figures(plain_kernel, 1024 * 128),  # 1024 entries a thread, which has 512 registers
}
sys.stdout.buffer.write(msgspec.json.encode(found))
"""


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figures]:
    """The figures of the kernels above, from a process in which Triton does not interpret."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.py").write_text(TRITON, encoding="utf-8")
    command = [sys.executable, str(folder / "planted.py"), str(folder / "cache")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    return msgspec.json.decode(run.stdout, type=dict[str, Figures])


@pytest.mark.parametrize(
    ("bound", "bad", "good"),
    [
        ("test_nothing_spills", "many", "plain"),
        ("test_aligned_rows_are_loaded_128_bits_at_a_time", "scalar", "plain"),
        ("test_no_barrier_stands_between_the_stores_of_a_slot", "barrier", "plain"),
    ],
)
def test_kernels_for_amd(
    bounds: ModuleType, amd: dict[str, Figures], bound: str, bad: str, good: str
) -> None:
    fails(getattr(bounds, bound), compiled("gfx942"), amd[bad], amd[good])
