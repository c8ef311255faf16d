"""Rows of selected blocks, beside the exact sums that they were selected by."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch

from suites.cases import ESTIMATE, SELECT, Case, Results, number, to_golden, to_torch
from suites.runner import Runner


@dataclass(frozen=True)
class Row:
    """The sums of a row of blocks, exactly, and which blocks were selected."""

    sums: list[Fraction]  # NaN stands as -1
    selected: set[int]
    visible: int  # blocks [0, visible)
    mandatory: set[int]
    threshold: Fraction

    @property
    def total(self) -> Fraction:
        return sum(self.sums[: self.visible], Fraction())

    @property
    def others(self) -> list[int]:
        """The visible blocks that mass decides about."""
        return [j for j in range(self.visible) if j not in self.mandatory]

    @property
    def chosen(self) -> set[int]:
        """Those of them that were selected."""
        return self.selected & {*self.others}

    def before(self, j: int) -> tuple[Fraction, Fraction]:
        """The mass ordered before a block: where it comes first among equals, and where last."""
        held = sum((self.sums[i] for i in self.mandatory), Fraction())
        rest = [self.sums[i] for i in self.others if i != j]
        first = held + sum((s for s in rest if s > self.sums[j]), Fraction())
        return first, first + sum((s for s in rest if s == self.sums[j]), Fraction())

    @property
    def doubt(self) -> Fraction:
        """How much of the mass an fp32 computation may not tell from none.

        The two sides of the comparison are sums of at most n masses and, on the other, threshold *
        total: n + 2 roundings of each at most, a subtraction or a division among them.
        """
        growth = (1 + Fraction(1, 2**24)) ** (self.visible + 2) - 1
        flushed = 3 * self.visible * Fraction(1, 2**126)
        return (1 + self.threshold) * self.total * growth + (flushed if self.total else 0)


def rows(case: Case, mask: torch.Tensor, sums: torch.Tensor | None = None) -> Iterator[Row]:
    """Each row of a mask; ``sums`` are those of the case unless they are given."""
    if sums is None:
        sums = to_torch(case.tensor("input_tensor"))
    index = diagonal_of_first_row(case)
    threshold = Fraction(number(case.inputs["threshold"]))
    _, _, q_blocks, k_blocks = sums.shape
    flat = zip(sums.double().reshape(-1, k_blocks), mask.reshape(-1, k_blocks), strict=True)
    for place, (row, selected) in enumerate(flat):
        diagonal = index + place % q_blocks
        yield Row(
            [Fraction(s) for s in row.nan_to_num(-1).tolist()],
            set(selected.nonzero().flatten().tolist()),
            diagonal + 1 if case.inputs["causal"] else k_blocks,
            {0, diagonal} if case.inputs["causal"] else set(),
            threshold,
        )


def diagonal_of_first_row(case: Case) -> int:
    """In an estimate as many blocks of keys come before the first query."""
    if case.operation == SELECT:
        return case.number("current_index")
    q_len, k_len = (case.tensor(name).shape[2] for name in ("query_states", "key_states"))
    return (k_len - q_len) // case.number("block_size")


def require(
    runner: Runner, case: Case, results: Results, statement: str, holds: Callable[[Row], bool]
) -> None:
    """Require a statement about each row of a mask, by the sums of the case or those returned."""
    sums = results[0] if case.operation == ESTIMATE else None
    each = all(holds(row) for row in rows(case, results[-1], sums))
    runner.require(case, each, statement, results)


def require_threshold(runner: Runner, case: Case, results: Results) -> None:
    """Require each decision that fp32 can tell: selected if the mass before is below the limit."""

    def holds(row: Row) -> bool:
        limit = row.threshold * row.total
        return all(
            row.before(j)[0] < limit + row.doubt
            if j in row.selected
            else row.before(j)[1] >= limit - row.doubt
            for j in row.others
        )

    statement = "a block is selected and not needed to reach the threshold, or needed and not"
    require(runner, case, results, statement, holds)


def require_selected(runner: Runner, case: Case, wanted: set[int]) -> None:
    """Require every row to select these blocks and no other."""
    statement = f"the blocks selected are not {sorted(wanted)}"
    require(runner, case, runner.call(case), statement, lambda row: row.selected == wanted)


def with_sums(case: Case, sums: torch.Tensor) -> Case:
    dtype: torch.dtype = getattr(torch, case.tensor("input_tensor").dtype)
    return case.changed(input_tensor=to_golden(sums.to(dtype)))


def sums_of(case: Case) -> torch.Tensor:
    return to_torch(case.tensor("input_tensor"))
