"""Rows recorded from a real model: the policy on them, and how it fares beside the nulls."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest
import torch

from golden.model import Operation, Tensor
from golden.record import Measurement
from golden.recorded import RecordedContext, load_recorded
from oracles import witness
from suites.cases import APPLY, SERVE, Case, to_golden
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import assemble

RECORDED = load_recorded()
SEGMENTS = 16

every_context = pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r.name)


def _case(operation: Operation, recorded: RecordedContext) -> Case:
    learned = to_golden(torch.from_numpy(recorded.learned))
    rows, topk = learned.shape
    return assemble(
        operation,
        learned=learned,
        lengths=Tensor("int32", (rows,), (recorded.context_len,) * rows, layout="broadcast"),
        segments=SEGMENTS,
        keep=topk - SEGMENTS,
        replacements=SEGMENTS,
    )


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(
            "topology_witness_indices", marks=contract("witness.indices.slot-per-segment")
        ),
        pytest.param(APPLY, marks=contract("witness.merge.ascending")),
    ],
)
@every_context
def test_real_rows(implementation: Runner, operation: Operation, recorded: RecordedContext) -> None:
    implementation.judge(_case(operation, recorded))


@contract("witness.serving.parameters")
@operations(SERVE)
@every_context
def test_serving_real_rows(
    implementation: Runner,
    recorded: RecordedContext,
    measure: Callable[[Measurement], None],
) -> None:
    """Coverage and recall of what the implementation served, beside the learned row and both nulls.

    All at the budget of the source: as many tokens as the served row has valid slots.
    """
    (served,) = implementation.judge(_case(SERVE, recorded))
    subject = f"L {recorded.context_len}, topk {recorded.learned.shape[1]}, S {SEGMENTS}"
    for selector, select in SELECTORS.items():
        figures = [
            _figures(recorded, row, select(recorded, served, row))
            for row in range(len(recorded.learned))
        ]
        coverages, recalls = zip(*figures, strict=True)
        for quantity, value in (("coverage", fmean(coverages)), ("recall", fmean(recalls))):
            measure(Measurement(implementation.name, subject, quantity, selector, value))


def _figures(recorded: RecordedContext, row: int, tokens: list[int]) -> tuple[float, float]:
    """Coverage and recall of one selection of tokens, by the oracle."""
    candidates = Tensor("int32", (len(tokens),), tuple(tokens))
    mass = to_golden(torch.from_numpy(recorded.attention[row].astype(np.float64)))
    length = recorded.context_len
    coverage = Case(
        "segment_coverage",
        {"candidates": candidates, "context_len": length, "num_segments": SEGMENTS},
    )
    recall = Case("attention_mass_recall", {"candidates": candidates, "attention_row": mass})
    return coverage.expected()[0].item(), recall.expected()[0].item()


def _budget(served: torch.Tensor, row: int) -> int:
    return int((served[row] >= 0).sum())


Select = Callable[[RecordedContext, torch.Tensor, int], list[int]]
SELECTORS: dict[str, Select] = {
    "learned": lambda recorded, served, row: recorded.learned[row].tolist(),
    "policy": lambda recorded, served, row: served[row].tolist(),
    "random": lambda recorded, served, row: witness.random_null(
        recorded.context_len, _budget(served, row), seed=row
    ),
    "local": lambda recorded, served, row: witness.locality_null(
        recorded.context_len, _budget(served, row)
    ),
}
