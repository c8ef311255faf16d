"""A case's rows beside the result's, to state contracts on, in terms of the source's intervals.

Nothing here calls the oracle: the intervals are rational arithmetic and a bisection.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import ceil

import torch

from suites.cases import INDICES, ROWS, SERVE, Case, Results
from suites.verdicts import Nonconformance


@dataclass(frozen=True)
class Row:
    """One row: ``result`` is a slot a segment for the indices, and the merged row otherwise."""

    case: Case
    index: int
    length: int
    learned: list[int]
    result: list[int]
    actual: Results

    @property
    def tokens(self) -> list[int]:
        """The result without its padding."""
        return [x for x in self.result if x >= 0]

    @property
    def effective(self) -> int:
        """S_eff, and 0 for a row without context."""
        return min(self.case.number("num_segments"), max(self.length, 0))

    @cached_property
    def intervals(self) -> list[tuple[int, int]]:
        """[e_s, e_s+1) for each segment."""
        count = self.effective
        edges = [ceil(Fraction(s * self.length, count)) for s in range(count + 1)] if count else []
        return list(pairwise(edges))

    def segment(self, token: int) -> int:
        """The segment whose interval holds a token of [0, L)."""
        return bisect_right([first for first, _ in self.intervals], token) - 1

    def inside(self, tokens: list[int]) -> list[int]:
        """The tokens that lie in the row's context."""
        return [x for x in tokens if 0 <= x < self.length]

    @property
    def keep(self) -> int:
        if self.case.operation == SERVE:
            return max(len(self.learned) - self.case.number("num_segments"), 0)
        return self.case.number("learned_keep")

    @property
    def budget(self) -> int:
        """B, the number of slots that may change."""
        room = len(self.learned) - self.keep
        if self.case.operation == SERVE:
            return min(self.case.number("num_segments"), room)
        return min(self.case.number("max_replacements"), room)

    @property
    def changed(self) -> list[int]:
        """The slots that the merge changed."""
        pairs = zip(self.learned, self.result, strict=True)
        return [slot for slot, (before, after) in enumerate(pairs) if before != after]

    @property
    def written(self) -> list[int]:
        """The tokens in the slots that the merge changed, in slot order."""
        return [self.result[slot] for slot in self.changed]

    @property
    def overwritten(self) -> list[int]:
        """What the learned row held in those slots."""
        return [self.learned[slot] for slot in self.changed]

    def covered(self, tokens: list[int]) -> set[int]:
        return {self.segment(x) for x in self.inside(tokens)}

    def require(self, holds: bool, statement: str) -> None:
        """Raises Nonconformance, about this row, unless the statement holds."""
        if not holds:
            raise Nonconformance(statement, self.case, actual=self.actual, row=self.index)


def rows(case: Case, results: Results) -> Iterator[Row]:
    """The rows of a well-formed case. Raises Nonconformance when the result has another shape."""
    (actual,) = results
    learned, lengths = case.integers(ROWS[case.operation]), case.integers("context_lens")
    count, topk = case.tensor(ROWS[case.operation]).shape
    width = case.number("num_segments") if case.operation == INDICES else topk
    if actual.shape != (count, width) or actual.dtype != torch.int32:
        raise Nonconformance(
            f"the result is {actual.dtype} {list(actual.shape)}, not int32 {[count, width]}",
            case,
            actual=results,
        )
    for index in range(count):
        entries = learned[index * topk : (index + 1) * topk]
        yield Row(case, index, lengths[index], entries, actual[index].tolist(), results)
