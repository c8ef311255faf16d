"""What a module launches when its operations are called."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from types import ModuleType

from suites.compile.calls import Call, calls
from suites.compile.machine_code import Assembly, Cubin
from suites.compile.variants import Variant, importable


@dataclass(frozen=True)
class Launch:
    """A variant, and how to compile it."""

    variant: Variant
    compile: Callable[[], Cubin | Assembly]


def load(module: str) -> ModuleType:
    """A module of kernels, from ``<family>/<name>``."""
    return import_module(importable(module))


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
