"""From the name given to ``--impl`` to an implementation."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, get_args

from kernels import api
from kernels.cuda import Module

# What a family asks of a kernel author, and what it does not but tests where it is exported.
KERNELS: Final = (api.WitnessKernels, api.XAttentionKernels)
MEASURES: Final = (api.WitnessMeasures,)
BUILT_IN: Final = {
    "torch": ("kernels.witness.torch_reference", "kernels.xattention.torch_reference"),
    "triton": ("kernels.witness.triton_fused", "kernels.xattention.triton_three_stage"),
    "cuda": ("kernels.witness.cuda_fused", "kernels.xattention.cuda_three_stage"),
    "triton_streaming": ("kernels.xattention.triton_streaming",),
}

Dot = Literal["ieee", "tf32"]

# Names that a module may define, the field of `Implementation` that each sets, and to what.
DECLARATIONS: Final[Mapping[str, tuple[str, tuple[object, ...]]]] = {
    "EXPONENT_BASE": ("exponent_base", (2, math.e)),
    "DOT": ("dot", get_args(Dot)),
}


class CatalogError(ValueError):
    """An ``--impl`` that cannot be loaded: one line that says what, where and what to do."""


@dataclass(frozen=True)
class Implementation:
    """Operations by name, and what their module declares of them.

    ``kernels``: which kernel an operation must launch. ``exponent_base``: of the interface of
    XAttention's statistics, e or 2 (R-X2). ``dot``: how it multiplies fp32 (R-X14). ``sources``:
    the .cu files that its modules hold. ``deviations``: the file in which its author declares where
    it departs from a contract.
    """

    name: str
    operations: Mapping[str, Callable[..., Any]]
    kernels: Mapping[str, str] = field(default_factory=dict)
    exponent_base: float = math.e
    dot: Dot = "ieee"
    sources: tuple[Module, ...] = ()
    deviations: Path | None = None


@cache
def signatures() -> dict[str, inspect.Signature]:
    """The signature of every operation of the specification, from `kernels.api`."""
    found = {}
    for protocol in (*KERNELS, *MEASURES):
        for name in operations(protocol):
            signature = inspect.signature(getattr(protocol, name))
            _self, *parameters = signature.parameters.values()
            found[name] = signature.replace(parameters=parameters)
    return found


def operations(protocol: type) -> list[str]:
    """The operations that a protocol of `kernels.api` declares."""
    return [
        name
        for name, function in vars(protocol).items()
        if inspect.isfunction(function) and not name.startswith("_")
    ]


def load(name: str) -> Implementation:
    """The built-in implementation of that name, or the importable module.

    A module provides an operation by having a function of its name, whose first parameters are
    the ones in `kernels.api`, in their order; further ones need defaults. What a module may
    declare: ``KERNELS``, from an operation to the kernel, of Triton or of CUDA C++ without its
    template arguments, that it must launch; ``EXPONENT_BASE = 2``, when its caller folds log2(e)
    into ``scale`` and its ``m`` is in that base; ``DOT = "tf32"``, when it multiplies fp32 that
    way.

    Raises CatalogError.
    """
    modules = [_import(module, name) for module in BUILT_IN.get(name, (name,))]
    operations: dict[str, Callable[..., Any]] = {}
    kernels: dict[str, str] = {}
    sources: list[Module] = []
    declared: dict[str, Any] = {}
    for module in modules:
        for operation, signature in signatures().items():
            if hasattr(module, operation):
                operations[operation] = _checked(module, operation, signature)
        kernels.update(getattr(module, "KERNELS", {}))
        sources.extend(value for value in vars(module).values() if isinstance(value, Module))
        declared.update(_declared(module, name))
    if not operations:
        raise CatalogError(
            f"--impl {name}: the module has no operation of the specification; "
            f"define at least one of {', '.join(signatures())}"
        )
    return Implementation(name, operations, kernels, sources=tuple(sources), **declared)


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A missing dependency of the module is another mistake than a mistyped name.
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise CatalogError(
                f"--impl {name}: no built-in implementation and no importable module of that name; "
                f"use one of {', '.join(BUILT_IN)}, or a module on the import path"
            ) from error
        raise CatalogError(f"--impl {name}: its import fails, {error}; install it first") from error
    except (Exception, SystemExit) as error:
        raise CatalogError(
            f"--impl {name}: its import fails with {type(error).__name__}: "
            f"{' '.join(str(error).split())}; `python -c 'import {module}'` shows where"
        ) from error


def _declared(module: ModuleType, name: str) -> dict[str, object]:
    declared = {}
    for attribute, (field_, allowed) in DECLARATIONS.items():
        if hasattr(module, attribute):
            declared[field_] = value = getattr(module, attribute)
            if value not in allowed:
                raise CatalogError(
                    f"--impl {name}: {attribute} is {value!r}; "
                    f"set it to {' or '.join(map(repr, allowed))}, or leave it out"
                )
    return declared


def _checked(module: ModuleType, operation: str, wanted: inspect.Signature) -> Callable[..., Any]:
    function = getattr(module, operation)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise CatalogError(
            f"--impl {module.__name__}: {operation} is not a function with a readable signature; "
            f"define it as {operation}({', '.join(wanted.parameters)})"
        ) from error
    names = list(wanted.parameters)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first, further = parameters[: len(names)], parameters[len(names) :]
    matches = [p.name for p in first if p.kind in positional] == names
    optional = all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in further
    )
    if not (matches and optional):
        raise CatalogError(
            f"--impl {module.__name__}: {operation}({', '.join(p.name for p in parameters)}) has "
            f"another signature; the specification's is {operation}({', '.join(names)})"
        )
    return function  # type: ignore[no-any-return]
