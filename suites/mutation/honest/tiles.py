"""Sums by halves, as a tree has them, and statistics of three keys at a time."""

from bisect import bisect_left

import torch
from torch import Tensor
from torch.nn.functional import pad

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows


def _halves(values: Tensor) -> Tensor:
    if not values.shape[-1]:
        return values.sum(-1)
    while values.shape[-1] > 1:
        values = pad(values, (0, values.shape[-1] % 2))
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    """Five components at a time."""
    pieces: list[Tensor] = [
        q @ k.mT for q, k in zip(torch.split(queries, 5, -1), torch.split(keys, 5, -1), strict=True)
    ]
    total = pieces.pop()
    while pieces:
        total = total + pieces.pop()
    return total


class _Sorted:
    def __init__(self, segments: list[int]) -> None:
        self.segments = sorted(segments)

    def __contains__(self, segment: object) -> bool:
        assert isinstance(segment, int)
        place = bisect_left(self.segments, segment)
        return self.segments[place : place + 1] == [segment]


WAY = Way(total=_halves, product=_product, tile=3)
ROWS = Rows(marks=_Sorted)
globals().update(WAY.operations() | ROWS.operations())
