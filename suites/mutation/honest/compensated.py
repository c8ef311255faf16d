"""Every sum carries what its roundings lost (Neumaier's variant of Kahan's)."""

from collections import Counter
from collections.abc import Iterable
from itertools import starmap

import torch
from torch import Tensor

from suites.mutation.honest.estimation import Way
from suites.mutation.honest.rows import Rows


def _compensated(terms: Iterable[Tensor], zero: Tensor) -> Tensor:
    total = lost = zero
    for term in terms:
        following = total + term
        larger, smaller = total.abs() >= term.abs(), total.abs() < term.abs()
        lost = lost + ((total - following) + term).where(larger, 0)
        lost = lost + ((term - following) + total).where(smaller, 0)
        total = following
    return torch.where(lost.isfinite(), total + lost, total)  # past the range nothing is lost


def _total(values: Tensor) -> Tensor:
    return _compensated(values.unbind(-1), values.new_zeros(values.shape[:-1]))


def _product(queries: Tensor, keys: Tensor) -> Tensor:
    pairs = zip(queries.unsqueeze(-2).unbind(-1), keys.unsqueeze(-3).unbind(-1), strict=True)
    zero = queries.new_zeros(*queries.shape[:-1], keys.shape[-2])
    return _compensated(starmap(torch.mul, pairs), zero)


WAY = Way(total=_total, product=_product)
ROWS = Rows(marks=Counter)
globals().update(WAY.operations() | ROWS.operations())
