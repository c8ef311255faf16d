"""Folding reduces as the interpreter does element by element, and takes a call a level."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from suites.watch.interpreter import fold_reductions

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

if not knobs.runtime.interpret:
    pytest.skip("these kernels are interpreted: set TRITON_INTERPRET=1", allow_module_level=True)

fold_reductions()
by_elements = interpreter.ReduceOps.generic_reduce.__wrapped__


class Combine:
    """A combine function on numpy arrays, in the form that the interpreter calls it."""

    def __init__(self, combine: Callable[..., Any]) -> None:
        self.calls = 0
        self._combine = combine

    def fn(self, *operands: Any) -> Any:
        self.calls += 1
        results = self._combine(*(operand.handle.data for operand in operands))
        if isinstance(results, int | tl.core.tensor):
            return results
        if not isinstance(results, tuple):
            return tensor_of(results, operands[0].dtype)
        dtypes = [operand.dtype for operand in operands[: len(results)]]
        return tuple(tensor_of(*result) for result in zip(results, dtypes, strict=True))


def tensor_of(data: Any, dtype: Any) -> Any:
    return tl.core.tensor(interpreter.TensorHandle(data, dtype), dtype)


def argmax(value: Any, index: Any, other: Any, other_index: Any) -> Any:
    take = (value > other) | ((value == other) & (index < other_index))
    return np.where(take, value, other), np.where(take, index, other_index)


def after(scale: Any, shift: Any, scale_after: Any, shift_after: Any) -> Any:
    """Composition of affine maps: associative, not commutative."""
    return scale * scale_after, shift * scale_after + shift_after


def widened(value: Any, other: Any) -> Any:
    return tensor_of(value.astype(np.int64) + other, tl.int64)


COMBINES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "or": (np.bitwise_or, [tl.int64]),
    "xor": (np.bitwise_xor, [tl.uint8]),
    "argmax": (argmax, [tl.float32, tl.int32]),
    "after": (after, [tl.uint32, tl.uint32]),
    "widened": (widened, [tl.int32]),
    "constant": (lambda value, other: 5, [tl.int32]),
}


def outcome(reduced: list[Any]) -> list[Any]:
    return [(x.type, x.handle.data.dtype, x.handle.data.tolist()) for x in reduced]


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((length,), 0) for length in (1, 2, 3, 6, 7, 8, 31)),
        *(((length,), None) for length in (1, 2, 16)),  # what is left has to be a legal block
        *(((7, 4), 0), ((4, 7), 1), ((6, 1), 0), ((2, 3, 4), 1), ((4, 2, 5), 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", COMBINES)
def test_folding_reduces_as_elements_do(
    name: str, shape: tuple[int, ...], axis: int | None, keep_dims: bool
) -> None:
    combine, dtypes = COMBINES[name]
    random = np.random.default_rng(len(name) + sum(shape))
    operands = tuple(
        tensor_of(random.integers(0, 100, shape).astype(interpreter._get_np_dtype(dtype)), dtype)
        for dtype in dtypes
    )
    calls = Combine(combine)
    reduction = interpreter.ReduceOps(axis, calls, keep_dims)
    folded = reduction.generic_reduce(operands)
    assert calls.calls == (shape[axis or 0] - 1).bit_length(), "a call a level, not an element"
    assert outcome(folded) == outcome(by_elements(reduction, operands))


def test_folding_keeps_every_dim_of_a_whole_reduction() -> None:
    # By elements one dim would be left; compiled, as many are left as there were.
    operand = tensor_of(np.arange(8).reshape(2, 4), tl.int64)
    (reduced,) = interpreter.ReduceOps(None, Combine(np.bitwise_or), True).generic_reduce(
        (operand,)
    )
    assert reduced.handle.data.tolist() == [[7]]


@triton.jit
def either(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a | b


@triton.jit
def later_maximum(a: tl.tensor, i: tl.tensor, b: tl.tensor, j: tl.tensor) -> tl.tensor:
    keep = a > b
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def larger_by_branch(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    larger = b
    if a > b:
        larger = a
    return larger


@triton.jit
def reduce_rows(
    x: tl.tensor,
    ors: tl.tensor,
    indices: tl.tensor,
    branches: tl.tensor,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    values = tl.load(x + row * columns + column)
    where = tl.broadcast_to(column, [rows, columns])
    _, index = tl.reduce((values, where), 1, later_maximum)
    tl.store(ors + tl.arange(0, rows), tl.reduce(values, 1, either))
    tl.store(ors + rows, tl.reduce(values, None, either))
    tl.store(indices + tl.arange(0, rows), index)
    tl.store(branches + tl.arange(0, columns), tl.reduce(values, 0, larger_by_branch))


@pytest.mark.parametrize("folded", [True, False])
def test_kernels_reduce_alike(folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not folded:
        monkeypatch.setattr(interpreter.ReduceOps, "generic_reduce", by_elements)
    x = torch.tensor([[1, 16, 4, 16], [8, 2, 2, 8]])
    ors, indices = torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    branches = torch.zeros(4, dtype=torch.int64)
    reduce_rows[(1,)](x, ors, indices, branches, rows=2, columns=4)
    assert ors.tolist() == [21, 10, 31]
    assert indices.tolist() == [3, 3]
    assert branches.tolist() == [8, 16, 4, 16]


def test_folding_twice_is_folding_once() -> None:
    folded = interpreter.ReduceOps.generic_reduce
    fold_reductions()
    assert interpreter.ReduceOps.generic_reduce is folded
    assert not hasattr(by_elements, "__wrapped__")
