"""How CUDA C++ kernels are built and launched, and what the built-in ones promise.

The latter beyond the suite's cases, whatever the order of their threads. That they become machine
code is tested where NVRTC is installed; no GPU is needed for it.
"""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cuda import BuildError, Module, ToolchainMissing, device, host, scheduled
from kernels.witness import cuda_fused
from oracles import witness
from suites.selftest.cuda.programs import Build
from suites.selftest.plain import Plain

# --- launching -----------------------------------------------------------------------------------

ARGUMENTS = """
__global__ void arguments(
    const float* a, long long* out, bool b, int i, unsigned u, long long l, unsigned long long ul,
    float f, double d) {
    out[0] = b, out[1] = i, out[2] = u, out[3] = l, out[4] = ul, out[5] = f * 4, out[6] = d * 4;
    out[7] = a[0];
}
"""
TYPES = (
    "const float*, long long*, bool, int, unsigned, long long, unsigned long long, float, double"
)
GOOD = (
    *(torch.tensor([2.0]), torch.zeros(8, dtype=torch.int64), True, -(2**31)),
    *(2**32 - 1, -(2**63), 2**63 - 1, 0.75, 1),
)


@pytest.fixture
def arguments(build: Build) -> Module:
    return build(ARGUMENTS, "arguments", arguments=TYPES)


def test_arguments_arrive(arguments: Module) -> None:
    arguments["arguments"].launch(1, 1, *GOOD)
    out = GOOD[1]
    assert isinstance(out, Tensor)
    assert out.tolist() == [1, -(2**31), 2**32 - 1, -(2**63), 2**63 - 1, 3, 4, 2]


@pytest.mark.parametrize(
    ("place", "argument", "error", "message"),
    [
        (0, torch.zeros(1, dtype=torch.float16), TypeError, "takes a tensor of torch.float32, not"),
        (0, 5, TypeError, "argument 0: const float* takes a tensor of torch.float32, not int"),
        (3, 2**31, ValueError, "argument 3: int cannot hold 2147483648"),
        (4, -1, ValueError, "unsigned cannot hold -1"),
        (5, 2**63, ValueError, "long long cannot hold"),
        (5, 1.0, TypeError, "long long takes a number, not float"),
        (7, torch.zeros(1, dtype=torch.int32), TypeError, "float takes a number, not Tensor"),
        (0, torch.zeros(1, device="meta"), ValueError, "must be on one device"),
    ],
)
def test_arguments_that_are_refused(
    arguments: Module, place: int, argument: Any, error: type[Exception], message: str
) -> None:
    given = [*GOOD[:place], argument, *GOOD[place + 1 :]]
    with pytest.raises(error) as refusal:
        arguments["arguments"].launch(1, 1, *given)
    assert str(refusal.value).startswith("arguments.cu, arguments: ")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_number_of_arguments_is_checked(arguments: Module) -> None:
    with pytest.raises(TypeError, match="8 arguments for"):
        arguments["arguments"].launch(1, 1, *GOOD[:-1])


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 32, "a grid of (0, 1, 1) blocks"),
        ((1, 2**16), 32, "a grid of (1, 65536, 1) blocks"),
        (1, 0, "a block of (0, 1, 1) threads"),
        (1, (32, 33), "a block of (32, 33, 1) threads"),
        (1, (1, 1, 65), "a block of (1, 1, 65) threads"),
    ],
)
def test_shapes_that_are_refused(arguments: Module, grid: Any, block: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"arguments\.cu, arguments: ") as refusal:
        arguments["arguments"].launch(grid, block, *GOOD)
    assert message in str(refusal.value)


@pytest.mark.parametrize("size", [-1, 227 * 1024 + 1])
def test_more_shared_memory_than_any_gpu_has_is_refused(arguments: Module, size: int) -> None:
    with pytest.raises(ValueError, match=f"arguments: shared_bytes is {size}"):
        arguments["arguments"].launch(1, 1, *GOOD, shared_bytes=size)


@pytest.mark.parametrize("declaration", ["int *x", "size_t", "const char*", "float&", ""])
def test_types_that_cannot_be_passed_are_refused(build: Build, declaration: str) -> None:
    with pytest.raises(ValueError, match="cannot be passed to a kernel"):
        build(ARGUMENTS, "types", arguments=declaration)


# --- building ------------------------------------------------------------------------------------

TINY = "__global__ void tiny(int* out) { out[0] = 1; }\n"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sparse-conformance" / "cuda"


def test_a_source_is_built_once_for_its_text(build: Build, empty_cache: Path) -> None:
    def built(text: str) -> int:
        out = torch.zeros(1, dtype=torch.int32)
        build(text, "tiny", tiny="int*")["tiny"].launch(1, 1, out)
        return int(out.item())

    assert built(TINY) == 1
    (library,) = empty_cache.iterdir()
    before = library.stat()
    assert built(TINY) == 1
    assert [*empty_cache.iterdir()] == [library]
    assert (library.stat().st_ino, library.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    assert built(TINY.replace("1", "2")) == 2
    assert len([*empty_cache.iterdir()]) == 2


@pytest.mark.usefixtures("empty_cache")
def test_what_acompiler_refuses_is_named(build: Build) -> None:
    module = build(TINY.replace("1", "one"), "broken", tiny="int*")
    with pytest.raises(
        BuildError, match=r"^broken\.cu: g\+\+ refuses it: broken\.cu:1:.*error.*one"
    ):
        module["tiny"].launch(1, 1, torch.zeros(1, dtype=torch.int32))


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("declared", ["const int*", "int*, int", "float*"])
def test_thecompiler_holds_the_declaration_to_the_kernel(build: Build, declared: str) -> None:
    with pytest.raises(BuildError, match="declared"):
        build(TINY, "declared", tiny=declared).built_for(torch.device("cpu"))


def test_a_source_stands_alone(build: Build) -> None:
    text = '#include <cuda_fp16.h>\n# include "tiles.cuh"\n' + TINY
    source = build(text, "tiled", tiny="int*").source
    for compile_ in (host.build, lambda *given: device.compile_for("sm_90", *given)):
        with pytest.raises(BuildError, match=r'^tiled\.cu: it includes "tiles\.cuh", whose'):
            compile_(source, {"tiny": "int*"})


def test_without_a_compiler_the_message_says_what_to_install(
    build: Build, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(empty_cache))
    host.compiler.cache_clear()
    try:
        with pytest.raises(ToolchainMissing, match=r"needs g\+\+ .* install it"):
            build(TINY, "tiny", tiny="int*")["tiny"].launch(1, 1, torch.zeros(1, dtype=torch.int32))
    finally:
        host.compiler.cache_clear()


def test_without_cuda_core_the_message_says_what_to_install(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ToolchainMissing, match=r"needs cuda-core: .*; install cuda-core, "):
        device.compile_for("sm_90", build(TINY, "tiny", tiny="int*").source, {"tiny": "int*"})


# --- the witness kernels -------------------------------------------------------------------------

# Around the width of a block, of its 128-bit loads, and of a warp.
TOPKS = [0, 1, 3, 4, 31, 127, 128, 129, 511, 512, 513, 2048]
# Elements from a 16-byte boundary to the first slot, slots to the next row and to the next slot.
LAYOUTS = {
    "contiguous": (0, 0, 1),
    "off by one": (1, 0, 1),
    "off by three": (3, 0, 1),
    "padded": (0, 3, 1),
    "every second": (0, 0, 2),
}


@pytest.fixture(params=[0, 1, 2])
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    with scheduled(request.param):
        yield request.param


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The values in memory that holds 7 wherever they are not."""
    start, gap, step = LAYOUTS[layout]
    rows, topk = values.shape
    width = topk * step + gap
    memory = torch.full((rows * width + start + 4,), 7, dtype=values.dtype)
    view = memory.as_strided((rows, topk), (width, step), start + (-memory.data_ptr() // 4) % 4)
    view.copy_(values)
    return view


def plain(tensor: Tensor) -> Plain:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Plain(dtype, tuple(tensor.shape), tuple(tensor.flatten().tolist()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topk", TOPKS)
def test_every_way_through_a_row(seed: int, topk: int, layout: str) -> None:
    """Head, quads and tail of a row; copies of four slots, of one, and of those held back."""
    generator = torch.Generator().manual_seed(1000 * seed + topk)
    length = 40 + 3 * topk
    values = torch.randint(0, length + length // 8, (3, topk), generator=generator).to(torch.int32)
    values[0] = values[0].where(torch.rand(topk, generator=generator) < 0.05, -1)
    lengths = torch.tensor([length, length // 2, 2**31 - 1])
    learned, p = laid_out(values, layout), plain(values)
    surroundings = learned.untyped_storage().nbytes()

    for segments in (1, 33, 64):
        got = cuda_fused.topology_witness_indices(lengths, learned, segments)
        assert got.tolist() == witness.topology_witness_indices(plain(lengths), p, segments)
        for keep, most in ((0, 64), (topk // 2, 5), (max(topk - 70, 0), 64), (topk, 9)):
            merged = cuda_fused.apply_topology_witnesses(learned, lengths, keep, segments, most)
            wanted = witness.apply_topology_witnesses(p, plain(lengths), keep, segments, most)
            assert merged.tolist() == wanted
        served = laid_out(values, layout)
        cuda_fused.scatter_topology_witnesses_(served, lengths, segments)
        assert served.tolist() == witness.scatter_topology_witnesses_(p, plain(lengths), segments)
        around = torch.empty(0, dtype=torch.int32).set_(served.untyped_storage())
        served.fill_(7)
        assert around.eq(7).all()
        assert around.nbytes == surroundings


@pytest.mark.parametrize("segments", [65, 128, 200])
def test_a_block_for_each_64_segments(seed: int, segments: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    learned = torch.randint(-1, 5000, (4, 300), generator=generator).to(torch.int32)
    lengths = torch.tensor([4000, 150, 64, 0], dtype=torch.int32)
    got = cuda_fused.topology_witness_indices(lengths, learned, segments)
    wanted = witness.topology_witness_indices(plain(lengths), plain(learned), segments)
    assert got.tolist() == wanted


def test_the_wrapper_and_the_kernels_agree_on_their_constants() -> None:
    text = cuda_fused.MODULE.source.read_text(encoding="utf-8")
    assert f"constexpr int kThreads = {cuda_fused.THREADS};" in text
    assert f"constexpr int kBits = {cuda_fused.BITS};" in text


needs_nvrtc = pytest.mark.skipif(
    not find_spec("cuda") or not find_spec("cuda.core"),
    reason="no cuda-core here; install cuda-core, cuda-bindings and nvidia-cuda-nvrtc",
)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_every_kernel_compiles(architecture: str) -> None:
    module = cuda_fused.MODULE
    compiled = device.compile_for(architecture, module.source, module.declarations)
    assert compiled.code[:4] == b"\x7fELF"
    assert set(compiled.symbol_mapping) == set(module.kernels)
    names = b"".join(compiled.symbol_mapping.values())
    assert all(kernel.split("<")[0].encode() in names for kernel in module.kernels)


@needs_nvrtc
def test_what_nvrtc_refuses_is_named(build: Build) -> None:
    source = build(TINY.replace("1", "one"), "broken", tiny="int*").source
    message = r'^broken\.cu: NVRTC refuses it: broken\.cu\(1\): error: .*"one"'
    with pytest.raises(BuildError, match=message):
        device.compile_for("sm_90", source, {"tiny": "int*"})


@needs_nvrtc
@pytest.mark.parametrize("declared", ["const int*", "int*, int", "float*"])
def test_nvrtc_too_holds_the_declaration_to_the_kernel(build: Build, declared: str) -> None:
    source = build(TINY, "declared", tiny="int*").source
    device.compile_for("sm_90", source, {"tiny": "int*"})
    with pytest.raises(BuildError, match="invalid type conversion"):
        device.compile_for("sm_90", source, {"tiny": declared})


@needs_nvrtc
def test_floats_of_16_bits_compile(build: Build) -> None:
    """With CUDA's own headers, wherever they are, or a word on where to get them."""
    text = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    template <class T> __global__ void narrow(const float* in, T* out) { out[0] = T(in[0]); }
    """
    kernels = {f"narrow<{t}>": f"const float*, {t}*" for t in ("__half", "__nv_bfloat16")}
    try:
        compiled = device.compile_for("sm_90", build(text, "narrow", **kernels).source, kernels)
    except ToolchainMissing as missing:
        assert "install nvidia-cuda-runtime" in str(missing)  # noqa: PT017 - the other way
    else:
        assert set(compiled.symbol_mapping) == set(kernels)
