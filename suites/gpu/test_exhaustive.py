"""Every row there is in a scope that only a device can go through: a thousand million of them.

Rows are made on the device from their number, and judged there (`suites.gpu.rows`); some of each
batch go to the oracle as well.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest
import torch
from torch import Tensor

from golden.model import Operation
from golden.record import Measurement
from suites.cases import APPLY, INDICES, ROWS, SERVE
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.rows import Policy, few, witnesses
from suites.runner import Runner
from suites.strategies.witness import INT32_MAX
from suites.verdicts import Nonconformance

SAMPLED: Final = 8  # rows of a batch that the oracle judges


class Scope(NamedTuple):
    """All rows of up to ``topk`` slots, in contexts of -1 to ``longest`` tokens.

    A slot holds padding, a token of the longest context or one of two past it, or 2**31 - 1.
    Segments: from 1 to two more than the longest context has tokens. A merge has every ``keep``,
    and with it every budget that differs.
    """

    longest: int
    topk: int

    @property
    def entries(self) -> list[int]:
        return [-1, *range(self.longest + 2), INT32_MAX]

    def rows(self, topk: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Learned rows, int32 ``[rows, topk]``, and their lengths, int64 ``[rows]``."""
        entries = torch.tensor(self.entries, dtype=torch.int32, device=device)
        contexts = self.longest + 2
        number = torch.arange(contexts * len(entries) ** topk, device=device)
        lengths, number = number % contexts - 1, number // contexts
        learned = torch.empty(len(number), topk, dtype=torch.int32, device=device)
        for slot in range(topk):
            learned[:, slot] = entries[number % len(entries)]
            number = number // len(entries)
        return learned, lengths

    def policies(self, operation: Operation, topk: int) -> Iterator[list[Policy]]:
        """By number of segments."""
        budgets = [(keep, b) for keep in range(topk + 1) for b in range(topk - keep + 1)]
        for segments in range(1, self.longest + 3):
            if operation == APPLY:
                yield [Policy(APPLY, segments, keep, budget) for keep, budget in budgets]
            else:
                yield [Policy(operation, segments)]


FULL: Final = Scope(longest=9, topk=5)


def require_every_row(runner: Runner, device: Device, operation: Operation, scope: Scope) -> int:
    """Require the right result for every row of a scope; how many those were."""
    verified = 0
    for topk in range(1, scope.topk + 1):
        learned, lengths = scope.rows(topk, device.name)
        for policies in scope.policies(operation, topk):
            missing = witnesses(learned, lengths, policies[0].segments)
            for policy in policies:
                _require_rows(runner, policy, learned, lengths, missing)
                verified += len(learned)
    return verified


def _require_rows(
    runner: Runner, policy: Policy, learned: Tensor, lengths: Tensor, missing: Tensor
) -> None:
    """Require the right result of a call, for all of its rows, with the edges that are missing."""
    spread = torch.linspace(0, len(learned) - 1, min(SAMPLED, len(learned))).long().tolist()
    case = policy.case(few(learned, spread), few(lengths, spread))
    name = ROWS[policy.operation]
    rows = learned.clone() if case.specification.in_place else learned
    call = runner.place(case, large={name: rows, "context_lens": lengths})
    (actual,) = call()
    expected = policy.expected(learned, missing)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        runner.judge(case)  # says so, of a few rows
    wrong = (actual != expected).any(1)
    if wrong.any():
        found = [int(wrong.nonzero()[0])]
        raise Nonconformance(
            f"{int(wrong.sum()):,} of {len(wrong):,} rows are wrong, such as row {found[0]:,}",
            policy.case(few(learned, found), few(lengths, found)),
            expected=(few(expected, found),),
            actual=(few(actual, found),),
            row=0,
        )
    runner.require_close(case, case.expected(), (few(actual, spread),), (None,), "by the oracle")
    runner.cases += len(learned)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "operation",
    [pytest.param(o, marks=contract(DEFINED_BY[o])) for o in (INDICES, APPLY, SERVE)],
)
def test_every_row_of_five_slots(
    implementation: Runner,
    device: Device,
    operation: Operation,
    measure: Callable[[Measurement], None],
) -> None:
    verified = require_every_row(implementation, device, operation, FULL)
    measure(
        Measurement(
            implementation=implementation.name,
            subject=operation,
            quantity="millions of rows verified",
            variant="all of five slots",
            value=verified / 1e6,
        )
    )
