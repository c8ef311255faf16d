"""Rows recorded from a real model: the policy on them, and its coverage and recall beside the nulls."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest
import torch

from golden.model import Tensor
from golden.record import Measurement
from golden.recorded import RecordedContext, load_recorded
from oracles import witness
from suites.cases import Case, to_golden
from suites.contracts import contract
from suites.runner import Runner
from suites.strategies.witness import assemble

RECORDED = load_recorded()
SEGMENTS = 16

every_context = pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r.name)
def _case(operation: str, recorded: RecordedContext) -> Case:
    learned = to_golden(torch.from_numpy(recorded.learned))
    rows, topk = learned.shape
    return assemble(
        operation,  # type: ignore[arg-type]
        learned=learned,
        lengths=Tensor("int32", (rows,), (recorded.context_len,) * rows, layout="broadcast"),
        segments=SEGMENTS,
        keep=topk - SEGMENTS,
        replacements=SEGMENTS,
    )


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param("topology_witness_indices", marks=contract("witness.indices.slot-per-segment")),
        pytest.param("apply_topology_witnesses", marks=contract("witness.merge.ascending")),
    ],
)
@every_context
def test_real_rows(implementation: Runner, operation: str, recorded: RecordedContext) -> None:
    implementation.judge(_case(operation, recorded))


@contract("witness.serving.parameters")
@every_context
def test_serving_real_rows(
    implementation: Runner,
    recorded: RecordedContext,
    measure: Callable[[Measurement], None],
) -> None:
    """Coverage and recall of what the implementation served, beside the learned row and both nulls.

    All at the budget of the source: as many tokens as the served row has valid slots.
    """
    served = implementation.judge(_case("scatter_topology_witnesses_", recorded))
    length = recorded.context_len
    for selector, select in _SELECTORS.items():
        candidates = [select(recorded, served, row) for row in range(len(recorded.learned))]
        coverage = fmean(
            witness.segment_coverage(_array(tokens), length, SEGMENTS) for tokens in candidates
        )
        recall = fmean(
            witness.attention_mass_recall(_array(tokens), _mass(recorded, row))
            for row, tokens in enumerate(candidates)
        )
        for quantity, value in (("coverage", coverage), ("recall", recall)):
            measure(
                Measurement(implementation.name, recorded.name, quantity, selector, value)
            )


def _budget(served: torch.Tensor, row: int) -> int:
    return int((served[row] >= 0).sum())


_SELECTORS: dict[str, Callable[[RecordedContext, torch.Tensor, int], list[int]]] = {
    "learned": lambda recorded, served, row: recorded.learned[row].tolist(),
    "policy": lambda recorded, served, row: served[row].tolist(),
    "random": lambda recorded, served, row: witness.random_null(
        recorded.context_len, _budget(served, row), seed=row
    ),
    "local": lambda recorded, served, row: witness.locality_null(
        recorded.context_len, _budget(served, row)
    ),
}


def _array(tokens: list[int]) -> Tensor:
    return Tensor("int32", (len(tokens),), tuple(tokens))


def _mass(recorded: RecordedContext, row: int) -> Tensor:
    return to_golden(torch.from_numpy(recorded.attention[row].astype(np.float64)))
