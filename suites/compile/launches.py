"""What a module launches, and how NVIDIA's tools read a cubin."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import triton

from kernels.cuda.toolchain import ToolchainMissing
from suites.compile import machine_code
from suites.compile.architectures import Architecture
from suites.compile.calls import Call, calls
from suites.compile.figures import Figures
from suites.compile.machine_code import Assembly, Cubin
from suites.compile.variants import Variant


@dataclass(frozen=True)
class Launch:
    """A variant, and how to compile it."""

    variant: Variant
    compile: Callable[[], Cubin | Assembly]


def load(module: str) -> ModuleType:
    """A module of kernels, from ``<family>/<name>``."""
    return import_module(f"kernels.{module.replace('/', '.')}")


def called(module: ModuleType) -> Iterator[Call]:
    """Each call that a module has the operation for, after it was made."""
    for call in calls():
        if operation := getattr(module, call.operation, None):
            operation(**call.arguments)
            yield call


def variant(module: str, kernel: str, call: Call, label: str, key: str) -> Variant:
    """``key``: what the machine code depends on, beside the toolchain and the architecture."""
    digest = sha256(key.encode()).hexdigest()[:32]
    return Variant(module, kernel, call.operation, call.dtype, call.rows, label, digest)


def read(codes: Sequence[Cubin | Assembly], architecture: Architecture) -> list[Figures]:
    """The figures of several kernels. NVIDIA's tools come with Triton.

    The disassembler takes long to start, so it gets the code of all at once. Raises
    ToolchainMissing without the tools.
    """
    cubins = [each for each in codes if isinstance(each, Cubin)]
    instructions = [machine_code.code_of(each) for each in cubins]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernels"
        file.write_bytes(b"".join(instructions))
        raw = "-json", "--binary", architecture.instructions, str(file)
        said = said_by("nvdisasm", *raw) if cubins else "[{}, []]"
        opcodes = iter(machine_code.split(said, instructions))
        figures = []
        for each in codes:
            if isinstance(each, Assembly):
                figures.append(machine_code.amd(each, architecture))
            else:
                file.write_bytes(each.content)
                usage = said_by("cuobjdump", "--dump-resource-usage", str(file))
                figures.append(machine_code.nvidia(each, usage, next(opcodes), architecture))
    return figures


@cache
def tool(name: str) -> str:
    """The path of one of NVIDIA's tools in Triton. Raises ToolchainMissing."""
    try:
        return str(getattr(triton.knobs.nvidia, name).path)
    except (AttributeError, RuntimeError) as error:
        raise ToolchainMissing(
            f"this Triton comes without {name}; install the one that PyPI has"
        ) from error


def version(name: str) -> str:
    """The version of one of those tools, ``13.1.80``."""
    *_, last = said_by(name, "--version").split("V")
    return last.split()[0]


def said_by(name: str, *arguments: str) -> str:
    """What one of those tools prints. Raises ToolchainMissing."""
    command = [tool(name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
