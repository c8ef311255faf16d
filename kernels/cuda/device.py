"""CUDA C++ on a GPU: compiled by NVRTC through cuda-core, launched on torch's current stream.

NVRTC is a library, so no compiler of the machine is called. Nothing here has run on a GPU yet; the
compilation has, for it needs none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from kernels.cuda.toolchain import BuildError, ToolchainMissing, text_of

LANGUAGE: Final = "c++20"  # as for the host
PACKAGES: Final = "cuda-core, cuda-bindings==13.0.* and nvidia-cuda-nvrtc==13.0.*"
HEADER_PACKAGES: Final = "nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl, ==13.0.*"
FREE_SHARED: Final = 48 * 1024  # bytes that a kernel may have without asking


class Library:
    """The kernels of one source, built for one device."""

    def __init__(self, compiled: Any, kernels: Sequence[str], device: torch.device) -> None:
        self._device = device
        with _current(device):
            self._kernels = [compiled.get_kernel(name) for name in kernels]

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        values: Sequence[Any],
        arguments: Sequence[Any],
    ) -> None:
        """Put a launch on torch's current stream of the device."""
        core = import_module("cuda.core")
        with _current(self._device):
            if shared_bytes > FREE_SHARED:
                self._ask_for_shared(kernel, shared_bytes)
            config = core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
            core.launch(_Stream(self._device), config, self._kernels[kernel], *values)

    def _ask_for_shared(self, kernel: int, shared_bytes: int) -> None:
        driver = import_module("cuda.bindings.driver")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(
            attribute,
            shared_bytes,
            self._kernels[kernel].handle,
            driver.CUdevice(self._device.index),
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise ValueError(f"{self._device} gives no block {shared_bytes} bytes of shared memory")


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """The device's context, in this thread of the system too, where torch may not have set it."""
    with torch.cuda.device(device):
        import_module("cuda.core").Device(device.index).set_current()
        yield


class _Stream:
    """Torch's current stream, as cuda-core takes the streams of others."""

    def __init__(self, device: torch.device) -> None:
        self._handle = torch.cuda.current_stream(device).cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle  # 0: the version of this protocol


def build(source: Path, kernels: Mapping[str, str], device: torch.device) -> Library:
    """Compile a source for a device. ``kernels``: from C++ expressions to parameter types.

    Raises ToolchainMissing without cuda-core and NVRTC, and BuildError when it refuses the source.
    """
    major, minor = torch.cuda.get_device_capability(device)
    return Library(compile_for(f"sm_{major}{minor}", source, kernels), [*kernels], device)


def compile_for(architecture: str, source: Path, kernels: Mapping[str, str]) -> Any:
    """The `cuda.core.ObjectCode` of a source, for an architecture such as ``sm_90``.

    No GPU is needed. A source is compiled once a process for its text. Raises as `build` does.
    """
    checks = [
        f"static_assert(sizeof(static_cast<void (*)({parameters})>({expression})));\n"
        for expression, parameters in kernels.items()
    ]
    text = text_of(source) + "".join(checks)
    return _compile(architecture, source.name, text, tuple(kernels))


@cache
def nvrtc() -> str:
    """The version of NVRTC, ``13.0``. Raises ToolchainMissing without it or without cuda-core."""
    try:
        import_module("cuda.core")
        _, major, minor = import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise ToolchainMissing(
            f"CUDA C++ on a GPU needs cuda-core and NVRTC: {error}; install {PACKAGES}"
        ) from error
    return f"{major}.{minor}"


@cache
def _compile(architecture: str, name: str, text: str, kernels: tuple[str, ...]) -> Any:
    try:
        core = import_module("cuda.core")
        failed = import_module("cuda.pathfinder").DynamicLibNotFoundError
    except ImportError as error:
        raise ToolchainMissing(
            f"CUDA C++ on a GPU needs cuda-core: {error}; install {PACKAGES}"
        ) from error
    options = core.ProgramOptions(
        name=name, arch=architecture, std=LANGUAGE, include_path=_headers(text)
    )
    try:
        return core.Program(text, "c++", options).compile("cubin", name_expressions=kernels)
    except failed as error:
        raise ToolchainMissing(f"CUDA C++ on a GPU needs NVRTC; install {PACKAGES}") from error
    except Exception as error:  # cuda-core has no public name for what NVRTC says
        lines = [line for line in str(error).splitlines() if "error" in line.partition(":")[2]]
        first = " ".join((lines or [str(error)])[0].split())
        raise BuildError(f"{name}: NVRTC refuses it: {first}") from error


def _headers(text: str) -> list[str] | None:
    """Where CUDA's own headers are, if the source includes any."""
    if not re.search(r"^\s*#\s*include\s*<(cuda_fp16|cuda_bf16)\.h>", text, re.MULTILINE):
        return None
    find = import_module("cuda.pathfinder").find_nvidia_header_directory
    folders = [find(library) for library in ("cudart", "cccl")]
    if None in folders:
        raise ToolchainMissing(
            f"a kernel with 16-bit floats needs CUDA's headers; install {HEADER_PACKAGES}"
        )
    return folders
