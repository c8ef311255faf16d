"""Spares the interpreter from patching ``triton.language`` anew for every device function.

A launch patches the language to run on numpy and restores it at its end. Each call of a device
function inside patches it again, the same way, which takes more time than most functions.
"""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any


class _Nothing:
    """The scope of a patch that was not needed."""

    def restore(self) -> None:
        pass


def patch_language_once() -> None:
    """Patch once a launch. May be called any number of times; without Triton, does nothing.

    Triton 3.4 never restores the language, so there it changes nothing.
    """
    try:
        interpreter = import_module("triton.runtime.interpreter")
    except ImportError:
        return
    patch_language = interpreter._patch_lang
    if hasattr(patch_language, "__wrapped__"):
        return
    languages = (interpreter.tl, interpreter.tl.core)
    patched: set[int] = set()  # the modules that the running launch has patched
    scopes: list[Any] = []  # one for the launch, and one for each module that it met later

    @wraps(patch_language)
    def once(function: Any) -> Any:
        modules = filter(inspect.ismodule, function.__globals__.values())
        needed = {id(module) for module in modules if module in languages}
        if needed and needed <= patched:
            return _Nothing()
        scope = patch_language(function)
        if not hasattr(scope, "restore"):  # Triton 3.4
            interpreter.tl.core.tensor.__index__ = _index
            return scope
        scope.set_attr(interpreter.tl.core.tensor, "__index__", _index)
        patched.update(needed)
        scopes.append(scope)
        if scope is scopes[0]:  # the launch's own, and so the only one that is restored
            scope.restore = partial(_restore, scope.restore, scopes, patched)
        return scope

    setattr(interpreter, "_patch_lang", once)  # noqa: B010 - untyped, and private


def _index(tensor: Any) -> int:
    """A scalar as the bound of a range. Before Triton 3.7, numpy 2.4 and later refuse it."""
    return int(tensor.handle.data.squeeze())


def _restore(launch: Callable[[], None], scopes: list[Any], patched: set[int]) -> None:
    """Restore what was patched last first."""
    for scope in reversed(scopes[1:]):
        scope.restore()
    scopes.clear()
    patched.clear()
    launch()
