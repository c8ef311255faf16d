"""What a kernel on the host may touch, and the words for what it must not have done.

A build that is sanitized is compiled as for ThreadSanitizer, and on_host/sanitizer.h takes the
place of its library: every load and every store is held to the tensors of the launch and to the
shared arrays of the source, and to the order that CUDA's barriers make. What was found comes back
as numbers.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from kernels.cuda.toolchain import ToolchainMissing

# Whether launches on the host are watched for races and for accesses out of bounds.
SANITIZE: Final[ContextVar[bool]] = ContextVar("SANITIZE", default=False)

COMPILE: Final = ("-O2", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0")
RED_ZONE: Final = 64  # bytes after each shared array
DYNAMIC: Final = "on_host_dynamic_shared"
KINDS: Final = ("load", "store", "atomic")
NONE, RACE, OUTSIDE, FOREIGN = range(4)


class Region(ctypes.Structure):
    """`on_host::sanitizer::Region`."""

    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("covered", ctypes.c_void_p),
        ("shared", ctypes.c_uint64),
        ("cells", ctypes.c_void_p),
    )


class _Point(ctypes.Structure):
    _fields_ = (
        ("place", ctypes.c_uint64),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint),
        ("kind", ctypes.c_uint),
        ("bytes", ctypes.c_uint),
    )


class Found(ctypes.Structure):
    """`on_host::sanitizer::Found`."""

    _fields_ = (
        ("fault", ctypes.c_uint32),
        ("region", ctypes.c_uint32),
        ("offset", ctypes.c_int64),
        ("first", _Point),
        ("second", _Point),
    )


@dataclass(frozen=True)
class Memory:
    """Bytes that a kernel may touch, and what they are called.

    ``begin``: an address; of shared memory, where it is in that of the whole build. ``covered``:
    whether each byte may be touched, ``[size]`` uint8, None where all may.
    """

    name: str
    begin: int
    size: int
    covered: Any = None
    shared: bool = False

    @property
    def end(self) -> int:
        return self.begin + self.size

    @property
    def region(self) -> Region:
        covered = None if self.covered is None else self.covered.ctypes.data
        return Region(self.begin, self.size, covered, self.shared)

    def __str__(self) -> str:
        return f"{self.name}, of {self.size} bytes"


# --- the memory of a launch ----------------------------------------------------------------------


def tensors(arguments: Sequence[Any], declared: Sequence[str]) -> list[Memory]:
    """The elements of the tensors among the arguments; what overlaps is one."""
    views = [
        Memory(f"argument {place}, {type_}", each.data_ptr(), _extent(each), _covered(each))
        for place, (each, type_) in enumerate(zip(arguments, declared, strict=True))
        if isinstance(each, Tensor) and each.numel()
    ]
    found: list[Memory] = []
    for view in sorted(views, key=lambda view: view.begin):
        if found and view.begin < found[-1].end:
            found.append(_union(found.pop(), view))
        else:
            found.append(view)
    return found


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to past the last."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in sizes)) * tensor.element_size()


def _covered(tensor: Tensor) -> Any:
    if tensor.is_contiguous():
        return None
    covered, width = np.zeros(_extent(tensor), np.uint8), tensor.element_size()
    shape, strides = (*tensor.shape, width), (*(s * width for s in tensor.stride()), 1)
    np.lib.stride_tricks.as_strided(covered, shape, strides)[...] = 1
    return None if covered.all() else covered


def _union(first: Memory, second: Memory) -> Memory:
    begin, end = first.begin, max(first.end, second.end)
    covered = np.zeros(end - begin, np.uint8)
    for each in (first, second):
        covered[each.begin - begin :][: each.size] |= 1 if each.covered is None else each.covered
    name = f"{first.name} and {second.name}"
    return Memory(name, begin, end - begin, None if covered.all() else covered)


# --- what is known of a build --------------------------------------------------------------------


def with_red_zones(assembly: str) -> str:
    """The compiler's output, with bytes that belong to nobody after each shared array."""

    def lines() -> Iterator[str]:
        shared = False
        for line in assembly.splitlines():
            yield line
            words = line.split()
            if words and words[0] in (".section", ".text", ".data", ".bss"):
                shared = len(words) > 1 and words[1].startswith(".tbss")
            elif shared and words and words[0] == ".zero":
                yield f"\t.zero\t{RED_ZONE}"

    return "\n".join(lines()) + "\n"


class Symbols:
    """The shared arrays and the lines of a build at ``path``, whose source is named ``source``."""

    def __init__(self, path: Path, source: str) -> None:
        require_tools()
        self._path = path
        self._source = source
        self._arrays, self._dynamic = self._read()

    def memory(
        self, arguments: Sequence[Any], declared: Sequence[str], shared_bytes: int
    ) -> list[Memory]:
        """All that a launch may touch; the last is for the variables of the file."""
        dynamic = Memory("dynamic shared memory", self._dynamic, shared_bytes, shared=True)
        return [
            *tensors(arguments, declared),
            *self._arrays,
            dynamic,
            Memory("a variable of the file", 0, 0),
        ]

    def _read(self) -> tuple[list[Memory], int]:
        arrays, dynamic = [], 0
        for line in _tool("readelf", "--syms", "--wide", "--demangle", str(self._path)):
            columns = line.split(maxsplit=7)
            if len(columns) < 8 or columns[3] != "TLS":
                continue
            offset, size, name = int(columns[1], 16), int(columns[2], 0), columns[7]
            if size:
                arrays.append(Memory(f"shared {_last(name)}", offset, size, shared=True))
            elif name == DYNAMIC:
                dynamic = offset
        return arrays, dynamic

    # --- the words -------------------------------------------------------------------------------

    def line(self, memory: Sequence[Memory], found: Found) -> str:
        """What was found, in one line."""
        where, first, second = memory[found.region], found.first, found.second
        if found.fault == RACE:
            return (
                f"a race on byte {found.offset} of {where}: "
                f"{self._access(first, second)} and {self._access(second, second)}"
            )
        if found.fault == FOREIGN:
            return f"{self._access(first, first)} reaches local memory of thread {second.thread}"
        between = 0 <= found.offset <= where.size - first.bytes
        return (
            f"{self._access(first, first)} reaches {first.bytes} bytes from byte {found.offset} on "
            f"of {where}{', between its elements' if between else ''}"
        )

    def report(self, found: Found) -> str:
        """The functions that led to each access."""
        points = (found.first, found.second)[: 2 if found.fault == RACE else 1]
        return "\n".join(
            line
            for point in points
            for line in (
                f"{self._access(point, found.first)}:",
                *(f"    {function} ({place})" for function, place in self._stack(point)),
            )
        )

    def _access(self, point: Any, now: Any) -> str:
        block = "" if [*point.block] == [*now.block] else f" of block {(*point.block,)}"
        kind = KINDS[point.kind]
        article = "an" if kind[0] == "a" else "a"
        return f"{article} {kind} in {self._line(point)} by thread {point.thread}{block}"

    def _line(self, point: Any) -> str:
        """The innermost line of the source: what is inlined there may be a header's."""
        for _, place in self._stack(point):
            name, _, number = place.rpartition("/")[2].partition(":")
            if name == self._source:
                return f"{name}, line {number.split()[0]},"
        return f"{self._source},"

    def _stack(self, point: Any) -> list[tuple[str, str]]:
        """Functions, the innermost first, and where in them; of what was inlined."""
        call = f"{point.place - 1:#x}"  # what is known is where it returns to
        lines = _tool("addr2line", "-e", str(self._path), "-i", "-f", "-C", call)
        return list(zip(lines[::2], lines[1::2], strict=False))


def _last(name: str) -> str:
    """Of ``sum(int)::partial``, ``partial``."""
    return re.sub(r"\[abi:.*", "", name.rpartition("::")[2])


def _tool(name: str, *arguments: str) -> list[str]:
    command = [_path_of(name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def require_tools() -> None:
    """Raises ToolchainMissing."""
    for name in ("readelf", "addr2line"):
        _path_of(name)


def _path_of(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolchainMissing(
            f"to watch a kernel's accesses takes {name}, and there is none on the PATH; "
            "install binutils, which g++ needs as well"
        )
    return path
