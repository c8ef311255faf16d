"""CUDA C++ kernels: .cu files that run on every machine.

On CUDA tensors a kernel is compiled by NVRTC for the GPU at hand; on CPU tensors the same file,
compiled by g++ through on_host.h, runs on the host.
"""

from kernels.cuda.host import scheduled
from kernels.cuda.module import Kernel, Module
from kernels.cuda.toolchain import BuildError, LaunchFault, ToolchainMissing

__all__ = [
    "BuildError",
    "Kernel",
    "LaunchFault",
    "Module",
    "ToolchainMissing",
    "scheduled",
]
