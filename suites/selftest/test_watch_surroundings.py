"""The watch to its surroundings: it records launches, hides no error, and leaves no trace."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import sys
from contextlib import suppress
from typing import Any

import pytest
import torch

from suites.watch.interpreter import KernelFault, fold_reductions, watched

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

if not knobs.runtime.interpret:
    pytest.skip("these kernels are interpreted: set TRITON_INTERPRET=1", allow_module_level=True)


@triton.jit
def load_at(x: tl.tensor, index: tl.tensor) -> None:
    tl.load(x + index)


@triton.jit
def increment(x: tl.tensor) -> None:
    tl.store(x, tl.load(x) + 1)


@triton.jit
def fail(x: tl.tensor) -> None:
    tl.static_assert(False, "on purpose")


def test_launches_are_recorded_in_order() -> None:
    x = torch.zeros(1)
    with watched() as watch:
        assert watch.launches == []
        increment[(1,)](x)
        load_at[(1,)](x, 0)
        increment[(1,)](x)
    assert watch.launches == ["increment", "load_at", "increment"]
    increment[(1,)](x)
    assert len(watch.launches) == 3


def test_a_launch_at_fault_is_recorded_too() -> None:
    with pytest.raises(KernelFault), watched() as watch:
        load_at[(1,)](torch.zeros(1), 1)
    assert watch.launches == ["load_at"]


def test_a_fault_that_was_swallowed_comes_back() -> None:
    with pytest.raises(KernelFault, match="load_at: load"), watched(), suppress(Exception):
        load_at[(1,)](torch.zeros(1), 1)


def test_a_fault_outranks_what_was_made_of_it() -> None:
    with pytest.raises(KernelFault, match="load_at: load"), watched():  # noqa: PT012
        try:
            load_at[(1,)](torch.zeros(1), 1)
        except Exception:
            raise ValueError("something went wrong") from None


def test_the_first_fault_is_the_one_that_is_told() -> None:
    with pytest.raises(KernelFault, match=r"first at x \+ 1 "), watched():  # noqa: PT012
        for index in (1, 2):
            with suppress(Exception):
                load_at[(1,)](torch.zeros(1), index)


def test_other_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="mine"), watched():
        raise ValueError("mine")
    with pytest.raises(Exception, match="on purpose") as caught, watched():
        fail[(1,)](torch.zeros(1))
    assert not isinstance(caught.value, KernelFault)


@pytest.mark.parametrize("error", [None, ValueError])
def test_afterwards_everything_is_as_before(error: type[Exception] | None) -> None:
    def state() -> list[Any]:
        hook = knobs.runtime.launch_enter_hook
        executor = interpreter.GridExecutor
        return [
            interpreter._interpreter,
            executor._init_args_hst,
            list(getattr(hook, "calls", [hook])),
            dict(vars(interpreter.interpreter_builder)).keys(),
        ]

    before = state()
    try:
        with watched():
            assert all(now != then for now, then in zip(state()[:3], before, strict=False))
            if error:
                raise error
    except ValueError:
        pass
    assert state() == before


def test_a_watch_within_a_watch() -> None:
    x = torch.zeros(1)
    with watched() as outer:
        with watched() as inner:
            increment[(1,)](x)
        increment[(1,)](x)
    assert (len(outer.launches), len(inner.launches)) == (2, 1)


def test_without_triton_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", None)
    with watched() as watch:
        pass
    fold_reductions()
    assert watch.launches == []


class Launch:
    """What a compiled kernel hands to the hook."""

    def get(self) -> dict[str, str]:
        return {"name": "compiled"}


@pytest.mark.parametrize("plain", [True, False], ids=["attribute", "chain"])
def test_compiled_launches_are_recorded(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[str] = []

    def other(launch: Launch) -> None:
        others.append(launch.get()["name"])

    if plain:
        monkeypatch.setattr(knobs.runtime, "launch_enter_hook", other)
    elif not hasattr(knobs, "HookChain"):
        pytest.skip("this Triton has no hook chains")
    else:
        chain = knobs.HookChain()
        chain.add(other)
        monkeypatch.setattr(knobs.runtime, "launch_enter_hook", chain)
    with watched() as watch:
        knobs.runtime.launch_enter_hook(Launch())
    knobs.runtime.launch_enter_hook(Launch())
    assert watch.launches == ["compiled"]
    assert others == ["compiled", "compiled"]


def test_an_empty_hook_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", None)
    with watched() as watch:
        knobs.runtime.launch_enter_hook(Launch())
    assert watch.launches == ["compiled"]
    assert knobs.runtime.launch_enter_hook is None
