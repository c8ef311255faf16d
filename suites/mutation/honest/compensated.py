"""Every sum carries what its roundings lost (Knuth's two-sum), and adds it in the end."""

from collections import Counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows


def _total(values: Tensor) -> Tensor:
    if not values.shape[-1]:
        return values.sum(-1)
    lost = torch.zeros_like(values)
    while (count := values.shape[-1]) > 1:
        (a, b), (lost_a, lost_b) = (
            torch.unflatten(pad(each, (0, count % 2)), -1, (-1, 2)).unbind(-1)
            for each in (values, lost)
        )
        values = a + b
        part = values - a
        lost = lost_a + lost_b + ((a - (values - part)) + (b - part))
    total = values + lost
    return torch.where(lost.isfinite(), total, values).squeeze(-1)  # past the range none is lost


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    return _total(queries.unsqueeze(-2) * keys.unsqueeze(-3))


WAY = Way(total=_total, product=_product)
ROWS = Rows(marks=Counter)
globals().update(WAY.operations() | ROWS.operations())
