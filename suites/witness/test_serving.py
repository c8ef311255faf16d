"""The serving entry, the disabled forms and the fallbacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.model import Operation, Tensor
from suites.cases import APPLY, INDICES, ROWS, SERVE, Case, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import MERGES, ROW_OPERATIONS, cases
from suites.witness.rows import rows

merges = pytest.mark.parametrize("operation", MERGES)
every_operation = pytest.mark.parametrize("operation", ROW_OPERATIONS)


@contract("witness.serving.parameters", "witness.serving.in-place")
@operations(APPLY, SERVE)
@given(case=cases(SERVE))
def test_serving_is_the_merge_with_s_reserved_slots(
    implementation_or_oracle: Runner, case: Case
) -> None:
    buffer, segments = case.tensor("topk_indices"), case.number("num_segments")
    merge = Case(
        APPLY,
        {
            "learned_indices": buffer,
            "context_lens": case.tensor("context_lens"),
            "learned_keep": max(buffer.shape[1] - segments, 0),
            "num_segments": segments,
            "max_replacements": segments,
        },
    )
    implementation_or_oracle.judge(case, implementation_or_oracle.call(merge))


@contract("witness.disabled.off-switch")
@operations(SERVE)
@given(case=cases(SERVE))
def test_zero_segments_touch_nothing(implementation_or_oracle: Runner, case: Case) -> None:
    off = Case(SERVE, {**case.inputs, "num_segments": 0})
    implementation_or_oracle.judge(off, (to_torch(off.tensor("topk_indices")),))


@contract("witness.disabled.zero-budget")
@operations(APPLY)
@given(case=cases(APPLY), full=st.booleans())
def test_no_budget_returns_the_learned_rows(
    implementation_or_oracle: Runner, case: Case, full: bool
) -> None:
    topk = case.tensor("learned_indices").shape[1]
    none = {"learned_keep": topk} if full else {"max_replacements": 0}
    disabled = Case(APPLY, {**case.inputs, **none})
    for row in rows(disabled, implementation_or_oracle.call(disabled)):
        row.require(not row.changed, "a slot changed without a budget")


@contract("witness.disabled.no-rows")
@every_operation
@given(data=st.data())
def test_no_rows_give_no_rows(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    implementation_or_oracle.judge(data.draw(cases(operation, rows=st.just(0))))


@contract("witness.fallback.no-context")
@every_operation
@given(data=st.data())
def test_a_row_without_context_gets_no_witness(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    count = case.tensor("context_lens").shape[0]
    lengths = data.draw(
        st.lists(st.sampled_from([0, -1, -3, -(2**31)]), min_size=count, max_size=count)
    )
    empty = Case(
        operation, {**case.inputs, "context_lens": Tensor("int32", (count,), tuple(lengths))}
    )
    for row in rows(empty, implementation_or_oracle.call(empty)):
        unchanged = row.learned if operation in MERGES else [-1] * len(row.result)
        row.require(row.result == unchanged, "a row with L <= 0 got a witness")


@contract("witness.fallback.short-context")
@operations(INDICES)
@given(data=st.data())
def test_in_a_short_context_every_missing_token_is_a_witness(
    implementation_or_oracle: Runner, data: st.DataObject
) -> None:
    case = data.draw(cases(INDICES, tokens="legal"))
    segments, count = case.number("num_segments"), case.tensor("context_lens").shape[0]
    learned = case.tensor(ROWS[case.operation])
    lengths = data.draw(st.lists(st.integers(1, segments), min_size=count, max_size=count))
    folded = tuple(
        int(x) % lengths[i // learned.shape[1]] if int(x) >= 0 else -1
        for i, x in enumerate(learned.data)
    )
    short = Case(
        case.operation,
        {
            "context_lens": Tensor("int32", (count,), tuple(lengths)),
            "learned_indices": Tensor("int32", learned.shape, folded),
            "num_segments": segments,
        },
    )
    for row in rows(short, implementation_or_oracle.call(short)):
        missing = [x if x not in row.learned else -1 for x in range(row.length)]
        padding = [-1] * (segments - row.length)
        row.require(row.result == missing + padding, "not exactly the tokens that are missing")
