"""What judges is what was imported: whoever replaces a part of it while a run lasts is found out.

This is no protection against whoever means harm: code in this process can do anything. It makes
sure that a pass is none where an implementation, or a library that it imports, has put something of
its own in the place of the comparison, the oracles, the watch or the clock.
"""

import importlib
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import torch

MODULES: Final = (
    "oracles.bounds",
    "oracles.selection",
    "oracles.witness",
    "oracles.xattention",
    "suites.cases",
    "suites.comparison",
    "suites.recording",
    "suites.runner",
    "suites.verdicts",
    "suites.watch.interpreter",
    "suites.watch.launch",
    "suites.watch.memory",
)
CLOCKS: Final = ("monotonic", "perf_counter", "perf_counter_ns", "process_time", "time", "time_ns")
# What decides in `suites.comparison`.
DECIDING: Final = ("__eq__", "__le__", "__sub__", "abs", "all", "any", "clone", "isinf", "isnan")


def _parts() -> Iterator[tuple[str, object]]:
    """All that judges, by name: functions, classes and what they consist of, and clocks."""
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            if callable(value):
                yield f"{name}.{attribute}", value
            if isinstance(value, type) and value.__module__ == name:
                for member, part in vars(value).items():
                    if callable(part) or isinstance(part, property):
                        yield f"{name}.{attribute}.{member}", part
    yield from _named("time", time, CLOCKS)
    yield from _named("torch", torch, ("equal",))
    yield from _named("torch.Tensor", torch.Tensor, DECIDING)


def _named(
    where: str, owner: ModuleType | type, names: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    return ((f"{where}.{name}", getattr(owner, name)) for name in names)


_KEPT: Final = dict(_parts())


def replaced() -> str | None:
    """The name of a part that is no longer what it was when this module was imported."""
    now = dict(_parts())
    return next((name for name, part in _KEPT.items() if now.get(name) is not part), None)
