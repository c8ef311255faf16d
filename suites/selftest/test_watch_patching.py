"""The language is patched once a launch, and restored after it."""

from importlib import import_module
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl

from suites.watch.patching import patch_language_once

interpreter = import_module("triton.runtime.interpreter")


@triton.jit
def _double(x: tl.tensor) -> tl.tensor:
    return x + x


@triton.jit
def _quadruple(x_ptr: tl.tensor) -> None:
    tl.store(x_ptr, _double(_double(tl.load(x_ptr))))


@triton.jit
def _fails(x_ptr: tl.tensor) -> None:
    tl.static_assert(tl.load(x_ptr) < 0, "not today")


restores = pytest.mark.skipif(
    not hasattr(interpreter, "_LangPatchScope"), reason="Triton 3.4 leaves the language patched"
)


@pytest.fixture
def scopes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The scopes that the interpreter's own function opens."""
    opened: list[object] = []
    original = getattr(interpreter._patch_lang, "__wrapped__", interpreter._patch_lang)

    def patch_language(function: object) -> object:
        opened.append(original(function))
        return opened[-1]

    monkeypatch.setattr(interpreter, "_patch_lang", patch_language)
    return opened


@triton.jit
def _counts(x_ptr: tl.tensor, end: tl.tensor) -> None:
    for _ in range(0, end, 2):
        tl.store(x_ptr, tl.load(x_ptr) + 1)


def test_a_scalar_bounds_a_range() -> None:
    """Before Triton 3.7 it did not, where numpy is 2.4 or later."""
    patch_language_once()
    x = torch.zeros(1)
    _counts[(1,)](x, 5)
    assert x.item() == 3


@restores
def test_a_launch_with_device_functions_patches_once(scopes: list[object]) -> None:
    patch_language_once()
    before = tl.load
    x = torch.full((1,), 3.0)
    _quadruple[(4,)](x)
    assert x.item() == 3.0 * 4**4
    assert len(scopes) == 1
    _quadruple[(1,)](x)
    assert len(scopes) == 2
    assert tl.load is before


def test_without_it_every_device_function_patches(scopes: list[object]) -> None:
    _quadruple[(4,)](torch.ones(1))
    assert len(scopes) == 1 + 4 * 2


@restores
def test_a_launch_that_fails_restores_too(scopes: list[object]) -> None:
    patch_language_once()
    before = tl.load
    with pytest.raises(triton.runtime.errors.InterpreterError):
        _fails[(1,)](torch.ones(1))
    assert tl.load is before
    _quadruple[(1,)](torch.ones(1))
    assert len(scopes) == 2


@triton.jit
def _sums(x_ptr: tl.tensor) -> None:
    values = tl.load(x_ptr + tl.arange(0, 4))
    tl.store(x_ptr + tl.arange(0, 4), tl.cumsum(values, 0) + tl.sum(values, 0))


@restores
def test_the_standard_library_of_the_language_is_patched_once_and_restored(
    scopes: list[object],
) -> None:
    """Its functions see ``triton.language.core``, which the interpreter leaves patched."""
    patch_language_once()
    before = tl.core.load
    x = torch.ones(4)
    _sums[(3,)](x)
    assert len(scopes) == 2
    assert tl.core.load is before


def test_twice_is_once() -> None:
    with patch.object(interpreter, "_patch_lang", interpreter._patch_lang):
        patch_language_once()
        wrapped = interpreter._patch_lang
        patch_language_once()
        assert interpreter._patch_lang is wrapped
