"""A .cu file and its kernels: one way to launch them, on the host and on a GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.cuda import device, host, parameters
from kernels.cuda.parameters import Parameter
from kernels.cuda.sanitizer import SANITIZE

Size = int | tuple[int, ...]
Shape = tuple[int, int, int]

MOST_THREADS = 1024
MOST_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
MOST_SHARED = 227 * 1024  # bytes; the architectures differ, and none gives a block more


class Launcher(Protocol):
    """Runs the kernels of one built source on one kind of device."""

    def launch(
        self,
        kernel: int,
        grid: Shape,
        block: Shape,
        shared_bytes: int,
        values: Sequence[Any],
        arguments: Sequence[Any],
    ) -> None:
        """Launch the kernel of that number.

        ``values``: the arguments as ctypes values, in order; ``arguments``: as they were given.
        """
        ...


class Module:
    """A .cu file, and those of its kernels that are launched from Python.

    ``kernels``: from the C++ expression that names a kernel, template arguments included, to the
    types of its parameters, as in ``{"merge<float>": "const float*, long long"}``. The compiler
    holds the one to the other. The file includes nothing but CUDA's own headers, and is built once
    for its text, on the first launch. ``module[expression]`` is a kernel.
    """

    def __init__(self, source: Path, kernels: Mapping[str, str]) -> None:
        self.source = source
        self.kernels = {
            name: Kernel(self, number, name, parameters.parse(declaration))
            for number, (name, declaration) in enumerate(kernels.items())
        }
        self._built: dict[tuple[torch.device, bool], Launcher] = {}

    def __getitem__(self, name: str) -> "Kernel":
        return self.kernels[name]

    @property
    def declarations(self) -> dict[str, str]:
        """The kernels as they were given, from expressions to parameter types."""
        return {name: kernel.declaration for name, kernel in self.kernels.items()}

    def require(self, where: torch.device) -> None:
        """Nothing, where this machine has what builds for a device; nothing is built.

        Raises ToolchainMissing where it has not.
        """
        if where.type == "cpu":
            host.compiler()
        else:
            device.nvrtc()

    def built_for(self, where: torch.device) -> Launcher:
        """The kernels on a device, ``cpu`` or ``cuda:N``, built on the first call for it.

        Raises ToolchainMissing without g++, or for a GPU without cuda-core and NVRTC, and
        BuildError when the compiler refuses the source.
        """
        on_host = where.type == "cpu"
        key = (where, on_host and SANITIZE.get())
        if key not in self._built:
            self._built[key] = (
                host.build(self.source, self.declarations, sanitized=SANITIZE.get())
                if on_host
                else device.build(self.source, self.declarations, where)
            )
        return self._built[key]


class Kernel:
    """One kernel of a module."""

    def __init__(
        self, module: Module, number: int, name: str, parameters: tuple[Parameter, ...]
    ) -> None:
        self.module = module
        self.number = number
        self.name = name
        self.parameters = parameters

    @property
    def declaration(self) -> str:
        return ", ".join(parameter.declared for parameter in self.parameters)

    def __str__(self) -> str:
        return f"{self.module.source.name}, {self.name}"

    def launch(self, grid: Size, block: Size, *arguments: Any, shared_bytes: int = 0) -> None:
        """Run ``block`` threads in each of ``grid`` blocks, where the tensors are.

        On the host the call returns when all is done; on a GPU it is put on torch's current stream.
        ``shared_bytes``: of dynamic shared memory, a block.

        Raises TypeError and ValueError for arguments that the declaration does not allow, for
        tensors on several devices and for an impossible shape; LaunchFault for what a kernel on the
        host may not do; ToolchainMissing and BuildError as `Module` says.
        """
        values = self._values(arguments)
        where = self._device(arguments)
        if not 0 <= shared_bytes <= MOST_SHARED:
            raise ValueError(f"{self}: shared_bytes is {shared_bytes}; from 0 to {MOST_SHARED}")
        launcher = self.module.built_for(where)
        launcher.launch(
            self.number, self._grid(grid), self._block(block), shared_bytes, values, arguments
        )

    def _values(self, arguments: Sequence[Any]) -> list[Any]:
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self}: {len(arguments)} arguments for ({self.declaration})")
        values = []
        for place, (parameter, argument) in enumerate(zip(self.parameters, arguments, strict=True)):
            try:
                values.append(parameter.value(argument))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{self}: argument {place}: {error}") from None
        return values

    def _device(self, arguments: Sequence[Any]) -> torch.device:
        devices = {each.device for each in arguments if isinstance(each, Tensor)}
        if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
            names = ", ".join(sorted(map(str, devices))) or "none"
            raise ValueError(f"{self}: its tensors must be on one device, cpu or cuda, not {names}")
        return devices.pop()

    def _grid(self, size: Size) -> Shape:
        shape = _shape(size)
        if not all(1 <= n <= most for n, most in zip(shape, MOST_BLOCKS, strict=True)):
            raise ValueError(f"{self}: a grid of {shape} blocks; each side from 1 to {MOST_BLOCKS}")
        return shape

    def _block(self, size: Size) -> Shape:
        shape = x, y, z = _shape(size)
        if min(shape) < 1 or x * y * z > MOST_THREADS or z > 64:
            raise ValueError(
                f"{self}: a block of {shape} threads; from 1 to {MOST_THREADS}, z to 64"
            )
        return shape


def _shape(size: Size) -> Shape:
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return x, y, z
