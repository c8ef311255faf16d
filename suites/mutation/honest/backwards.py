"""From the last to the first: products, weights, chunks, and blocks of equal sums."""

from functools import reduce

import torch
from torch import Tensor

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows


def _one_by_one(values: Tensor) -> Tensor:
    parts = values.flip(-1).unbind(-1)
    return reduce(torch.add, parts, values.new_zeros(values.shape[:-1]))


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    """A component after the other."""
    pairs = zip(queries.flip(-1).unbind(-1), keys.flip(-1).unbind(-1), strict=True)
    terms = (q.unsqueeze(-1) * k.unsqueeze(-2) for q, k in pairs)
    zero = queries.new_zeros(*queries.shape[:-1], keys.shape[-2])
    return reduce(torch.add, terms, zero)


WAY = Way(total=_one_by_one, product=_product, tile=7, latest_first=True)
ROWS = Rows(marks=lambda segments: segments[::-1])
globals().update(WAY.operations() | ROWS.operations())
