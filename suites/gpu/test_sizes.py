"""Tensors past 2^31 elements: every offset takes more than 31 bits (R-W5, R-X15)."""

from typing import Final, get_args

import pytest
import torch

from golden.model import Operation
from suites.cases import APPLY, INDICES, ROWS, SERVE
from suites.contracts import contract
from suites.gpu import giants
from suites.gpu.device import Device
from suites.gpu.giants import SENTINEL, Arrangement, Rows
from suites.gpu.rows import Policy, few, witnesses
from suites.runner import Runner
from suites.verdicts import Nonconformance

WRAP: Final = 2**31
TOPK: Final = 2048
COLUMNS: Final = 2**15
SEGMENTS: Final = 64


def require_memory(device: Device, needed: int) -> None:
    """Leave the test where a device has less memory than that, in bytes."""
    free = device.free_bytes()
    if free < needed:
        pytest.skip(
            f"{device.name} has {free / 2**30:.1f} GiB free, and this takes {needed / 2**30:.1f}"
        )


# --- the witness family --------------------------------------------------------------------------


def require_rows_past(
    runner: Runner,
    device: Device,
    operation: Operation,
    arrangement: Arrangement,
    wrap: int,
    topk: int,
) -> None:
    """Require the right result for rows of which the last lie past ``wrap`` elements.

    All rows are judged on the device; the first, the last and those around the wrap by the oracle.
    """
    copies = 1 + (operation == APPLY and arrangement != "apart")
    require_memory(device, 4 * wrap * copies + 64 * giants.PART)
    rows = giants.rows_past(wrap, topk, arrangement, device.name)
    segments = min(SEGMENTS, topk)
    policy = Policy(operation, segments, topk - segments, segments)
    telling = rows.telling
    case = policy.case(few(rows.learned, telling), few(rows.lengths, telling))
    large = {ROWS[operation]: rows.learned, "context_lens": rows.lengths}
    (actual,) = runner.place(case, large=large)()
    device.synchronize()
    sampled = (few(actual, telling),)
    runner.require_close(case, case.expected(), sampled, (None,), f"past {wrap:,} elements")
    _require_all(rows, policy, actual)
    _require_gaps(rows, policy, telling)
    runner.cases += len(rows.learned)


def _require_all(rows: Rows, policy: Policy, actual: torch.Tensor) -> None:
    for first, end in rows.parts():
        learned, lengths = rows.original(first, end), rows.lengths[first:end]
        expected = policy.expected(learned, witnesses(learned, lengths, policy.segments))
        wrong = (actual[first:end] != expected).any(1).nonzero().flatten().tolist()
        if wrong:
            found = wrong[:1]
            raise Nonconformance(
                f"row {first + found[0]:,} of {len(actual):,} is wrong",
                policy.case(few(learned, found), few(lengths, found)),
                expected=(few(expected, found),),
                actual=(few(actual[first:end], found),),
                row=0,
            )


def _require_gaps(rows: Rows, policy: Policy, telling: list[int]) -> None:
    """Require that what lies between the rows is as it was."""
    parts = torch.split(rows.memory, giants.PART)
    changed = sum(int((part != SENTINEL).sum()) for part in parts) - rows.learned.numel()
    if changed:
        case = policy.case(few(rows.learned, telling), few(rows.lengths, telling))
        raise Nonconformance(f"{changed:,} elements between the rows changed", case)


@contract("witness.layout.strides")
@pytest.mark.parametrize("arrangement", get_args(Arrangement))
@pytest.mark.parametrize("operation", [INDICES, APPLY, SERVE])
def test_rows_past_two_to_the_31_elements(
    implementation: Runner, device: Device, operation: Operation, arrangement: Arrangement
) -> None:
    require_rows_past(implementation, device, operation, arrangement, WRAP, TOPK)


# --- XAttention ----------------------------------------------------------------------------------


def require_scores_past(
    runner: Runner, device: Device, operation: Operation, wrap: int, columns: int
) -> None:
    """Require the right result for scores of which there are more than ``wrap``.

    The first rows, the last and those where the wrap is are judged, by the oracle.
    """
    require_memory(device, 2 * wrap + 64 * giants.PART)
    scores = giants.scores_past(operation, wrap, columns, device.name)
    first, *_ = scores.telling
    case = scores.case(first).changed(**scores.inputs)
    results = runner.place(case, large=scores.tensors)()
    device.synchronize()
    for block in scores.telling:
        case = scores.case(block)
        rows = scores.rows_of_result(block)
        actual = tuple(result[:, :, rows].cpu() for result in results)
        bounds = case.bounds(runner.implementation.dot)
        runner.require_close(
            case, case.expected(), actual, bounds, f"past {wrap:,} scores, block of rows {block:,}"
        )
        runner.cases += 1


@contract("xattention.addressing.wide-offsets")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", giants.OPERATIONS)
def test_scores_past_two_to_the_31_elements(
    implementation: Runner, device: Device, operation: Operation
) -> None:
    require_scores_past(implementation, device, operation, WRAP, COLUMNS)
