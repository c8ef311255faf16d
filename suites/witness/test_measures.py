"""Null models and metrics: of the oracle, and of every implementation that exports them."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.model import Operation, Tensor
from oracles.witness import local_row, random_row
from suites.cases import Case, to_golden
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import INT32_MAX

short_lengths = st.one_of(st.integers(-2, 5), st.integers(0, 300))
budgets = st.one_of(st.integers(0, 5), st.integers(0, 320))
seeds = st.one_of(st.sampled_from([0, 1, 42, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
nulls = pytest.mark.parametrize("operation", ["random_null", "locality_null"])


def _null(operation: Operation, length: int, budget: int, seed: int) -> Case:
    inputs: dict[str, Tensor | int] = {"context_len": length, "budget": budget}
    return Case(operation, inputs | ({"seed": seed} if operation == "random_null" else {}))


@contract("witness.null.budget")
@nulls
@given(length=short_lengths, budget=budgets, seed=seeds)
def test_a_null_spends_exactly_its_budget(
    implementation_or_oracle: Runner, operation: Operation, length: int, budget: int, seed: int
) -> None:
    case = _null(operation, length, budget, seed)
    drawn = implementation_or_oracle.call(case)
    tokens: list[int] = drawn[0].tolist()
    implementation_or_oracle.require(
        case,
        len(tokens) == min(budget, max(length, 0))
        and tokens == sorted(set(tokens))
        and all(0 <= x < length for x in tokens),
        "not min(budget, L) distinct tokens of the context, ascending",
        drawn,
    )


@contract("witness.null.locality", "witness.null.last-row", "witness.null.random-exact")
@nulls
@given(length=st.integers(1, 300), budget=budgets, seed=seeds)
def test_a_null_is_the_last_row_of_its_causal_selector(
    implementation_or_oracle: Runner, operation: Operation, length: int, budget: int, seed: int
) -> None:
    case = _null(operation, length, budget, seed)
    query = length - 1
    last = random_row(query, budget, seed) if "seed" in case.inputs else local_row(query, budget)
    implementation_or_oracle.judge(case, case.results(last))


@st.composite
def _candidates(draw: st.DrawFn, length: int) -> Tensor:
    """Tokens of the context, repeats, padding, and entries past it."""
    inside = st.integers(0, max(length - 1, 0))
    outside = st.sampled_from([-1, -7, max(length, 0), INT32_MAX])
    row = draw(st.lists(st.one_of(inside, inside, outside), max_size=12))
    return Tensor("int32", (len(row),), tuple(row))


@operations("segment_coverage")
@contract("witness.metric.coverage", "witness.metric.coverage-empty", "witness.metric.ignored")
@given(data=st.data())
def test_coverage_counts_the_segments_that_a_candidate_meets(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    """By definition, without the segment map: the segments are intervals, and looked into."""
    length = data.draw(st.one_of(st.integers(-2, 70), st.integers(1, 3000)))
    segments = data.draw(st.integers(0, 70))
    candidates = data.draw(_candidates(length))
    case = Case(
        "segment_coverage",
        {"candidates": candidates, "context_len": length, "num_segments": segments},
    )
    effective = min(segments, max(length, 0))
    edges = [-(-s * length // effective) for s in range(effective + 1)] if effective else []
    met = [
        any(first <= x < last for x in case.integers("candidates"))
        for first, last in pairwise(edges)
    ]
    share = sum(met) / effective if effective else 1.0
    implementation_or_oracle.judge(case, case.results(share))


def _recall(candidates: Tensor, mass: list[float]) -> Case:
    row = to_golden(torch.tensor(mass, dtype=torch.float64))
    return Case("attention_mass_recall", {"candidates": candidates, "attention_row": row})


@operations("attention_mass_recall")
@contract("witness.metric.recall", "witness.metric.ignored")
@given(data=st.data())
def test_recall_is_the_share_of_mass_on_distinct_candidates(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    """Dyadic masses, so that every sum is exact and any order of summation gives the same."""
    eighths = data.draw(st.lists(st.integers(0, 64), min_size=1, max_size=40))
    candidates = data.draw(_candidates(len(eighths)))
    total = sum(eighths)
    held = sum(eighths[x] for x in {int(c) for c in candidates.data} if 0 <= x < len(eighths))
    expected = held / total if total else float("nan")
    case = _recall(candidates, [n / 8 for n in eighths])
    implementation_or_oracle.judge(case, case.results(expected))


@operations("attention_mass_recall")
@contract("witness.metric.recall-no-mass")
@given(data=st.data(), length=st.integers(0, 20))
def test_a_row_without_mass_has_no_recall(
    implementation_or_oracle: Runner, data: st.DataObject, length: int
) -> None:
    case = _recall(data.draw(_candidates(length)), [0.0] * length)
    implementation_or_oracle.judge(case, case.results(float("nan")))


@operations("segment_of")
@contract("witness.segment-map.exact", "witness.out-of-range.marks")
@given(
    token=st.integers(0, INT32_MAX), length=st.integers(1, INT32_MAX), segments=st.integers(1, 200)
)
def test_the_segment_map_is_the_interval_that_holds_the_token(
    implementation_or_oracle: Runner, token: int, length: int, segments: int
) -> None:
    effective = min(segments, length)
    edges = [-(-s * length // effective) for s in range(effective + 1)]
    inside = [s for s in range(effective) if edges[s] <= token < edges[s + 1]]
    case = Case("segment_of", {"token": token, "context_len": length, "num_segments": segments})
    actual = implementation_or_oracle.call(case)
    segment = int(actual[0])
    implementation_or_oracle.require(
        case,
        [segment] == inside if inside else effective - 1 <= segment < segments,
        "not the segment whose interval holds the token, nor a clamp past the last",
        actual,
    )
