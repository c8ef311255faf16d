"""CUDA C++ on this machine's processor: g++ and the header of this package, called with ctypes."""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from kernels.cuda import parameters, sanitizer
from kernels.cuda.toolchain import (
    BuildError,
    LaunchFault,
    ToolchainMissing,
    cache_folder,
    text_of,
)

HERE: Final = Path(__file__).parent
# In what order threads and blocks get their turn: 0 is the order of their numbers, every other
# number an order of its own.
_SEED: Final[ContextVar[int]] = ContextVar("_SEED", default=0)

HEADERS: Final = (HERE / "on_host.h", *sorted((HERE / "on_host").glob("*.h")))
RED_ZONES: Final = HERE / "sanitizer.py"  # which changes what the compiler makes
LANGUAGE: Final = "c++20"  # as for a GPU

# Undefined behaviour stops a launch: on_host/undefined.h has what the compiler calls then.
UNDEFINED: Final = (
    "alignment,shift,signed-integer-overflow,integer-divide-by-zero,float-cast-overflow,bounds"
)
COMPILE: Final = (
    f"-std={LANGUAGE}",
    "-O1",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",  # or two builds with a variable of one name might share it
    "-fno-strict-aliasing",  # a vector load reads through a cast pointer
    "-ffp-contract=off",
    "-fno-extern-tls-init",  # shared memory has no constructors
    f"-fsanitize={UNDEFINED}",
    "-fno-sanitize-recover=all",
    "-Wno-unknown-pragmas",
)
# Without -fsanitize, or it would bring the library whose functions undefined.h replaces.
LINK: Final = ("-shared", "-Wl,-z,defs", "-pthread")

DYNAMIC: Final = re.compile(r"\bextern\s[^;{}]*\b__shared__\s[^;{}]*?\b(\w+)\s*\[\s*\]\s*;")


@contextmanager
def scheduled(seed: int) -> Iterator[None]:
    """Launches inside, on the host, give threads and blocks their turns in the order of a seed.

    Within another such block the order is that of both seeds; without any, that of the numbers.
    """
    token = _SEED.set(_SEED.get() ^ seed)
    try:
        yield
    finally:
        _SEED.reset(token)


class _Launch(ctypes.Structure):
    """`on_host::Launch`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("arguments", ctypes.c_void_p),
        ("regions", ctypes.c_void_p),
        ("region_count", ctypes.c_uint64),
        ("found", ctypes.c_void_p),
        ("failure", ctypes.c_char * 1024),
    )


class Library:
    """The kernels of one source, built for the host."""

    def __init__(self, source: Path, kernels: Mapping[str, str], path: Path) -> None:
        self._names = [f"{source.name}, {name}" for name in kernels]
        self._launch = ctypes.CDLL(str(path)).on_host_launch
        self._launch.argtypes = (ctypes.c_int, ctypes.POINTER(_Launch))
        self._launch.restype = None

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        values: Sequence[Any],
        arguments: Sequence[Any],
    ) -> None:
        """Run a kernel to its end. Raises LaunchFault."""
        self._run(kernel, _Launch(grid, block, shared_bytes, _SEED.get()), values)

    def _run(self, kernel: int, launch: _Launch, values: Sequence[Any]) -> None:
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        launch.arguments = ctypes.addressof(pointers)
        self._launch(kernel, launch)
        if launch.failure:
            raise LaunchFault(f"{self._names[kernel]}, {launch.failure.decode()}")


class SanitizedLibrary(Library):
    """The same, sanitized: races and accesses out of bounds are faults as well."""

    def __init__(self, source: Path, kernels: Mapping[str, str], path: Path) -> None:
        super().__init__(source, kernels, path)
        self._symbols = sanitizer.Symbols(path, source.name)
        self._declared = [
            [parameter.declared for parameter in parameters.parse(declaration)]
            for declaration in kernels.values()
        ]

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        values: Sequence[Any],
        arguments: Sequence[Any],
    ) -> None:
        memory = self._symbols.memory(arguments, self._declared[kernel], shared_bytes)
        regions = (sanitizer.Region * len(memory))(*(each.region for each in memory))
        found = sanitizer.Found()
        launch = _Launch(grid, block, shared_bytes, _SEED.get())
        launch.regions, launch.region_count = ctypes.addressof(regions), len(regions)
        launch.found = ctypes.addressof(found)
        try:
            self._run(kernel, launch, values)
        except LaunchFault as fault:
            if found.fault == sanitizer.NONE:
                raise
            beginning = str(fault).rpartition(": ")[0]
            line = self._symbols.line(memory, found)
            report = RuntimeError(self._symbols.report(found))
            raise LaunchFault(f"{beginning}: {line}") from report


def build(source: Path, kernels: Mapping[str, str], *, sanitized: bool = False) -> Library:
    """Compile a source, or find it compiled. ``kernels``: from C++ expressions to parameter types.

    ``sanitized``: every load and store of a kernel is to be watched. Raises ToolchainMissing
    without g++, or then without binutils, and BuildError when it refuses the source.
    """
    gcc, version = compiler()
    text = text_of(source)
    entry = _entry(source.name, text, kernels)
    flags = (*COMPILE, *sanitizer.COMPILE) if sanitized else COMPILE
    parts = [
        version,
        *flags,
        *LINK,
        text,
        entry,
        *(f.read_text("utf-8") for f in (*HEADERS, RED_ZONES)),
    ]
    key = sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = cache_folder() / f"{source.stem}-{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = _compile([gcc, *flags], source, entry, Path(folder), sanitized)
            os.replace(made, path)
    return (SanitizedLibrary if sanitized else Library)(source, kernels, path)


@cache
def compiler() -> tuple[str, str]:
    """Where g++ is, and what it says its version is. Raises ToolchainMissing."""
    found = shutil.which("g++")
    if found is None:
        raise ToolchainMissing(
            "CUDA C++ on the host needs g++ 11 or newer, and there is none on the PATH; install it"
        )
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    return found, shown.stdout


def _entry(name: str, text: str, kernels: Mapping[str, str]) -> str:
    """The C++ that a launch calls: every kernel by its number, and the dynamic shared memory."""
    arrays = ("on_host_dynamic_shared", *sorted(set(DYNAMIC.findall(text))))
    lines = [
        '#include "on_host.h"',
        f'#include "{name}"',
        'asm(R"(.pushsection .tbss, "awT", %nobits',
        ".balign 128",
        *(f".globl {array}\n.hidden {array}\n{array}:" for array in arrays),
        '.zero )" ON_HOST_SHARED_AND_RED_ZONE R"(',
        '.popsection)");',
    ]
    for number, (expression, declaration) in enumerate(kernels.items()):
        lines.append(f"constexpr void (*kernel_{number})({declaration}) = {expression};")
    lines += [
        'extern "C" [[gnu::visibility("default")]]',
        "void on_host_launch(int kernel, on_host::Launch* launch) {",
        "    switch (kernel) {",
        *(
            f"        case {number}: return on_host::run<kernel_{number}>(*launch);"
            for number in range(len(kernels))
        ),
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _compile(
    compile_: Sequence[str], source: Path, entry: str, folder: Path, sanitized: bool
) -> Path:
    unit, assembly, compiled, library = (
        folder / name for name in ("entry.cpp", "entry.s", "entry.o", "library.so")
    )
    unit.write_text(entry, encoding="utf-8")
    found = [f"-I{place}" for place in (source.resolve().parent, HERE, HERE / "on_host")]
    run = partial(_run, source)
    run(*compile_, *found, "-S", str(unit), "-o", str(assembly))
    if sanitized:
        text = sanitizer.with_red_zones(assembly.read_text("utf-8"))
        assembly.write_text(text, encoding="utf-8")
    run(compile_[0], "-c", str(assembly), "-o", str(compiled))
    run(compile_[0], *LINK, str(compiled), "-o", str(library))
    return library


def _run(source: Path, *command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = ran.stderr.replace(f"{source.resolve().parent}/", "")
        errors = [line for line in said.splitlines() if "error:" in line or "undefined" in line]
        first = " ".join((errors or [said])[0].split())
        raise BuildError(f"{source.name}: g++ refuses it: {first}") from RuntimeError(said)
