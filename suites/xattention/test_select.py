"""The selection of blocks: what is stated of the result, by exact fractions of the sums (R-X12)."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import cycle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import FloatType, Operation, Tensor, Value
from golden.record import Measurement
from oracles.bounds import Dot
from suites.cases import ESTIMATE, SELECT, Case, real, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import DTYPES, estimate_cases, select_cases
from suites.xattention.selections import (
    Row,
    diagonal_of_first_row,
    require,
    require_selected,
    require_threshold,
    sums_of,
    with_sums,
)

alone = st.just(1)
some = settings(max_examples=15)

# Rows that see more than one block, of one batch entry: what else there is has a contract of its
# own.
causal = select_cases(
    causal=True, batch=alone, k_blocks=st.sampled_from([4, 2, 3, 5, 8, 9, 17, 70]), first=1
)
everywhere = select_cases(
    causal=False, batch=alone, k_blocks=st.sampled_from([4, 2, 3, 5, 8, 9, 17])
)


def estimates(*, is_causal: bool) -> st.SearchStrategy[Case]:
    """Of several blocks of keys and one batch entry, in one chunk, which saves launches.

    Block sums are fp32: an implementation selects by those that it returns.
    """
    cases = estimate_cases(dtype="float32", causal=is_causal, whole=True)
    several = cases.filter(lambda c: c.tensor("key_states").shape[2] > c.number("block_size"))
    return several.map(_of_first_entry)


def _of_first_entry(case: Case) -> Case:
    states = {
        name: to_golden(to_torch(case.tensor(name))[:1]) for name in ("query_states", "key_states")
    }
    return case.changed(**states, chunk_size=1000 * case.number("block_size"))


# --- the threshold -------------------------------------------------------------------------------


@contract("xattention.select.threshold")
@operations(SELECT)
@given(case=causal)
@settings(max_examples=30)
def test_a_block_is_selected_while_the_mass_before_it_is_below_the_threshold(
    implementation_or_oracle: Runner, case: Case
) -> None:
    results = implementation_or_oracle.call(case)
    require_threshold(implementation_or_oracle, case, results)


@contract("xattention.select.threshold")
@operations(ESTIMATE)
@given(case=estimates(is_causal=True))
@settings(max_examples=8)
def test_an_estimate_selects_by_its_block_sums(
    implementation_or_oracle: Runner, case: Case
) -> None:
    results = implementation_or_oracle.call(case)
    require_threshold(implementation_or_oracle, case, results)


# Rows whose total is a power of 2, and thresholds that some blocks reach exactly: every number on
# the way to a decision has a few bits, so no fp32 computation rounds, a division by the total
# included.
EXACT: list[tuple[list[float], int, float, set[int]]] = [
    # sums, the diagonal block, the threshold, what is selected
    ([2, 4, 1, 1], 3, 0.375, {0, 3}),  # M is 3 of 8: reached
    ([2, 4, 1, 1], 3, 0.4375, {0, 1, 3}),
    ([2, 4, 1, 1], 3, 0.875, {0, 1, 3}),  # M and block 1 are 7 of 8
    ([2, 4, 1, 1], 3, 0.9375, {0, 1, 2, 3}),
    ([1, 0.5, 4, 2, 0.5, 0], 5, 0.625, {0, 2, 5}),  # M is 1 of 8, with block 2 it is 5
    ([1, 0.5, 4, 2, 0.5, 0], 5, 0.875, {0, 2, 3, 5}),
    ([1, 0.5, 4, 2, 0.5, 8], 4, 0.1875, {0, 4}),  # what is after the diagonal is no part of it
    ([0, 3, 0, 1], 3, 0.25, {0, 3}),
    ([0, 3, 0, 1], 3, 0.28125, {0, 1, 3}),
    ([0, 0, 1, 0], 3, 1.0, {0, 2, 3}),
]


@contract("xattention.select.threshold")
@operations(SELECT)
@pytest.mark.parametrize("scale", [1.0, 2.0**-10, 2.0**10], ids=["ones", "small", "large"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reaching_the_threshold_is_not_being_below_it(
    implementation_or_oracle: Runner, dtype: FloatType, scale: float
) -> None:
    for row, diagonal, threshold, wanted in EXACT:
        sums = scale * torch.tensor(row, dtype=getattr(torch, dtype)).reshape(1, 1, 1, -1)
        inputs = {"input_tensor": to_golden(sums), "threshold": real(threshold)}
        case = Case(SELECT, {**inputs, "current_index": diagonal, "causal": True})
        require(
            implementation_or_oracle,
            case,
            implementation_or_oracle.call(case),
            f"beside the mandatory blocks others are selected than {sorted(wanted)}",
            lambda row: row.chosen == wanted - row.mandatory,  # noqa: B023 - called at once
        )


NARROW: list[tuple[list[float], int, float, set[int]]] = [
    ([0.5, 1, 1 + 2**-12, 0.5], 3, 0.5, {0, 2, 3}),  # equal in fp16 and in tf32
    ([0.5, 1 + 2**-12, 1, 0.5], 3, 0.5, {0, 1, 3}),
    ([8999, 1000, 0.5, 0.5], 3, 0.9, {0, 1, 3}),  # M is 0.89995, and fp16 has 0.8999 for 0.9
    ([7000, 2999, 0.5, 0.5], 3, 0.7, {0, 3}),  # M is 0.70005, and fp16 has 0.7002 for 0.7
]


@contract("xattention.select.threshold")
@operations(SELECT)
def test_what_half_precision_cannot_tell_apart(implementation_or_oracle: Runner) -> None:
    """Sums in fp32 and the threshold count as they are; an fp32 computation is sure of each."""
    for row, diagonal, threshold, wanted in NARROW:
        sums = torch.tensor(row).reshape(1, 1, 1, -1)
        inputs = {"input_tensor": to_golden(sums), "threshold": real(threshold)}
        case = Case(SELECT, {**inputs, "current_index": diagonal, "causal": True})
        require_selected(implementation_or_oracle, case, wanted)


@contract("xattention.select.threshold")
@operations(SELECT)
@given(case=causal, future=st.sampled_from([1.0, 3e4]))
@some
def test_sums_past_the_diagonal_are_no_part_of_the_total(
    implementation_or_oracle: Runner, case: Case, future: float
) -> None:
    plain, varied = (_with_future(case, value) for value in (0.0, future))
    before, actual = (implementation_or_oracle.call(each) for each in (plain, varied))
    implementation_or_oracle.require_same(
        varied, before, actual, "sums past the diagonal change what is selected"
    )


def _with_future(case: Case, value: float) -> Case:
    """The case with other sums past the diagonal."""
    sums = sums_of(case)
    after = torch.ones_like(sums, dtype=torch.bool).triu(case.number("current_index") + 1)
    return with_sums(case, sums.where(~after, value))


@contract("xattention.select.threshold-one")
@operations(SELECT)
@given(case=causal, data=st.data())
@some
def test_a_threshold_of_one_selects_all_that_has_mass(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """However little it is beside the rest, which rounding has made the total long before."""
    sums = sums_of(case)
    little = st.sampled_from([torch.finfo(sums.dtype).tiny, 2.0**-14, 0.1, None])
    drawn = data.draw(st.lists(little, min_size=1, max_size=8), label="in place of sums")
    changed = [
        x if other is None else other
        for x, other in zip(sums.flatten().tolist(), cycle(drawn), strict=False)
    ]
    case = with_sums(case, torch.tensor(changed).reshape(sums.shape))
    case = case.changed(threshold=real(1.0))
    require(
        implementation_or_oracle,
        case,
        implementation_or_oracle.call(case),
        "a visible block that has mass is not selected",
        lambda row: {j for j in range(row.visible) if row.sums[j] > 0} <= row.selected,
    )


@contract("xattention.select.no-mass")
@operations(SELECT)
@given(case=st.one_of(causal, everywhere), row=st.integers(0, 3))
@some
def test_a_row_without_mass_selects_the_mandatory_blocks_alone(
    implementation_or_oracle: Runner, case: Case, row: int
) -> None:
    sums = sums_of(case)
    sums[:, :, row % sums.shape[2]] = 0
    case = with_sums(case, sums)
    require(
        implementation_or_oracle,
        case,
        implementation_or_oracle.call(case),
        "a row without mass selects other blocks than the mandatory ones",
        lambda row: row.total > 0 or row.selected == row.mandatory,
    )


# --- blocks that mass does not decide about ------------------------------------------------------


masks = pytest.mark.parametrize("operation", [SELECT, ESTIMATE])


def masked(operation: Operation) -> st.SearchStrategy[Case]:
    return causal if operation == SELECT else estimates(is_causal=True)


@contract("xattention.select.mandatory")
@masks
@given(data=st.data())
@settings(max_examples=10)
def test_block_0_and_the_diagonal_block_are_selected(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(masked(operation))
    if operation == SELECT and data.draw(st.booleans(), label="without mass"):
        sums = sums_of(case)
        sums[..., 0] = 0
        sums.diagonal(case.number("current_index"), 2, 3)[...] = 0
        case = with_sums(case, sums)
    require(
        implementation_or_oracle,
        case,
        implementation_or_oracle.call(case),
        "block 0 or the diagonal block is not selected",
        lambda row: row.mandatory <= row.selected,
    )


@contract("xattention.select.one-mandatory-block")
@operations(SELECT)
@given(
    case=select_cases(causal=True, batch=alone, k_blocks=st.sampled_from([2, 3, 5, 9])),
    own=st.sampled_from([0.5, 0.0]),
    future=st.sampled_from([1.0, 0.0, 3e4]),
)
@some
def test_where_block_0_is_the_diagonal_block_it_stands_alone(
    implementation_or_oracle: Runner, case: Case, own: float, future: float
) -> None:
    """The other blocks of its row are in the future, with mass or without."""
    sums = sums_of(case)
    sums[:, :, 0, 0], sums[:, :, 0, 1:] = own, future
    case = with_sums(case, sums).changed(current_index=0)
    require(
        implementation_or_oracle,
        case,
        implementation_or_oracle.call(case),
        "the first row selects another block beside block 0",
        lambda row: row.visible > 1 or row.selected <= {0},
    )


@contract("xattention.select.never-future")
@masks
@given(data=st.data())
@settings(max_examples=10)
def test_no_block_past_the_diagonal_is_selected(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(masked(operation))
    if operation == SELECT:
        case = _with_future(case, data.draw(st.sampled_from([3e4, 1.0, 0.0]), label="their sums"))
    require(
        implementation_or_oracle,
        case,
        implementation_or_oracle.call(case),
        "a block past the diagonal is selected",
        lambda row: all(j < row.visible for j in row.selected),
    )


# --- without a mask ------------------------------------------------------------------------------


@contract("xattention.select.not-causal")
@operations(SELECT)
@given(case=everywhere)
@settings(max_examples=20)
def test_without_a_mask_every_block_is_a_candidate(
    implementation_or_oracle: Runner, case: Case
) -> None:
    results = implementation_or_oracle.call(case)
    require_threshold(implementation_or_oracle, case, results)


@contract("xattention.select.not-causal")
@operations(ESTIMATE)
@given(case=estimates(is_causal=False))
@settings(max_examples=8)
def test_an_estimate_without_a_mask(implementation_or_oracle: Runner, case: Case) -> None:
    results = implementation_or_oracle.call(case)
    require_threshold(implementation_or_oracle, case, results)


@contract("xattention.select.not-causal")
@operations(SELECT)
@given(case=everywhere, index=st.integers(0, 40), data=st.data())
@some
def test_without_a_mask_no_block_is_mandatory(
    implementation_or_oracle: Runner, case: Case, index: int, data: st.DataObject
) -> None:
    """One block has all the mass, and is selected alone, whatever the index of the first row."""
    sums = torch.zeros_like(sums_of(case))
    lone = data.draw(st.integers(0, sums.shape[3] - 1), label="the block with mass")
    sums[..., lone] = 0.75
    case = with_sums(case, sums).changed(current_index=index)
    require_selected(implementation_or_oracle, case, {lone})


# --- order, NaN, sizes ---------------------------------------------------------------------------


@contract("xattention.select.ties")
@operations(SELECT)
@given(
    case=select_cases(causal=True, batch=alone, k_blocks=st.sampled_from([8, 9, 17, 33]), first=5),
    data=st.data(),
)
@settings(max_examples=20)
def test_how_many_of_equal_sums_are_selected_does_not_depend_on_their_order(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """Sums that add up without rounding, in two orders. No mass is the threshold's part of another:
    that has 10 bits after the point.
    """
    sums = sums_of(case)
    few_values = st.sampled_from([0.25, 0.5, 1.0, 0.0, 2.0])
    values = data.draw(
        st.lists(few_values, min_size=sums.shape[3], max_size=sums.shape[3]), label="sums"
    )
    inner = range(1, case.number("current_index"))  # every row sees them; mandatory in none
    order = data.draw(st.permutations(inner), label="order")
    moved = [values[0], *(values[j] for j in order), *values[inner.stop :]]
    odd = data.draw(st.integers(0, 511), label="threshold")
    for each in (values, moved):
        case = with_sums(case, torch.tensor(each).expand(sums.shape))
        case = case.changed(threshold=real((2 * odd + 1) / 1024))
        require(
            implementation_or_oracle,
            case,
            implementation_or_oracle.call(case),
            "too few or too many blocks of equal sums are selected",
            lambda row: _taken(row) == sorted(row.sums[j] for j in row.chosen),
        )


def _taken(row: Row) -> list[Fraction]:
    """The sums, by size, that are taken one after the other until the threshold is reached."""
    mass = sum((row.sums[j] for j in row.mandatory), Fraction())
    taken = []
    for value in sorted((row.sums[j] for j in row.others), reverse=True):
        if mass < row.threshold * row.total:
            taken.append(value)
        mass += value
    return taken[::-1]


@contract("xattention.select.nan-row")
@operations(SELECT)
@given(case=st.one_of(causal, everywhere), data=st.data())
@some
def test_a_row_with_a_nan_is_refused_or_selects_every_visible_block(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    sums = sums_of(case)
    _, _, height, width = sums.shape
    row = data.draw(st.integers(0, height - 1), label="row")
    seen = case.number("current_index") + row + 1 if case.inputs["causal"] else width
    sums[0, 0, row, data.draw(st.integers(0, seen - 1), label="block")] = float("nan")
    case = with_sums(case, sums)
    if not implementation_or_oracle.accepts(case):
        return
    require(
        implementation_or_oracle,
        case,
        implementation_or_oracle.call(case),
        "a row with a NaN does not select every block that it sees",
        lambda row: -1 not in row.sums or row.selected >= set(range(row.visible)),
    )


any_width = pytest.mark.parametrize("width", [1, 2, 3, 31, 32, 33, 64, 65, 100, 128, 200])


@contract("xattention.select.block-count")
@operations(SELECT)
@any_width
def test_the_last_of_any_number_of_blocks_counts(
    implementation_or_oracle: Runner, width: int
) -> None:
    """It has more mass than all others together, and is selected alone."""
    sums = torch.ones(1, 1, 1, width)
    sums[..., -1] = 2 * width
    inputs = {"input_tensor": to_golden(sums), "threshold": real(0.5)}
    implementation_or_oracle.judge(Case(SELECT, {**inputs, "current_index": 0, "causal": False}))


@contract("xattention.select.block-count")
@operations(SELECT)
@any_width
@given(data=st.data())
@settings(max_examples=3)
def test_any_number_of_blocks(
    implementation_or_oracle: Runner, width: int, data: st.DataObject
) -> None:
    case = data.draw(select_cases(causal=True, batch=alone, k_blocks=st.just(width)))
    results = implementation_or_oracle.call(case)
    require_threshold(implementation_or_oracle, case, results)


# --- what cannot be decided ----------------------------------------------------------------------


def _random(operation: Operation, dtype: FloatType) -> Case:
    """Continuous random inputs of thousands of decisions: peaked sums, normal queries and keys."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Value] = {"threshold": real(0.9), "causal": True}
    if operation == SELECT:
        tensors = {"input_tensor": torch.rand(4, 4, 32, 128, generator=generator) ** 4}
        inputs["current_index"] = 96
    else:
        names = ("query_states", "key_states")
        tensors = {name: torch.randn(1, 2, 256, 8, generator=generator) for name in names}
        inputs |= {"block_size": 4, "stride": 2, "chunk_size": 256}
    inputs |= {name: to_golden(each.to(getattr(torch, dtype))) for name, each in tensors.items()}
    return Case(operation, inputs)


def _part(case: Case) -> Case:
    """One head, and few of its rows: as much as an interpreter should be given."""
    tensors = {
        name: to_golden(to_torch(value)[:1, :1, :32])
        for name, value in case.inputs.items()
        if isinstance(value, Tensor) and len(value.shape) == 4
    }
    return case.changed(**tensors)


def _decided(case: Case, shape: torch.Size) -> torch.Tensor:
    """The blocks that mass decides about: visible and not mandatory."""
    row, block = torch.arange(shape[2]).unsqueeze(1), torch.arange(shape[3])
    decided = (block > 0) & (block < diagonal_of_first_row(case) + row)
    return decided.expand(shape)


@cache
def _undecidable_share(operation: Operation, dtype: FloatType, dot: Dot) -> float:
    case = _random(operation, dtype)
    (*_, undecidable) = case.bounds(dot)
    assert undecidable is not None
    return float(undecidable.sum() / _decided(case, undecidable.shape).sum())


@contract("xattention.select.undecidable")
@masks
def test_few_decisions_are_undecidable(
    implementation: Runner, operation: Operation, measure: Callable[[Measurement], None]
) -> None:
    """And those may differ, of all. The share of an estimate is stated, by type, not limited."""
    dot = implementation.implementation.dot
    for dtype in DTYPES:
        case = _part(_random(operation, dtype))
        (*_, mask), (*_, expected) = implementation.call(case), case.expected()
        (*_, undecidable) = case.bounds(dot)
        assert undecidable is not None
        differs = (mask != expected) & (undecidable == 0) & _decided(case, mask.shape)
        implementation.require(
            case, not differs.any(), "a block is selected that is surely not, or reversely", (mask,)
        )
        share = _undecidable_share(operation, dtype, dot)
        implementation.require(
            case,
            operation == ESTIMATE or dtype != "float32" or share < 0.001,
            f"{share:.3%} of the decisions are undecidable, not below 0.1 %",
            (mask,),
        )
        measure(Measurement(implementation.name, operation, "undecidable", dtype, 100 * share))
