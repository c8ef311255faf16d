"""NVIDIA's tools, which come with Triton, and how they read machine code."""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import triton

from kernels.cuda.toolchain import ToolchainMissing
from suites.compile import machine_code
from suites.compile.architectures import Architecture
from suites.compile.figures import Figures
from suites.compile.machine_code import Assembly, Cubin


def read(codes: Sequence[Cubin | Assembly], architecture: Architecture) -> list[Figures]:
    """The figures of several kernels. Raises ToolchainMissing without the tools.

    The disassembler takes long to start, so it gets the code of all at once.
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


def require() -> None:
    """Raises ToolchainMissing without the tools that read machine code."""
    for name in ("nvdisasm", "cuobjdump"):
        tool(name)


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
