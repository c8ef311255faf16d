"""Powers of two inside, base e at the interface; the marks of a row are the bits of an integer."""

import math

import torch
from torch import Tensor

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows


def _exp(difference: Tensor) -> Tensor:
    return torch.exp2(difference * math.log2(math.e))


class _Bits:
    def __init__(self, segments: list[int]) -> None:
        self.mask = 0
        for segment in segments:
            self.mask |= 1 << segment

    def __contains__(self, segment: object) -> bool:
        return isinstance(segment, int) and bool(self.mask >> segment & 1)


WAY = Way(exp=_exp, tile=4)
ROWS = Rows(marks=_Bits)
globals().update(WAY.operations() | ROWS.operations())
