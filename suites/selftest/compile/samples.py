"""Figures that nothing was compiled for."""

import msgspec

from suites.compile.compiler import Compiled
from suites.compile.figures import CompiledFile, Figures
from suites.compile.variants import Variant

SMALL = Figures(threads=128, registers=32, code=1024, occupancy=1.0)
WIDE = msgspec.structs.replace(SMALL, widest_load=128, tensor_cores={"HMMA": 4})
TOOLS = {"triton": "1.2.3", "ptxas": "4.5.6"}


def made(*, toolchain: dict[str, str] = TOOLS, **variants: dict[str, Figures]) -> CompiledFile:
    return CompiledFile(toolchain, variants)


def compiled(kernel: str, label: str, architecture: str) -> Compiled:
    dtype, rows = label.split("-")[:2]
    return Compiled(Variant("f/m", kernel, "operation", dtype, rows, label, "key"), architecture)
