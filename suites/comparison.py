"""Expected against actual. Integers, booleans and masks are exact: no mismatch is ever allowed."""

from typing import NamedTuple

import torch


class Difference(NamedTuple):
    """What differs, and in which row where the result has rows."""

    statement: str
    row: int | None = None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal dtype, shape and bit patterns; NaN equals the same NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_patterns(one), _patterns(other))


def _patterns(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        return tensor
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return tensor.contiguous().view(integer)


def difference(
    expected: torch.Tensor, actual: torch.Tensor, bound: torch.Tensor | None = None
) -> Difference | None:
    """None when they agree.

    Without ``bound`` every element must be equal. With it, floats may differ by
    ``|actual - expected| <= bound`` per element, NaN and infinities by nothing.
    """
    if actual.dtype != expected.dtype:
        return Difference(f"the result is {actual.dtype}, not {expected.dtype}")
    if actual.shape != expected.shape:
        return Difference(f"the result has shape {list(actual.shape)}, not {list(expected.shape)}")
    wrong = ~_agree(expected, actual, bound)
    if not wrong.any():
        return None
    count = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    if wrong.dim() < 2:
        return Difference(count)
    rows = wrong.flatten(1).any(1).nonzero().flatten().tolist()
    return Difference(f"{count}, in {len(rows)} of {wrong.shape[0]} rows", rows[0])


def _agree(
    expected: torch.Tensor, actual: torch.Tensor, bound: torch.Tensor | None
) -> torch.Tensor:
    if not expected.dtype.is_floating_point:
        return actual == expected
    equal = (actual == expected) | (actual.isnan() & expected.isnan())
    if bound is None:
        return equal
    return equal | ((actual.double() - expected.double()).abs() <= bound)
