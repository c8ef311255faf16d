"""Refusals: ValueError that names the argument at fault, before anything is written.

Where two arguments do not fit each other, the message may name either.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from golden import files
from golden.model import ElementType, Operation, Tensor, Value
from suites import optimised
from suites.cases import (
    ESTIMATE,
    MERGE,
    NORMALISE,
    ONE_PASS,
    SCORES,
    SELECT,
    STATS,
    Case,
    real,
    to_golden,
    to_torch,
)
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import (
    BLOCK_SUMS,
    DTYPES,
    OPERATIONS,
    cases,
    estimate_cases,
    merge_cases,
    score_cases,
    select_cases,
)
from suites.verdicts import Nonconformance

WRITES_NOTHING = "xattention.refusal.writes-nothing"
NAN, INF = math.nan, math.inf

# The dimensions of each tensor; those of one name have to be of one size.
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "query_states": ("batch", "heads", "q_len", "head_dim"),
    "key_states": ("batch", "heads", "k_len", "head_dim"),
    "attn_weights_slice": ("batch", "heads", "rows", "keys"),
    **dict.fromkeys(("m_chunks", "l_chunks"), ("batch", "heads", "rows")),
    **dict.fromkeys(("m_global", "l_global"), ("batch", "heads", "rows")),
    "input_tensor": ("batch", "heads", "q_blocks", "k_blocks"),
}
TENSORS: dict[Operation, tuple[str, ...]] = {
    SCORES: ("query_states", "key_states"),
    ONE_PASS: ("attn_weights_slice",),
    STATS: ("attn_weights_slice",),
    MERGE: ("m_chunks", "l_chunks"),
    NORMALISE: ("attn_weights_slice", "m_global", "l_global"),
    SELECT: ("input_tensor",),
    ESTIMATE: ("query_states", "key_states"),
}
EACH = [(operation, name) for operation, names in TENSORS.items() for name in names]
STATISTICS = ("m_chunks", "l_chunks", "m_global", "l_global")
STATES = ("query_states", "key_states")

# A refusal hangs on one argument; what the others hold matters little.
few = settings(max_examples=8)
very_few = settings(max_examples=3)


def refuse(runner: Runner, case: Case, *naming: str, **changes: Value) -> None:
    """The case with some of its inputs replaced is refused by one of the names."""
    runner.refuse(case.changed(**changes), naming)


def alike(operation: Operation, argument: str) -> tuple[str, ...]:
    """A tensor and those that have to be of its type, scores and their statistics apart."""
    names = TENSORS[operation]
    statistics = argument in STATISTICS
    return tuple(name for name in names if (name in STATISTICS) == statistics)


def pick(case: Case, argument: str, data: st.DataObject) -> tuple[Tensor, int]:
    """The tensor of an argument, or one of its list of them, and its place there."""
    value = case.inputs[argument]
    if not isinstance(value, tuple):
        return case.tensor(argument), 0
    place = data.draw(st.integers(0, len(value) - 1), label="chunk")
    return value[place], place


def put(case: Case, argument: str, place: int, tensor: Tensor) -> Case:
    """The case with another tensor there."""
    value = case.inputs[argument]
    if not isinstance(value, tuple):
        return case.changed(**{argument: tensor})
    return case.changed(**{argument: (*value[:place], tensor, *value[place + 1 :])})


def every(case: Case, argument: str) -> list[Tensor]:
    """The tensor of an argument, or its list of them."""
    value = case.inputs[argument]
    return list(value) if isinstance(value, tuple) else [case.tensor(argument)]


def resized(tensor: Tensor, dim: int, size: int) -> Tensor:
    """With what lies along a dimension cut off, or repeated."""
    values = to_torch(tensor)
    return to_golden(values.index_select(dim, torch.arange(size) % values.shape[dim]))


# --- types (R-X10, R-X16) ------------------------------------------------------------------------

NO_SCORES: list[ElementType] = ["float64", "int32", "int64", "bool"]
NO_STATISTICS: list[ElementType] = [*NO_SCORES, "float16", "bfloat16"]
RETYPED = [
    (operation, argument, dtype)
    for operation, argument in EACH
    for dtype in (NO_STATISTICS if argument in STATISTICS else NO_SCORES)
]


def retyped(tensor: Tensor, dtype: ElementType) -> Tensor:
    return to_golden(to_torch(tensor).to(getattr(torch, dtype)))


@contract("xattention.refusal.dtype", WRITES_NOTHING)
@pytest.mark.parametrize(("operation", "argument", "dtype"), RETYPED)
@given(data=st.data())
@very_few
def test_a_tensor_of_another_type(
    implementation_or_oracle: Runner,
    operation: Operation,
    argument: str,
    dtype: ElementType,
    data: st.DataObject,
) -> None:
    """It alone, or with those that have to be of its type."""
    case = data.draw(cases(operation))
    partners = alike(operation, argument)
    if data.draw(st.booleans(), label="it alone"):
        tensor, place = pick(case, argument, data)
        case = put(case, argument, place, retyped(tensor, dtype))
    else:
        for name in partners:
            for place, tensor in enumerate(every(case, name)):
                case = put(case, name, place, retyped(tensor, dtype))
    refuse(implementation_or_oracle, case, *partners)


@contract("xattention.refusal.dtype", WRITES_NOTHING)
@pytest.mark.parametrize("operation", [SCORES, ESTIMATE])
@given(data=st.data())
@few
def test_queries_and_keys_of_two_types(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    keys = case.tensor("key_states")
    other = data.draw(st.sampled_from([dtype for dtype in DTYPES if dtype != keys.dtype]))
    refuse(implementation_or_oracle, case, *STATES, key_states=retyped(keys, other))


@contract("xattention.refusal.dtype", WRITES_NOTHING)
@operations(SCORES)
@pytest.mark.parametrize("dtype", NO_SCORES)
@given(case=score_cases())
@very_few
def test_scores_of_another_type(
    implementation_or_oracle: Runner, dtype: ElementType, case: Case
) -> None:
    refuse(implementation_or_oracle, case, "out_dtype", out_dtype=dtype)


# --- shapes (R-X1) -------------------------------------------------------------------------------


@contract("xattention.refusal.shapes", WRITES_NOTHING)
@pytest.mark.parametrize(("operation", "argument"), EACH)
@given(data=st.data())
@few
def test_a_tensor_of_another_rank(
    implementation_or_oracle: Runner, operation: Operation, argument: str, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    tensor, place = pick(case, argument, data)
    first, second, *rest = tensor.shape
    shapes: list[tuple[int, ...]] = [(first * second, *rest), (1, *tensor.shape)]
    shapes += [(*tensor.shape, 1), (len(tensor.data),)]
    shape = data.draw(st.sampled_from(shapes), label="shape")
    changed = put(case, argument, place, replace(tensor, shape=shape))
    refuse(implementation_or_oracle, changed, *alike(operation, argument))


FIT = [
    (operation, argument, dimension)
    for operation, argument in EACH
    if (operation, argument) != (NORMALISE, "attn_weights_slice")  # no statistics fit then
    for dimension in DIMENSIONS[argument]
    if any(dimension in DIMENSIONS[name] for name in TENSORS[operation] if name != argument)
]


@contract("xattention.refusal.shapes", WRITES_NOTHING)
@pytest.mark.parametrize(("operation", "argument", "dimension"), FIT)
@given(data=st.data())
@few
def test_tensors_that_do_not_fit_each_other(
    implementation_or_oracle: Runner,
    operation: Operation,
    argument: str,
    dimension: str,
    data: st.DataObject,
) -> None:
    """Where one of the sizes is 1, one could be broadcast to the other, and must not be."""
    case = data.draw(cases(operation))
    tensor, place = pick(case, argument, data)
    dim = DIMENSIONS[argument].index(dimension)
    sizes = {1, tensor.shape[dim] + 1} - {tensor.shape[dim]}
    size = data.draw(st.sampled_from(sorted(sizes)), label="size")
    changed = put(case, argument, place, resized(tensor, dim, size))
    refuse(implementation_or_oracle, changed, *TENSORS[operation])


@contract("xattention.refusal.shapes", WRITES_NOTHING)
@pytest.mark.parametrize("operation", [SCORES, ONE_PASS])
@given(data=st.data(), wrong=st.integers(-5, 5).filter(bool))
@few
def test_a_chunk_that_ends_elsewhere(
    implementation_or_oracle: Runner, operation: Operation, wrong: int, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    changed = case.changed(chunk_end=case.number("chunk_end") + wrong)
    refuse(implementation_or_oracle, changed, "chunk_end", "chunk_start")


def emptied(case: Case, dimension: str) -> Case:
    """The case with nothing along a dimension."""
    changed = case
    for name in TENSORS[case.operation]:
        if dimension in DIMENSIONS[name]:
            dim = DIMENSIONS[name].index(dimension)
            for place, tensor in enumerate(every(case, name)):
                changed = put(changed, name, place, resized(tensor, dim, 0))
    if "chunk_end" in case.inputs and dimension in ("q_len", "rows"):
        changed = changed.changed(chunk_end=case.number("chunk_start"))
    return changed


REFUSED = [(SELECT, "k_blocks"), (ESTIMATE, "head_dim")]  # by R-X17; for want of a finite scale
EMPTY = [
    (operation, dimension)
    for operation, names in TENSORS.items()
    for dimension in dict.fromkeys(dimension for name in names for dimension in DIMENSIONS[name])
    if (operation, dimension) not in REFUSED
]


@contract("xattention.refusal.shapes", WRITES_NOTHING)
@pytest.mark.parametrize(("operation", "dimension"), REFUSED)
@given(data=st.data())
@very_few
def test_a_tensor_without_what_there_must_be(
    implementation_or_oracle: Runner, operation: Operation, dimension: str, data: st.DataObject
) -> None:
    case = emptied(data.draw(cases(operation)), dimension)
    refuse(implementation_or_oracle, case.changed(causal=False), *TENSORS[operation])


@contract("xattention.refusal.shapes", WRITES_NOTHING)
@pytest.mark.parametrize(("operation", "dimension"), EMPTY)
@given(data=st.data())
@very_few
def test_a_tensor_without_elements_is_refused_by_name_or_dealt_with(
    implementation: Runner, operation: Operation, dimension: str, data: st.DataObject
) -> None:
    case = emptied(data.draw(cases(operation)), dimension)
    if not implementation.accepts(case):
        implementation.refuse(case, TENSORS[operation])
    elif operation == ESTIMATE and dimension in ("q_len", "k_len"):  # the oracle refuses it
        results = implementation.call(case)
        nothing = not any(result.numel() for result in results)
        implementation.require(case, nothing, "there are blocks of no tokens", results)
    else:
        implementation.judge(case)


# --- sizes that divide (R-X1, R-X21) -------------------------------------------------------------


def others(*lengths: int) -> st.SearchStrategy[int]:
    """Sizes that do not divide all of the lengths."""
    sizes = range(2, max(lengths) + 2)
    return st.sampled_from([size for size in sizes if any(length % size for length in lengths)])


@contract("xattention.refusal.divides", WRITES_NOTHING)
@operations(SCORES)
@given(case=score_cases(), data=st.data())
@few
def test_a_length_that_the_stride_does_not_divide(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    q_len, k_len = (case.tensor(name).shape[2] for name in STATES)
    stride = data.draw(others(q_len, k_len), label="stride")
    end = case.number("chunk_start") + q_len // stride
    refuse(implementation_or_oracle, case, *STATES, "stride", stride=stride, chunk_end=end)


@contract("xattention.refusal.divides", WRITES_NOTHING)
@pytest.mark.parametrize("operation", BLOCK_SUMS)
@given(data=st.data())
@few
def test_rows_or_columns_that_the_block_does_not_divide(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    block = data.draw(others(*case.tensor("attn_weights_slice").shape[2:]), label="block")
    names = ("attn_weights_slice", "reshaped_block_size")
    refuse(implementation_or_oracle, case, *names, reshaped_block_size=block)


@contract("xattention.refusal.divides", WRITES_NOTHING)
@operations(ESTIMATE)
@given(case=estimate_cases(), data=st.data())
@few
def test_a_block_that_the_stride_does_not_divide(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    stride = data.draw(others(case.number("block_size")), label="stride")
    refuse(implementation_or_oracle, case, "block_size", "stride", stride=stride)


@contract("xattention.refusal.divides", WRITES_NOTHING)
@operations(ESTIMATE)
@given(case=estimate_cases().filter(lambda case: case.number("block_size") > 1), data=st.data())
@few
def test_a_chunk_that_the_block_does_not_divide(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    block = case.number("block_size")
    rest = data.draw(st.integers(1, block - 1), label="rest")
    chunk = data.draw(st.sampled_from([0, 1, 2, 7, 1000]), label="blocks") * block + rest
    refuse(implementation_or_oracle, case, "chunk_size", "block_size", chunk_size=chunk)


# --- ranges (R-X3, R-X12, R-X17, R-X21) ----------------------------------------------------------

NEGATIVE = [-1, -2, -128, -(2**31)]
NO_SIZE = [0, *NEGATIVE]
OUT_OF_RANGE: dict[str, list[int] | list[float]] = {
    **dict.fromkeys(("chunk_start", "kv_offset", "real_q_len", "current_index"), NEGATIVE),
    **dict.fromkeys(("stride", "reshaped_block_size", "segment_size"), NO_SIZE),
    **dict.fromkeys(("block_size", "chunk_size"), NO_SIZE),
    "scale": [NAN, INF, -INF],
    "norm": [NAN, 0.0, -0.0, 5e-324],  # the last leaves 1 / norm infinite
}
ARGUMENTS: dict[Operation, tuple[str, ...]] = {
    SCORES: ("stride", "chunk_start"),
    STATS: ("reshaped_block_size", "segment_size", "scale", "chunk_start", "kv_offset"),
    ONE_PASS: ("reshaped_block_size", "segment_size", "scale", "chunk_start", "real_q_len"),
    NORMALISE: (
        "reshaped_block_size",
        "segment_size",
        "scale",
        "chunk_start",
        "kv_offset",
        "real_q_len",
    ),
    SELECT: ("current_index",),
    ESTIMATE: ("stride", "block_size", "chunk_size", "norm"),
}


@contract("xattention.refusal.ranges", WRITES_NOTHING)
@pytest.mark.parametrize(
    ("operation", "argument"), [(o, name) for o, names in ARGUMENTS.items() for name in names]
)
@given(data=st.data())
@few
def test_a_number_out_of_range(
    implementation_or_oracle: Runner, operation: Operation, argument: str, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    value = data.draw(st.sampled_from(OUT_OF_RANGE[argument]), label=argument)
    changed = case.changed(**{argument: real(value) if isinstance(value, float) else value})
    if argument == "chunk_start" and "chunk_end" in case.inputs:
        moved = case.number("chunk_end") - case.number("chunk_start") + int(value)
        changed = changed.changed(chunk_end=moved)
    refuse(implementation_or_oracle, changed, argument)


@contract("xattention.refusal.ranges", WRITES_NOTHING)
@operations(ESTIMATE)
@given(case=estimate_cases(causal=True), more=st.integers(1, 3))
@few
def test_queries_before_the_first_key(
    implementation_or_oracle: Runner, case: Case, more: int
) -> None:
    """With a causal mask more queries than keys would put the first at a negative offset."""
    keys = case.tensor("key_states")
    q_len = keys.shape[2] + more * case.number("block_size")
    queries = resized(case.tensor("query_states"), 2, q_len)
    refuse(implementation_or_oracle, case, *STATES, query_states=queries)


@contract("xattention.refusal.threshold", WRITES_NOTHING)
@pytest.mark.parametrize("operation", [SELECT, ESTIMATE])
@pytest.mark.parametrize(
    "threshold", [0.0, -0.0, -5e-324, -0.5, math.nextafter(1, 2), 1.5, 90.0, NAN, INF, -INF]
)
@given(data=st.data())
@very_few
def test_a_threshold_that_is_no_share(
    implementation_or_oracle: Runner, operation: Operation, threshold: float, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    refuse(implementation_or_oracle, case, "threshold", threshold=real(threshold))


@contract("xattention.refusal.current-index", WRITES_NOTHING)
@operations(SELECT)
@given(case=select_cases(causal=True), beyond=st.integers(1, 100))
@few
def test_a_diagonal_past_the_last_block(
    implementation_or_oracle: Runner, case: Case, beyond: int
) -> None:
    q_blocks, k_blocks = case.tensor("input_tensor").shape[2:]
    index = k_blocks - q_blocks + beyond
    refuse(implementation_or_oracle, case, "current_index", "input_tensor", current_index=index)


@contract("xattention.refusal.unequal-lengths", WRITES_NOTHING)
@operations(ESTIMATE)
@given(case=estimate_cases().filter(lambda case: case.number("block_size") > 1), data=st.data())
@settings(max_examples=20)
def test_lengths_whose_difference_the_block_does_not_divide(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """Not even where the difference of the padded lengths is a multiple."""
    block, keys = case.number("block_size"), case.tensor("key_states")
    more = data.draw(st.integers(1, block - 1), label="more")
    changed = case.changed(key_states=resized(keys, 2, keys.shape[2] + more))
    refuse(implementation_or_oracle, changed, *STATES, "block_size")


# --- what the specification leaves out (R-X12), and lists (R-X5) ---------------------------------

UNSPECIFIED: list[tuple[str, Value]] = [
    ("mode", "decode"),
    ("decoding", True),
    ("num_to_choose", 1),
    ("num_to_choose", 0),
]


@contract("xattention.refusal.mode", WRITES_NOTHING)
@operations(SELECT)
@pytest.mark.parametrize(("argument", "value"), UNSPECIFIED)
@given(case=select_cases())
@few
def test_what_is_not_specified(
    implementation_or_oracle: Runner, argument: str, value: Value, case: Case
) -> None:
    refuse(implementation_or_oracle, case, argument, **{argument: value})


@contract("xattention.refusal.mode")
@operations(SELECT)
@given(case=select_cases())
@few
def test_both_modes_select_alike(implementation_or_oracle: Runner, case: Case) -> None:
    prefill, both = case.changed(mode="prefill"), case.changed(mode="both")
    before, after = (implementation_or_oracle.call(each) for each in (prefill, both))
    implementation_or_oracle.require_same(both, before, after, "mode `both` is not `prefill`")


@contract("xattention.refusal.merge-lists", WRITES_NOTHING)
@operations(MERGE)
@given(case=merge_cases(), data=st.data())
@few
def test_lists_that_are_empty_or_of_two_lengths(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    m, total = (tuple(every(case, name)) for name in TENSORS[MERGE])
    pairs = [((), ()), (m, ()), ((), total), (m, total + total[:1]), (m + m[:1], total)]
    if len(m) > 1:
        pairs += [(m[1:], total), (m, total[:-1]), (m[:1], total)]
    m_chunks, l_chunks = data.draw(st.sampled_from(pairs), label="lists")
    names = TENSORS[MERGE]
    refuse(implementation_or_oracle, case, *names, m_chunks=m_chunks, l_chunks=l_chunks)


# --- without assertions (R-X17) ------------------------------------------------------------------


@contract("xattention.refusal.without-assert")
@operations(ESTIMATE)  # of the family the one that every implementation has; the others if it does
def test_nothing_hangs_on_asserts(implementation: Runner) -> None:
    """Every refusal of the golden vectors, and a result, again in a Python that runs with -O."""
    again: list[Case] = []
    for operation in OPERATIONS:
        if operation not in implementation.implementation.operations:
            continue
        vectors = files.load_vectors(operation).vectors
        refused = [vector for vector in vectors if vector.refusal is not None]
        legal = [vector for vector in vectors if vector.refusal is None]
        again += [Case(operation, vector.inputs) for vector in (*refused, legal[0])]
    for case, after in zip(again, optimised.outcomes(implementation, again), strict=True):
        before = optimised.outcome(implementation, case)
        if isinstance(before, str) or isinstance(after, str):
            if before != after:
                became = after if isinstance(after, str) else "the call is accepted"
                raise Nonconformance(f"it is otherwise under -O: {became}", case)
        else:
            implementation.require_same(case, before, after, "it is otherwise under -O")
