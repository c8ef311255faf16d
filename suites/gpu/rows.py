"""What the witness policy gives, worked out on the device for millions of rows at a time.

By the definition of the source, in torch's integers: a segment is an interval, a learned token
marks the interval that it lies in. There is no segment map here, as the kernels have one, and no
float. What is past the context marks the last of S segments, which a row shorter than S has not.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from golden.model import Operation, Value
from suites.cases import APPLY, INDICES, ROWS, SERVE, Case, to_golden

NONE = 2**62  # past every token


class Policy(NamedTuple):
    """An operation of the family and its numbers; ``keep`` and ``budget`` are for the merge."""

    operation: Operation
    segments: int
    keep: int = 0
    budget: int = 0

    def case(self, learned: Tensor, lengths: Tensor) -> Case:
        """A call with a few rows."""
        inputs: dict[str, Value] = {
            ROWS[self.operation]: to_golden(learned),
            "context_lens": to_golden(lengths),
            "num_segments": self.segments,
        }
        if self.operation == APPLY:
            inputs |= {"learned_keep": self.keep, "max_replacements": self.budget}
        return Case(self.operation, inputs)

    def expected(self, learned: Tensor, witnesses: Tensor) -> Tensor:
        """The result, int32. ``witnesses``: of the rows, as `witnesses` gives them."""
        if self.operation == INDICES:
            return witnesses.where(witnesses < NONE, -1).int()
        topk, keep, budget = learned.shape[1], self.keep, self.budget
        if self.operation == SERVE:
            keep, budget = max(topk - self.segments, 0), self.segments
        first = witnesses.sort(1).values[:, : min(budget, topk - keep)]
        merged = learned.clone()
        reserved = merged[:, keep : keep + first.shape[1]]
        reserved.copy_(first.where(first < NONE, reserved))
        return merged


def witnesses(learned: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """The left edge of each segment without a learned token, `NONE` elsewhere.

    ``learned``: int32 ``[rows, topk]``; ``lengths``: int64 ``[rows]``; int64 ``[rows, segments]``.
    """
    length = lengths.clamp(min=0)[:, None]
    count = length.clamp(max=segments)
    s = torch.arange(segments + 1, device=learned.device)
    edges = (s * length + count - 1) // count.clamp(min=1)  # of no use without a context
    marked = torch.zeros(len(learned), segments, dtype=torch.bool, device=learned.device)
    for slot in range(learned.shape[1]):  # a matrix at a time, for three dimensions take memory
        token = learned[:, slot : slot + 1]
        marked |= (edges[:, :-1] <= token) & (token < edges[:, 1:])
        marked[:, -1:] |= token >= length  # none of a row that has fewer
    exists = s[:-1] < count
    return edges[:, :-1].where(exists & ~marked, NONE)


def few(rows: Tensor, wanted: list[int]) -> Tensor:
    """Some of the rows, on the CPU."""
    return rows[torch.tensor(wanted, device=rows.device)].cpu()
