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
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

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
        arguments: Sequence[Any],
    ) -> None:
        """Run a kernel to its end. Raises LaunchFault."""
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        launch = _Launch(grid, block, shared_bytes, _SEED.get(), ctypes.addressof(pointers))
        self._launch(kernel, launch)
        if launch.failure:
            raise LaunchFault(f"{self._names[kernel]}, {launch.failure.decode()}")


def build(source: Path, kernels: Mapping[str, str]) -> Library:
    """Compile a source, or find it compiled. ``kernels``: from C++ expressions to parameter types.

    Raises ToolchainMissing without g++, and BuildError when it refuses the source.
    """
    gcc, version = compiler()
    text = text_of(source)
    entry = _entry(source.name, text, kernels)
    parts = [version, *COMPILE, *LINK, text, entry, *(h.read_text("utf-8") for h in HEADERS)]
    key = sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = cache_folder() / f"{source.stem}-{key}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            os.replace(_compile(gcc, source, entry, Path(folder)), path)
    return Library(source, kernels, path)


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
    for number, (expression, parameters) in enumerate(kernels.items()):
        lines.append(f"constexpr void (*kernel_{number})({parameters}) = {expression};")
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


def _compile(gcc: str, source: Path, entry: str, folder: Path) -> Path:
    unit, compiled, library = folder / "entry.cpp", folder / "entry.o", folder / "library.so"
    unit.write_text(entry, encoding="utf-8")
    found = [f"-I{place}" for place in (source.resolve().parent, HERE, HERE / "on_host")]
    commands = (
        [gcc, *COMPILE, *found, "-c", str(unit), "-o", str(compiled)],
        [gcc, *LINK, str(compiled), "-o", str(library)],
    )
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            said = ran.stderr.replace(f"{source.resolve().parent}/", "")
            errors = [line for line in said.splitlines() if "error:" in line or "undefined" in line]
            first = " ".join((errors or [said])[0].split())
            raise BuildError(f"{source.name}: g++ refuses it: {first}") from RuntimeError(said)
    return library
