"""Expected against actual: integers, booleans and NaN exactly, floats within a derived bound."""

from typing import NamedTuple

import torch

from oracles.bounds import ANY_FINITE
from suites.cases import Bounds, Results


class Difference(NamedTuple):
    """What differs, and in which row where the result has rows."""

    statement: str
    row: int | None = None


def same_bits(one: Results, other: Results) -> bool:
    """Equal dtypes, shapes and bit patterns; NaN equals the same NaN."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_patterns(a), _patterns(b))
        for a, b in zip(one, other, strict=True)
    )


def _patterns(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        return tensor
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return tensor.contiguous().view(integer)


def difference(
    names: tuple[str, ...], expected: Results, actual: Results, bounds: Bounds | None = None
) -> Difference | None:
    """None when all results, of the names given, agree.

    Without ``bounds`` every element must be equal. With them, one may be off by
    ``|actual - expected| <= bound``; NaN must be NaN, and an infinity the same infinity where the
    bound is finite.
    """
    for name, wanted, got, bound in zip(
        names, expected, actual, bounds or (None,) * len(names), strict=True
    ):
        if got.dtype != wanted.dtype:
            return Difference(f"the {_spoken(name)} is {got.dtype}, not {wanted.dtype}")
        if got.shape != wanted.shape:
            return Difference(
                f"the {_spoken(name)} has shape {list(got.shape)}, not {list(wanted.shape)}"
            )
        wrong = ~agree(wanted, got, bound)
        if wrong.any():
            return _of_elements(name if len(names) > 1 else "", wrong)
    return None


def _spoken(name: str) -> str:
    return name if name == "result" else f"result {name}"


def _of_elements(name: str, wrong: torch.Tensor) -> Difference:
    of = f" of {name}" if name else ""
    count = f"{int(wrong.sum())} of {wrong.numel()} elements{of} differ"
    if wrong.dim() != 2:
        return Difference(count)
    rows = wrong.any(1).nonzero().flatten().tolist()
    return Difference(f"{count}, in {len(rows)} of {wrong.shape[0]} rows", rows[0])


def agree(
    expected: torch.Tensor, actual: torch.Tensor, bound: torch.Tensor | None = None
) -> torch.Tensor:
    """Element by element, of two tensors of one shape and dtype."""
    equal = actual == expected
    if expected.dtype.is_floating_point:
        equal |= actual.isnan() & expected.isnan()
    if bound is None:
        return equal
    # An infinite bound means that the type's range may be passed; it excuses no NaN, and not the
    # other infinity.
    close = (actual.double() - expected.double()).abs() <= bound
    close &= ~(actual.isinf() & expected.isinf())
    return equal | close | ((bound == ANY_FINITE) & actual.isfinite())


def error_ratio(expected: Results, actual: Results, bounds: Bounds) -> float | None:
    """The largest |error| / bound among floats, or None where no element says anything.

    One whose bound is infinite, or at most one step of its type, says nothing: there the ratio can
    only be 0 or 1.
    """
    largest = None
    for wanted, got, bound in zip(expected, actual, bounds, strict=True):
        if bound is None or not wanted.dtype.is_floating_point:
            continue
        telling = wanted.isfinite() & (bound > _step(wanted)) & (bound < ANY_FINITE)
        if telling.any():
            error = (got.double() - wanted.double()).abs()
            ratio = float((error[telling] / bound[telling]).max())
            largest = ratio if largest is None else max(largest, ratio)
    return largest


def _step(value: torch.Tensor) -> torch.Tensor:
    """From each value to its neighbour of larger magnitude, float64."""
    limits = torch.finfo(value.dtype)
    exponent = torch.frexp(value.double().abs().clamp(min=limits.tiny)).exponent
    return torch.ldexp(torch.full(value.shape, limits.eps, dtype=torch.float64), exponent - 1)
