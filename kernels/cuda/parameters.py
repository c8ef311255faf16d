"""The parameters of a kernel, as its declaration writes them, and the arguments of a launch."""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

Scalar = type[Any]  # one of ctypes' types of a value

# By the name that a .cu file uses: the dtype of what a pointer points to, and a value's own type.
DTYPES: Final = {
    "bool": torch.bool,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "short": torch.int16,
    "int": torch.int32,
    "long long": torch.int64,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}
SCALARS: Final[dict[str, Scalar]] = {
    "bool": ctypes.c_bool,
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


@dataclass(frozen=True)
class Parameter:
    """One parameter: the ``dtype`` behind a pointer, or None; ``scalar``, how it is passed."""

    declared: str
    dtype: torch.dtype | None
    scalar: Scalar

    def value(self, argument: Any) -> Any:
        """The argument as the kernel takes it, a ctypes value.

        Raises TypeError for one of another kind and ValueError for one that does not fit.
        """
        if self.dtype is not None:
            if not isinstance(argument, Tensor) or argument.dtype is not self.dtype:
                kind = argument.dtype if isinstance(argument, Tensor) else type(argument).__name__
                raise TypeError(f"{self.declared} takes a tensor of {self.dtype}, not {kind}")
            return self.scalar(argument.data_ptr())
        is_float = self.scalar in (ctypes.c_float, ctypes.c_double)
        if not isinstance(argument, (int, float) if is_float else int):
            raise TypeError(f"{self.declared} takes a number, not {type(argument).__name__}")
        value = self.scalar(argument)
        if not is_float and value.value != argument:
            raise ValueError(f"{self.declared} cannot hold {argument}")
        return value


def parse(declaration: str) -> tuple[Parameter, ...]:
    """The parameters of a declaration such as ``"const int*, long long"``: types, without names.

    Raises ValueError for a type that is none of `SCALARS` and no pointer to one of `DTYPES`.
    """
    return tuple(_parameter(" ".join(text.split())) for text in declaration.split(","))


def _parameter(declared: str) -> Parameter:
    name, star, rest = declared.partition("*")
    pointee = name.removeprefix("const ").strip()
    if star and not rest and pointee in DTYPES:
        return Parameter(declared, DTYPES[pointee], ctypes.c_uint64)
    if not star and declared in SCALARS:
        return Parameter(declared, None, SCALARS[declared])
    raise ValueError(
        f"{declared!r} cannot be passed to a kernel: "
        f"use {', '.join(SCALARS)}, or a pointer to {', '.join(DTYPES)}"
    )
