"""From the name given to ``--impl`` to an implementation."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

from kernels import api
from kernels.cuda import Module
from kernels.worker import declaration, protocol
from kernels.worker.operations import Operation
from kernels.worker.protocol import Capability, Introduction
from kernels.worker.serve import signature_mistake
from kernels.worker.supervision import Worker, WorkerUnusable

# What a family asks of a kernel author, and what it does not but tests where it is exported.
KERNELS: Final = (api.WitnessKernels, api.XAttentionKernels)
MEASURES: Final = (api.WitnessMeasures,)
BUILT_IN: Final = {
    "torch": ("kernels.witness.torch_reference", "kernels.xattention.torch_reference"),
    "triton": ("kernels.witness.triton_fused", "kernels.xattention.triton_three_stage"),
    "cuda": ("kernels.witness.cuda_fused", "kernels.xattention.cuda_three_stage"),
    "triton_streaming": ("kernels.xattention.triton_streaming",),
}

Dot = protocol.Dot

ENTRY_POINTS: Final = "sparse_conformance.implementations"  # their group
DECLARED: Final = "toml:"  # before the path of a file that declares an implementation
RESERVED: Final = ("oracle",)  # the name of a column that is nobody's implementation

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
    the .cu files that its modules hold. ``lacks``: the operations and capabilities that it says it
    refuses; ``multiples``: what its sizes must be multiples of, by their names. ``deviations``:
    the file of those that it declares. ``worker``: the process that carries its operations out.
    ``modules``: where its operations are imported from, none of another language's program.
    ``argument``: what ``--impl`` was given, if not its name.
    """

    name: str
    operations: Mapping[str, Callable[..., Any]]
    kernels: Mapping[str, str] = field(default_factory=dict)
    exponent_base: float = math.e
    dot: Dot = "ieee"
    sources: tuple[Module, ...] = ()
    lacks: tuple[str, ...] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)
    deviations: Path | None = None
    worker: Worker | None = None
    modules: tuple[str, ...] = ()
    argument: str = ""

    @property
    def given(self) -> str:
        """What to give to ``--impl`` to have it again."""
        return self.argument or self.name


@cache
def signatures() -> dict[str, inspect.Signature]:
    """The signature of every operation of the specification, from `kernels.api`."""
    found = {}
    for group in (*KERNELS, *MEASURES):
        for name in operations(group):
            signature = inspect.signature(getattr(group, name))
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


def load(name: str, device: str = "cpu", logs: Path | None = None) -> Implementation:
    """An implementation by its name: a built-in one, one that an installed package announces in the
    entry points of ENTRY_POINTS, an importable module, or ``toml:`` and a file that declares one.

    A module provides an operation by having a function of its name, whose first parameters are
    the ones in `kernels.api`, in their order; further ones need defaults. What a module may
    declare: ``KERNELS``, from an operation to the kernel, of Triton or of CUDA C++ without its
    template arguments, that it must launch; ``EXPONENT_BASE = 2``, when its caller folds log2(e)
    into ``scale`` and its ``m`` is in that base; ``DOT = "tf32"``, when it multiplies fp32 that
    way; ``LACKS``, the operations and capabilities that it refuses.

    A declared one runs in a worker, on ``device`` unless its file says otherwise; what it writes
    to stderr is kept in the folder ``logs``.

    Raises CatalogError.
    """
    if name.startswith(DECLARED):
        return _declared_implementation(name, device, logs)
    operations: dict[str, Callable[..., Any]] = {}
    kernels: dict[str, str] = {}
    sources: list[Module] = []
    declared: dict[str, Any] = {}
    modules = _modules(name)
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
    return Implementation(
        name,
        operations,
        kernels,
        sources=tuple(sources),
        modules=tuple(module.__name__ for module in modules),
        **declared,
    )


def _declared_implementation(name: str, device: str, logs: Path | None) -> Implementation:
    """The one that a TOML file declares, with its worker, which is running."""
    file = Path(name.removeprefix(DECLARED))
    parameters = {name: tuple(each.parameters) for name, each in signatures().items()}
    try:
        declared = declaration.read(file, parameters)
        if declared.name in (*BUILT_IN, *RESERVED):
            raise CatalogError(
                f"--impl {name}: {declared.name!r} is a name of the suite's own; choose another"
            )
        folder = file.absolute().parent
        worker = declaration.start(declared, folder, device, parameters, logs)
    except declaration.DeclarationError as error:
        raise CatalogError(f"--impl {DECLARED}{error}") from None
    except WorkerUnusable as error:
        raise CatalogError(f"--impl {name}: {error}") from None
    said = worker.introduction
    try:
        _check(said, name)
    except CatalogError:
        worker.close()
        raise
    base = declared.exponent_base or said.exponent_base or math.e
    return Implementation(
        declared.name,
        {each: Operation(worker, each, parameters[each]) for each in said.operations},
        said.kernels,
        exponent_base=base,
        dot=declared.dot or said.dot,
        lacks=tuple(dict.fromkeys((*declared.lacks, *said.lacks))),
        multiples={str(size): each for size, each in declared.multiples.items()},
        deviations=folder / declared.deviations if declared.deviations else None,
        worker=worker,
        modules=(declared.import_,) if declared.import_ else (),
        argument=name,
    )


def _check(said: Introduction, name: str) -> None:
    """Whether a worker has operations, and speaks of nothing that there is not."""
    if not said.operations:
        raise CatalogError(
            f"--impl {name}: the worker has no operation of the specification; "
            f"it needs at least one of {', '.join(signatures())}"
        )
    for words, allowed in (
        (said.operations, (*signatures(),)),
        (said.lacks, (*signatures(), *get_args(Capability))),
    ):
        for word in words:
            if word not in allowed:
                raise CatalogError(
                    f"--impl {name}: the worker speaks of {word!r}; there are {', '.join(allowed)}"
                )


def _modules(name: str) -> list[ModuleType]:
    """The modules of an implementation that runs in this process."""
    if name in BUILT_IN:
        return [_import(module, name) for module in BUILT_IN[name]]
    announced: list[EntryPoint] = [*entry_points(group=ENTRY_POINTS, name=name)]
    if len(announced) > 1:
        values = ", ".join(sorted(each.value for each in announced))
        raise CatalogError(
            f"--impl {name}: several packages announce it: {values}; give the module that you mean"
        )
    return [_import(announced[0].value if announced else name, name)]


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A missing dependency of the module is another mistake than a mistyped name.
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            if module != name:
                raise CatalogError(
                    f"--impl {name}: its package announces {module}, which is missing; "
                    "install the package again"
                ) from error
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
    declared: dict[str, object] = {}
    for attribute, (field_, allowed) in DECLARATIONS.items():
        if hasattr(module, attribute):
            declared[field_] = value = getattr(module, attribute)
            if value not in allowed:
                raise CatalogError(
                    f"--impl {name}: {attribute} is {value!r}; "
                    f"set it to {' or '.join(map(repr, allowed))}, or leave it out"
                )
    lacks = tuple(getattr(module, "LACKS", ()))
    for lack in lacks:
        if lack not in (*signatures(), *get_args(Capability)):
            raise CatalogError(
                f"--impl {name}: LACKS has {lack!r}; it may have operations of the specification, "
                f"and {', '.join(get_args(Capability))}"
            )
    return declared | {"lacks": lacks}


def _checked(module: ModuleType, operation: str, wanted: inspect.Signature) -> Callable[..., Any]:
    function = getattr(module, operation)
    if mistake := signature_mistake(function, operation, list(wanted.parameters)):
        raise CatalogError(f"--impl {module.__name__}: {mistake}")
    return function  # type: ignore[no-any-return]
