"""What a Triton module launches on an architecture, and its machine code.

Triton itself decides which variant a launch is. Its driver is replaced by one that has the device
of our choice, and its compiler by one that takes notes; afterwards the real one gets the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Final
from unittest import mock

import triton
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from suites.compile.architectures import Architecture
from suites.compile.launches import Launch, called, load, variant
from suites.compile.machine_code import Assembly, Cubin
from suites.compile.tools import version

# Triton numbers devices, and notes a launch once a device: each survey has one of its own.
DEVICES: Final = count()


@cache
def toolchain() -> dict[str, str]:
    """Versions of what compiles. Raises ToolchainMissing."""
    assemblers = ["ptxas"]
    if hasattr(triton.knobs.nvidia, "ptxas_blackwell"):  # since 3.5, for sm_100
        assemblers.append("ptxas_blackwell")
    return {"triton": triton.__version__} | {name: version(name) for name in assemblers}


def kernels(module: str) -> frozenset[str]:
    """The kernels that a module defines, or says that its operations launch."""
    loaded = load(module)
    defined = {
        name
        for name, value in vars(loaded).items()
        if isinstance(value, triton.JITFunction)
        and value.fn.__module__ == loaded.__name__
        and name.endswith("_kernel")
    }
    return frozenset(defined.union(getattr(loaded, "KERNELS", {}).values()))


def launches(module: str, architecture: Architecture) -> Iterator[Launch]:
    """Everything that the module launches on an architecture, once."""
    with _noted(architecture) as notes:
        for call in called(load(module)):
            for note in notes:
                key = repr((note.source.hash(), sorted(note.options.items())))
                each = variant(module, note.source.name, call, call.label, key)
                yield Launch(each, partial(_compile, note, architecture))
            notes.clear()


def _compile(note: "_Note", architecture: Architecture) -> Cubin | Assembly:
    compiled = triton.compile(note.source, target=note.target, options=note.options)
    metadata = compiled.metadata
    threads, shared = metadata.num_warps * architecture.warp, metadata.shared
    if architecture.backend == "hip":
        return Assembly(compiled.asm["amdgcn"], threads, shared)
    tensor_memory = getattr(metadata, "tmem_size", None) or 0
    return Cubin(compiled.asm["cubin"], metadata.name, threads, shared, tensor_memory)


@dataclass(frozen=True)
class _Note:
    """What Triton would compile."""

    source: Any
    target: GPUTarget
    options: dict[str, Any]


@contextmanager
def _noted(architecture: Architecture) -> Iterator[list[_Note]]:
    """Launches on this architecture, noted and not carried out."""
    notes: list[_Note] = []

    def note(source: Any, *, target: GPUTarget, options: dict[str, Any], **_: Any) -> "_Noted":
        notes.append(_Note(source, target, options))
        return _Noted()

    driver.set_active(_Device(architecture))
    with mock.patch.object(triton.compiler, "compile", note):
        yield notes


class _Device:
    """A driver whose one device is an architecture."""

    def __init__(self, architecture: Architecture) -> None:
        self._number = next(DEVICES)
        self._target = GPUTarget(architecture.backend, architecture.number, architecture.warp)

    def get_current_device(self) -> int:
        return self._number

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


class _Noted:
    """Stands for a compiled kernel; launching it does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None: ...

    def run(self, *_: Any) -> None: ...
