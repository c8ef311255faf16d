"""Robustness: arithmetic, padding, layouts, duplicates, rows that do not mix (R-W1 to R-W6)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from golden.model import Layout, Operation, Tensor
from suites.cases import INDICES, ROWS, Case, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.witness import (
    INT32_MAX,
    INT32_MIN,
    LENGTH_TYPES,
    MERGES,
    ROW_OPERATIONS,
    assemble,
    cases,
)
from suites.witness.rows import rows

every_operation = pytest.mark.parametrize("operation", ROW_OPERATIONS)


@contract("witness.arithmetic.exact")
@every_operation
@given(data=st.data())
def test_products_at_the_limits_of_int32_do_not_wrap(
    implementation: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Lengths and tokens near 2**31 - 1: S times either needs 37 bits, and 62 bits at S = L."""
    near = st.integers(INT32_MAX - 130, INT32_MAX)
    count, topk = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 6))
    learned = data.draw(
        st.lists(
            st.one_of(near, st.integers(0, INT32_MAX), st.integers(2**24 - 3, 2**24 + 3)),
            min_size=count * topk,
            max_size=count * topk,
        )
    )
    lengths = data.draw(st.lists(near, min_size=count, max_size=count))
    case = assemble(
        operation,
        learned=Tensor("int32", (count, topk), tuple(learned)),
        lengths=Tensor(data.draw(st.sampled_from(["int32", "int64"])), (count,), tuple(lengths)),
        segments=data.draw(st.sampled_from([64, 63, 2, 3, 33])),
        keep=data.draw(st.integers(0, topk)),
        replacements=64,
    )
    implementation.judge(case)


@contract("witness.arithmetic.length-types")
@every_operation
@given(data=st.data())
def test_both_types_of_lengths_give_the_same_result(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    lengths = case.tensor("context_lens")
    before, after = (
        implementation_or_oracle.call(
            Case(
                operation,
                {**case.inputs, "context_lens": Tensor(dtype, lengths.shape, lengths.data)},
            )
        )
        for dtype in LENGTH_TYPES
    )
    implementation_or_oracle.require_same(case, before, after, "int32 and int64 lengths differ")


@contract("witness.arithmetic.length-types")
@every_operation
@given(data=st.data())
def test_a_length_past_int32_is_not_narrowed(
    implementation: Runner, operation: Operation, data: st.DataObject
) -> None:
    """So little past it that every left edge of up to 64 segments is an int32 still."""
    length = 2**31 + data.draw(st.integers(0, 2**25), label="past 2**31")
    learned = data.draw(st.lists(st.integers(-1, INT32_MAX), min_size=1, max_size=6))
    case = assemble(
        operation,
        learned=Tensor("int32", (1, len(learned)), tuple(learned)),
        lengths=Tensor("int64", (1,), (length,)),
        segments=data.draw(st.sampled_from([1, 2, 3, 64])),
        replacements=64,
    )
    implementation.judge(case)


@contract("witness.padding.every-negative", "witness.coordinates.padding")
@every_operation
@given(data=st.data())
def test_every_negative_entry_is_padding(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Other negatives in place of -1 move no witness, and come out as they went in."""
    case = data.draw(cases(operation))
    learned = case.tensor(ROWS[operation])
    negatives = data.draw(
        st.lists(
            st.sampled_from([-2, -63, -64, -65, -(2**30), INT32_MIN]),
            min_size=len(learned.data),
            max_size=len(learned.data),
        )
    )
    plain = tuple(max(int(x), -1) for x in learned.data)
    varied = tuple(x if x >= 0 else n for x, n in zip(plain, negatives, strict=True))
    one, other = (
        Case(operation, {**case.inputs, ROWS[operation]: Tensor("int32", learned.shape, entries)})
        for entries in (plain, varied)
    )
    (before,), after = (implementation_or_oracle.call(c) for c in (one, other))
    if operation in MERGES:
        restored = torch.tensor(varied, dtype=torch.int32).reshape(learned.shape)
        original = torch.tensor(plain, dtype=torch.int32).reshape(learned.shape)
        before = torch.where(before == original, restored, before)
    implementation_or_oracle.require_same(other, (before,), after, "a negative is not mere padding")


@contract("witness.segments.indices-any")
@operations(INDICES)
@given(data=st.data())
def test_any_number_of_segments(implementation: Runner, data: st.DataObject) -> None:
    segments = data.draw(
        st.one_of(st.sampled_from([65, 127, 128, 129, 192, 1000]), st.integers(65, 300))
    )
    case = data.draw(cases(INDICES, rows=st.integers(1, 2)))
    implementation.judge(Case(INDICES, {**case.inputs, "num_segments": segments}))


@contract("witness.segments.merge-64")
@pytest.mark.parametrize("operation", MERGES)
@pytest.mark.parametrize("segments", [1, 2, 31, 32, 33, 63, 64])
@given(data=st.data())
@settings(max_examples=15)
def test_segments_up_to_the_width_of_the_mask(
    implementation: Runner, operation: Operation, segments: int, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, rows=st.just(1)))
    implementation.judge(Case(operation, {**case.inputs, "num_segments": segments}))


@contract("witness.segments.merge-64")
@pytest.mark.parametrize("operation", MERGES)
@pytest.mark.parametrize("segments", [2, 32, 33, 63, 64])
def test_the_last_segment_counts_like_any_other(
    implementation: Runner, operation: Operation, segments: int
) -> None:
    """All others hold a learned token, so that its witness is the only one."""
    length = 1000
    edges = [-(-s * length // segments) for s in range(segments)]
    case = assemble(
        operation,
        learned=Tensor("int32", (1, segments), (*edges[:-1], -1)),
        lengths=Tensor("int32", (1,), (length,)),
        segments=segments,
        keep=segments - 1,
        replacements=1,
    )
    (merged,) = implementation.judge(case)
    last = edges[-1] in merged.tolist()[0]
    implementation.require(case, last, "the last segment has no witness", (merged,))


@contract("witness.layout.strides", "witness.layout.outside-untouched", "witness.inputs.unchanged")
@pytest.mark.parametrize("layout", ["contiguous", "offset", "padded", "sliced", "transposed"])
@every_operation
@given(data=st.data())
@settings(max_examples=15)
def test_any_layout_gives_the_same_result_and_stays_inside(
    implementation_or_oracle: Runner, operation: Operation, layout: str, data: st.DataObject
) -> None:
    """The runner watches what surrounds each view, and the inputs; here the values are compared."""
    case = data.draw(cases(operation, layouts=False))
    learned = case.tensor(ROWS[operation])
    moved = Tensor("int32", learned.shape, learned.data, layout=layout)  # type: ignore[arg-type]
    laid_out = Case(operation, {**case.inputs, ROWS[operation]: moved})
    before, after = (implementation_or_oracle.call(c) for c in (case, laid_out))
    implementation_or_oracle.require_same(
        laid_out, before, after, f"the {layout} layout is misread"
    )


@contract("witness.layout.strides")
@every_operation
@pytest.mark.parametrize("layout", ["padded", "sliced", "transposed"])
def test_the_stride_of_a_single_row_is_no_width(
    implementation: Runner, operation: Operation, layout: Layout
) -> None:
    """Torch calls such a row contiguous; a token from beside it would mark the last segment."""
    implementation.judge(
        assemble(
            operation,
            learned=Tensor("int32", (1, 6), (0, 5, -1, -1, -1, -1), layout=layout),
            lengths=Tensor("int32", (1,), (16,)),
            segments=4,
            keep=2,
            replacements=4,
        )
    )


@contract("witness.layout.strides")
@every_operation
@given(data=st.data())
@settings(max_examples=10)
def test_memory_that_is_used_again_is_read_again(
    implementation: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Allocators hand out the same addresses, and other values lie there then."""
    case = data.draw(cases(operation, rows=st.just(2)))
    learned, lengths = case.tensor(ROWS[operation]), case.tensor("context_lens")
    other = {
        ROWS[operation]: replace(learned, data=learned.data[::-1]),
        "context_lens": replace(lengths, data=lengths.data[::-1]),
    }
    implementation.judge_again(case, case.changed(**other))


@contract("witness.layout.strides")
@every_operation
@given(data=st.data())
def test_one_length_broadcast_over_all_rows(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, rows=st.integers(2, 3)))
    count, length = case.tensor("context_lens").shape[0], case.tensor("context_lens").data[0]
    plain, broadcast = (
        Case(
            operation,
            {
                **case.inputs,
                "context_lens": Tensor("int64", (count,), (length,) * count, layout=layout),
            },
        )
        for layout in ("contiguous", "broadcast")
    )
    before, after = (implementation_or_oracle.call(c) for c in (plain, broadcast))
    implementation_or_oracle.require_same(broadcast, before, after, "a broadcast length is misread")


@contract("witness.layout.strides")
@pytest.mark.parametrize("strides", [(2**30, 1), (1, 2**29)], ids=["rows", "slots"])
@every_operation
def test_rows_and_slots_may_be_gigabytes_apart(
    implementation: Runner, operation: Operation, strides: tuple[int, int]
) -> None:
    """The last of each begins where 31 bits end. What lies between is never touched."""
    case = assemble(
        operation,
        learned=Tensor("int32", (3, 5), (9, -1, 0, 5, 2, 7, 7, -1, 3, 30, -1, 1, 15, 8, 4)),
        lengths=Tensor("int64", (3,), (16, 11, 23)),
        segments=4,
        keep=2,
        replacements=3,
    )
    near, name = implementation.judge(case), ROWS[operation]
    values = to_torch(case.tensor(name))
    buffer = torch.empty(2**31 + 8, dtype=torch.int32, device=implementation.device)
    far = buffer.as_strided(values.shape, strides).copy_(values)
    results = implementation.place(case, large={name: far})()
    implementation.require_same(
        case, near, tuple(result.cpu() for result in results), f"{name} is misread where it is wide"
    )


@contract("witness.duplicates.accepted")
@every_operation
@pytest.mark.parametrize("count", [256, 128, 2**16])
def test_a_token_repeated_until_a_small_counter_wraps(
    implementation: Runner, operation: Operation, count: int
) -> None:
    """In 8 or 16 bits so many marks are none, or fewer than none."""
    implementation.judge(
        assemble(
            operation,
            learned=Tensor("int32", (1, count), (7,) * count),
            lengths=Tensor("int32", (1,), (16,)),
            segments=4,
            keep=count - 4,
            replacements=4,
        )
    )


@contract("witness.duplicates.accepted")
@every_operation
@given(data=st.data())
def test_repeated_tokens_count_once(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Padding replaced by repeats of the row's first token moves no witness."""
    case = data.draw(cases(operation, tokens="distinct", rows=st.just(1)))
    learned = [int(x) for x in case.tensor(ROWS[operation]).data]
    topk = len(learned)
    first = next((x for x in learned if x >= 0), -1)
    repeated = [x if x >= 0 else first for x in learned]
    twin = Case(
        operation,
        {**case.inputs, ROWS[operation]: Tensor("int32", (1, topk), tuple(repeated))},
    )
    (before,), after = (implementation_or_oracle.call(c) for c in (case, twin))
    if operation in MERGES:
        untouched = before == torch.tensor([learned], dtype=torch.int32).reshape(1, topk)
        before = torch.where(
            untouched, torch.tensor([repeated], dtype=torch.int32).reshape(1, topk), before
        )
    implementation_or_oracle.require_same(twin, (before,), after, "a repeated token counts twice")


@contract("witness.rows.independent")
@every_operation
@given(data=st.data())
def test_a_row_alone_equals_the_row_in_a_batch_in_any_order(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation, rows=st.integers(1, 4)))
    (batch,) = implementation_or_oracle.call(case)
    count = batch.shape[0]
    order = data.draw(st.permutations(range(count)), label="row order")
    shuffled = _select(case, order)
    implementation_or_oracle.require_same(
        shuffled, (batch[order],), implementation_or_oracle.call(shuffled), "row order matters"
    )
    alone = data.draw(st.integers(0, count - 1), label="row alone")
    single = _select(case, [alone])
    implementation_or_oracle.require_same(
        single, (batch[[alone]],), implementation_or_oracle.call(single), "its batch mates matter"
    )


def _select(case: Case, order: list[int]) -> Case:
    name = ROWS[case.operation]
    learned, lengths = case.tensor(name), case.tensor("context_lens")
    topk = learned.shape[1]
    entries = tuple(x for r in order for x in learned.data[r * topk : (r + 1) * topk])
    return Case(
        case.operation,
        {
            **case.inputs,
            name: Tensor("int32", (len(order), topk), entries),
            "context_lens": Tensor(
                lengths.dtype, (len(order),), tuple(lengths.data[r] for r in order)
            ),
        },
    )


@contract("witness.out-of-range.marks")
@operations(INDICES)
@given(case=cases(INDICES, rows=st.just(1), shortest=1), beyond=st.integers(0, INT32_MAX))
def test_an_entry_past_the_context_marks_the_segment_it_clamps_to(
    implementation_or_oracle: Runner, case: Case, beyond: int
) -> None:
    """With S_eff = S it takes the last segment's witness away; with S_eff < S, nobody's."""
    length, segments = int(case.tensor("context_lens").data[0]), case.number("num_segments")
    token = min(length + beyond, INT32_MAX)
    past = Tensor("int32", (1, 1), (token,))
    alone = Case(INDICES, {**case.inputs, "learned_indices": past})
    for row in rows(alone, implementation_or_oracle.call(alone)):
        marked = {segments - 1} if row.effective == segments else set()
        occupied = {s for s, slot in enumerate(row.result[: row.effective]) if slot < 0}
        row.require(
            occupied == marked,
            f"segments {sorted(occupied)} count as occupied, not {sorted(marked)}",
        )
