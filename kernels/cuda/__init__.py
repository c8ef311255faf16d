"""CUDA C++ kernels: .cu files that run on every machine.

On CUDA tensors a kernel is compiled by NVRTC for the GPU at hand; on CPU tensors the same file,
compiled by g++ through on_host.h, runs on the host. ``SANITIZE`` makes launches there stop at races
and at accesses out of bounds, too.
"""

from kernels.cuda.host import scheduled
from kernels.cuda.module import Kernel, Module
from kernels.cuda.sanitizer import SANITIZE
from kernels.cuda.toolchain import BuildError, LaunchFault, ToolchainMissing

__all__ = [
    "SANITIZE",
    "BuildError",
    "Kernel",
    "LaunchFault",
    "Module",
    "ToolchainMissing",
    "scheduled",
]
