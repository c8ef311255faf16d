"""What the softmax operations give, in numpy's float64 from the formulas of the specification.

It stands apart from the oracle: whole matrices, and a mask where the oracle cuts rows off.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from oracles.bounds import Dot
from suites.cases import NORMALISE, ONE_PASS, STATS, Bounds, Case, Results, to_torch
from suites.strategies.xattention import INF, logits, visible

Array = NDArray[np.float64]


def statistics(x: Array) -> tuple[Array, Array]:
    """m = max x and l = sum exp(x - m) of each row; of nothing but -inf, the empty pair (R-X4)."""
    m = x.max(-1, initial=-INF)
    return m, np.exp(x - shift(m)[..., None]).sum(-1)


def shift(m: Array) -> Array:
    """m, to be subtracted: 0 where it is -inf."""
    return np.where(m == -INF, 0.0, m)


def given(case: Case) -> tuple[Array, Array]:
    """The m and l that normalise a case: those it brings along, or those of its rows."""
    if case.operation == ONE_PASS:
        return statistics(logits(case))
    m, total = (to_torch(case.tensor(name)).double().numpy() for name in ("m_global", "l_global"))
    return m, total


def weights(case: Case) -> Array:
    """exp(x - m) / l, and 0 where a key is masked, a row is padding (R-X7) or l is 0 (R-X4)."""
    m, total = given(case)
    with np.errstate(over="ignore"):
        mass = np.exp(logits(case) - shift(m)[..., None])
    position = case.number("chunk_start") + np.arange(mass.shape[2])
    counted = visible(case) & (position < case.number("real_q_len"))[:, None]
    counted = counted & (total != 0)[..., None]
    return np.where(counted, mass / np.where(total == 0, 1.0, total)[..., None], 0.0)


def by_block(values: Array, block: int) -> Array:
    """Sums over blocks of rows and columns."""
    batch, heads, rows, columns = values.shape
    blocks = values.reshape(batch, heads, rows // block, block, columns // block, block)
    sums: Array = blocks.sum((3, 5))
    return sums


def results(case: Case) -> Results:
    """The results of one of the softmax operations, rounded to their types."""
    if case.operation == STATS:
        return to_results(case, *statistics(logits(case)))
    return to_results(case, by_block(weights(case), case.number("reshaped_block_size")))


def to_results(case: Case, *values: Array) -> Results:
    """Values as results of the case: statistics fp32, block sums in the scores' type (R-X10)."""
    sums = case.operation in (ONE_PASS, NORMALISE)
    dtype = case.tensor("attn_weights_slice").dtype if sums else "float32"
    return tuple(torch.tensor(each).to(getattr(torch, dtype)) for each in values)


def apart(*cases: Case, dot: Dot = "ieee") -> Bounds:
    """How far two honest results may be from each other that are exactly the same: both bounds."""
    both = zip(*(case.bounds(dot) for case in cases), strict=True)
    return tuple(
        torch.stack([each for each in bounds if each is not None]).sum(0) for bounds in both
    )
