"""The strategies draw what they are there for."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from golden.model import Operation, Tensor
from oracles.witness import edge
from suites.cases import APPLY, INDICES, ROWS, SERVE, Case
from suites.strategies.witness import (
    INT32_MAX,
    INT32_MIN,
    ROW_OPERATIONS,
    cases,
    large_cases,
)

search = settings(
    max_examples=3000,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def learned(case: Case) -> Tensor:
    return case.tensor(ROWS[case.operation])


def entries(case: Case) -> list[int]:
    return case.integers(ROWS[case.operation])


def lengths(case: Case) -> list[int]:
    return case.integers("context_lens")


def segments(case: Case) -> int:
    return case.number("num_segments")


def near_edges(case: Case, beside: int) -> bool:
    """Whether a learned entry lies ``beside`` an inner edge of its row."""
    topk = learned(case).shape[1]
    for row, length in enumerate(lengths(case)):
        effective = min(segments(case), length)
        inner = {edge(s, length, effective) + beside for s in range(1, effective)}
        if effective > 2 and inner & set(entries(case)[row * topk : (row + 1) * topk]):
            return True
    return False


PROMISES: dict[str, Callable[[Case], bool]] = {
    "no rows": lambda case: learned(case).shape[0] == 0,
    "one row": lambda case: learned(case).shape[0] == 1,
    "rows of several lengths": lambda case: len(set(lengths(case))) > 1,
    "topk of none": lambda case: learned(case).shape[1] == 0,
    "topk of one": lambda case: learned(case).shape[1] == 1,
    "topk below S": lambda case: 0 < learned(case).shape[1] < segments(case),
    "topk of S": lambda case: learned(case).shape[1] == segments(case) > 8,
    "topk past S": lambda case: learned(case).shape[1] > segments(case) > 8,
    "S of one": lambda case: segments(case) == 1,
    "S of 64": lambda case: segments(case) == 64,
    "L of 0": lambda case: 0 in lengths(case),
    "L of 1": lambda case: 1 in lengths(case),
    "L negative": lambda case: any(n < 0 for n in lengths(case)),
    "L of S - 1": lambda case: segments(case) > 4 and segments(case) - 1 in lengths(case),
    "L of S": lambda case: segments(case) > 4 and segments(case) in lengths(case),
    "L of S + 1": lambda case: segments(case) > 4 and segments(case) + 1 in lengths(case),
    "L of 2**31 - 1": lambda case: INT32_MAX in lengths(case),
    "int32 lengths": lambda case: case.tensor("context_lens").dtype == "int32",
    "int64 lengths": lambda case: case.tensor("context_lens").dtype == "int64",
    "broadcast lengths": lambda case: case.tensor("context_lens").layout == "broadcast",
    "sliced lengths": lambda case: case.tensor("context_lens").layout == "sliced",
    "a token at an edge": lambda case: near_edges(case, 0),
    "a token before an edge": lambda case: near_edges(case, -1),
    "a token past an edge": lambda case: near_edges(case, 1),
    "a repeated token": lambda case: any(
        entries(case).count(x) > 1 for x in entries(case) if x >= 0
    ),
    "padding": lambda case: -1 in entries(case),
    "another negative": lambda case: any(x < -1 for x in entries(case)),
    "the least int32": lambda case: INT32_MIN in entries(case),
    "the largest int32": lambda case: INT32_MAX in entries(case),
    "a token at L": lambda case: any(0 < n == x for n in lengths(case) for x in entries(case)),
    "offset rows": lambda case: learned(case).layout == "offset",
    "padded rows": lambda case: learned(case).layout == "padded",
    "sliced rows": lambda case: learned(case).layout == "sliced",
    "transposed rows": lambda case: learned(case).layout == "transposed",
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("operation", ROW_OPERATIONS)
def test_a_promise_is_kept(operation: Operation, promise: str) -> None:
    found = find(cases(operation), PROMISES[promise], settings=search)
    assert PROMISES[promise](found)


OF_THE_MERGE: dict[str, Callable[[Case], bool]] = {
    "nothing kept": lambda case: case.number("learned_keep") == 0 < learned(case).shape[1],
    "everything kept": lambda case: case.number("learned_keep") == learned(case).shape[1] > 1,
    "no replacement": lambda case: case.number("max_replacements") == 0,
    "more replacements than room": lambda case: (
        case.number("max_replacements") > learned(case).shape[1]
    ),
}


@pytest.mark.parametrize("promise", OF_THE_MERGE)
def test_a_promise_of_the_merge_is_kept(promise: str) -> None:
    find(cases(APPLY), OF_THE_MERGE[promise], settings=search)


def test_the_indices_have_more_segments_than_a_mask_has_bits() -> None:
    find(cases(INDICES), lambda case: segments(case) > 64, settings=search)
    with pytest.raises(NoSuchExample):
        find(
            cases(SERVE),
            lambda case: segments(case) > 64,
            settings=settings(search, max_examples=200),
        )


@given(case=st.sampled_from(ROW_OPERATIONS).flatmap(lambda o: cases(o, tokens="legal")))
def test_legal_tokens_lie_in_their_context(case: Case) -> None:
    topk = learned(case).shape[1]
    for row, length in enumerate(lengths(case)):
        own = entries(case)[row * topk : (row + 1) * topk]
        assert all(x == -1 or 0 <= x < length for x in own)


@given(case=st.sampled_from(ROW_OPERATIONS).flatmap(lambda o: cases(o, tokens="distinct")))
def test_distinct_tokens_do_not_repeat(case: Case) -> None:
    topk = learned(case).shape[1]
    for row in range(learned(case).shape[0]):
        own = [x for x in entries(case)[row * topk : (row + 1) * topk] if x >= 0]
        assert len(own) == len(set(own))


@given(case=large_cases(SERVE, rows=20, topks=(64,)))
@settings(max_examples=5)
def test_large_rows_leave_some_segments_empty_and_mark_others(case: Case) -> None:
    """Neither all witnesses nor none, or a large case would say nothing."""
    changed = case.expected()[0].flatten() != torch.tensor(entries(case))
    assert 0 < int(changed.sum()) < 20 * 64
