"""From the last to the first: products, weights, chunks, and blocks of equal sums."""

import numpy as np
import torch
from torch import Tensor

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows


def _one_by_one(values: Tensor) -> Tensor:
    """By numpy, whose running sums have the type of what they sum; torch's on a CPU are fp64."""
    if not values.shape[-1]:
        return values.sum(-1)
    with np.errstate(all="ignore"):
        sums = np.add.accumulate(values.flip(-1).numpy(), axis=-1)
    return torch.from_numpy(sums[..., -1].copy())


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    """A component after the other."""
    return _one_by_one(queries.unsqueeze(-2) * keys.unsqueeze(-3))


WAY = Way(total=_one_by_one, product=_product, tile=7, latest_first=True)
ROWS = Rows(marks=lambda segments: segments[::-1])
globals().update(WAY.operations() | ROWS.operations())
