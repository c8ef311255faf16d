"""Inputs past every cache: the same again each time, and rows as they are alone."""

from typing import Final

import pytest
import torch

from golden.model import Operation
from suites.cases import Bounds, Case, Results
from suites.comparison import agree, same_bits
from suites.contracts import DEFINED_BY, contract
from suites.gpu.batches import Batch, batch
from suites.gpu.device import Device
from suites.runner import Runner
from suites.verdicts import Nonconformance

SIZE: Final = 256 * 2**20  # bytes of input: no level-2 cache is as large
REPEATS: Final = 50

every_operation = pytest.mark.parametrize(
    "operation", [pytest.param(o, marks=contract(id_)) for o, id_ in DEFINED_BY.items()]
)


def require_repeatable(
    runner: Runner, device: Device, operation: Operation, size: int, repeats: int
) -> None:
    """Require a call to give the same bits each time."""
    made = batch(runner, operation, size)
    inputs = {name: tensor.clone() for name, tensor in made.call.tensors.items()}

    def once() -> Results:
        for name, tensor in inputs.items():
            made.call.tensors[name].copy_(tensor)  # one that works in place has changed it
        return tuple(result.clone() for result in made.call())

    first = once()
    for number in range(2, repeats + 1):
        again = once()
        device.synchronize()
        if not same_bits(first, again):
            copy, part = _first_that_differs(made, first, again)
            expected, actual = (
                tuple(r[copy, part].cpu() for r in made.of(results)) for results in (first, again)
            )
            raise Nonconformance(
                f"call {number} gives other bits than the first (expected: of the first)",
                made.parts[part],
                expected=expected,
                actual=actual,
            )
        runner.cases += 1


def _first_that_differs(made: Batch, one: Results, other: Results) -> tuple[int, int]:
    pairs = zip(made.of(one), made.of(other), strict=True)
    differ = torch.stack([(~agree(a, b)).flatten(2).any(2) for a, b in pairs]).any(0)
    # NaN of other bits, or zeros of other signs, are equal to `agree`: then any part will do.
    places = differ.nonzero().tolist() or [[0, 0]]
    return places[0][0], places[0][1]


def require_rows_as_alone(runner: Runner, device: Device, operation: Operation, size: int) -> None:
    """Require every row in a large batch to be what it is in a call of its own."""
    made = batch(runner, operation, size)
    alone = [runner.judge(part) for part in made.parts]
    results = made.of(made.call())
    device.synchronize()
    for number, (part, expected) in enumerate(zip(made.parts, alone, strict=True)):
        bounds = _between_two(runner, part)
        for copy in _that_differ(results, number, expected, bounds):
            actual = tuple(result[copy, number].cpu() for result in results)
            statement = f"its batch mates matter, {copy} times {len(made.parts)} of them before it"
            runner.require_close(part, expected, actual, bounds, statement)
    runner.cases += made.copies * len(made.parts)


def _between_two(runner: Runner, case: Case) -> Bounds:
    """How far two honest results may be apart."""
    bounds = case.bounds(runner.implementation.dot)
    return tuple(None if bound is None else 2 * bound for bound in bounds)


def _that_differ(results: Results, part: int, expected: Results, bounds: Bounds) -> list[int]:
    """The copies of a part that are not as expected, found where they are."""
    copies: set[int] = set()
    for result, wanted, bound in zip(results, expected, bounds, strict=True):
        here = result[:, part]
        limit = None if bound is None else bound.to(here.device)
        wrong = ~agree(wanted.to(here.device).expand_as(here), here, limit)
        copies.update(wrong.flatten(1).any(1).nonzero().flatten().tolist())
    return sorted(copies)


@every_operation
def test_fifty_calls_give_the_same_bits(
    implementation: Runner, device: Device, operation: Operation
) -> None:
    require_repeatable(implementation, device, operation, SIZE, REPEATS)


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(o, marks=contract(f"{id_.partition('.')[0]}.rows.independent"))
        for o, id_ in DEFINED_BY.items()
    ],
)
def test_a_row_in_a_batch_past_the_cache_is_as_alone(
    implementation: Runner, device: Device, operation: Operation
) -> None:
    require_rows_as_alone(implementation, device, operation, SIZE)
