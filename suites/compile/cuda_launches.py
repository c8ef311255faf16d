"""What a module of CUDA C++ launches, and its machine code: one variant a kernel and block."""

from collections.abc import Iterator
from functools import cache, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from math import prod
from types import ModuleType
from typing import Any
from unittest import mock

from kernels.cuda import Kernel, Module, device
from kernels.cuda.toolchain import text_of
from suites.compile.architectures import Architecture
from suites.compile.launches import Launch, called, load, variant
from suites.compile.machine_code import Cubin
from suites.compile.variants import Variant


@cache
def toolchain() -> dict[str, str]:
    """The version of NVRTC. Raises ToolchainMissing."""
    library = device.nvrtc()
    try:
        return {"nvrtc": version_of("nvidia-cuda-nvrtc")}
    except PackageNotFoundError:
        return {"nvrtc": library}


def kernels(module: str) -> frozenset[str]:
    """The kernels that a module has."""
    return frozenset(name for each in _modules(load(module)) for name in each.kernels)


def launches(module: str, architecture: Architecture) -> Iterator[Launch]:
    """Everything that the module launches, once."""
    toolchain()
    if architecture.backend != "cuda":
        return
    found: dict[str, tuple[Variant, Kernel, int, int]] = {}
    made: list[tuple[Kernel, int, int]] = []

    def note(kernel: Kernel, _grid: Any, block: Any, *_: Any, shared_bytes: int = 0) -> None:
        made.append((kernel, _threads(block), shared_bytes))

    with mock.patch.object(Kernel, "launch", note):
        for call in called(load(module)):
            for kernel, threads, shared in made:
                label = f"{threads}-threads" + (f"-{shared}-bytes" if shared else "")
                source = kernel.module
                text, declared = text_of(source.source), source.declarations
                key = repr((text, declared, kernel.name, threads, shared))
                each = variant(module, kernel.name, call, label, key)
                found.setdefault(each.name, (each, kernel, threads, shared))
            made.clear()
    for each, kernel, threads, shared in found.values():
        yield Launch(each, partial(_compile, kernel, architecture, threads, shared))


def _compile(kernel: Kernel, architecture: Architecture, threads: int, shared: int) -> Cubin:
    """All kernels of a source are compiled at once, and no source twice."""
    source = kernel.module
    compiled = device.compile_for(architecture.name, source.source, source.declarations)
    symbol = compiled.symbol_mapping[kernel.name].decode()
    return Cubin(compiled.code, symbol, threads, shared)


def _modules(module: ModuleType) -> list[Module]:
    return [each for each in vars(module).values() if isinstance(each, Module)]


def _threads(block: int | tuple[int, ...]) -> int:
    return block if isinstance(block, int) else prod(block)
