"""Robustness: what must not matter to a result, and what no call may touch.

Two honest results for the same values are at most twice the bound apart (R-X14).
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from golden.model import FloatType, Layout, Operation, Tensor, Value
from suites.cases import (
    ESTIMATE,
    MERGE,
    NORMALISE,
    ONE_PASS,
    SCORES,
    SELECT,
    Bounds,
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
    SOFTMAX,
    cases,
    estimate_cases,
    score_cases,
    select_cases,
    softmax_cases,
)

NAN, INF = math.nan, math.inf

every_operation = pytest.mark.parametrize("operation", OPERATIONS)
few = settings(max_examples=5)
very_few = settings(max_examples=2)


def tensors(case: Case) -> list[tuple[str, int, Tensor]]:
    """The tensors of a case: the argument of each, its place in a list of them, and itself."""
    return [
        (name, place, tensor)
        for name, value in case.inputs.items()
        for place, tensor in enumerate(value if isinstance(value, tuple) else (value,))
        if isinstance(tensor, Tensor) and tensor.shape
    ]


def mapped(case: Case, change: Callable[[str, Tensor], Tensor]) -> Case:
    """The case with each of its tensors replaced."""
    for name, place, tensor in tensors(case):
        value, changed = case.inputs[name], change(name, tensor)
        if isinstance(value, tuple):
            case = case.changed(**{name: (*value[:place], changed, *value[place + 1 :])})
        else:
            case = case.changed(**{name: changed})
    return case


def honest(runner: Runner, case: Case) -> Bounds:
    """How far two honest results of a case may be apart."""
    bounds = case.bounds(runner.implementation.dot)
    return tuple(None if bound is None else 2 * bound for bound in bounds)


# --- rows (R-X17, R-X11) -------------------------------------------------------------------------

# What the other rows hold: a number, and what the specification knows of others. A visible +inf is
# undefined in a softmax, and queries or keys of any infinity make one.
ELSEWHERE: dict[Operation, list[float]] = {
    SCORES: [NAN, 1.5, INF, -INF],
    **{operation: [NAN, 1.5, -INF] for operation in (*SOFTMAX, MERGE)},
    SELECT: [NAN, 1.5],
    ESTIMATE: [NAN, 1.5],
}


def tokens_a_row(case: Case) -> int:
    """How many of an input's rows make one of the result's."""
    of = {SCORES: "stride", ESTIMATE: "block_size"}
    of |= dict.fromkeys(BLOCK_SUMS, "reshaped_block_size")
    return case.number(of[case.operation]) if case.operation in of else 1


def twice(_: str, tensor: Tensor) -> Tensor:
    """Two times the batch entries and two times the heads, so that none is alone."""
    values = to_torch(tensor)
    return to_golden(values.repeat(2, 2, *[1] * (values.ndim - 2)))


@contract("xattention.rows.independent")
@every_operation
@given(data=st.data())
@settings(max_examples=6)
def test_what_other_rows_hold_does_not_matter(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Everything that is not of one row, of one head of one batch entry, is replaced."""
    case = mapped(data.draw(cases(operation)), twice)
    results = implementation_or_oracle.call(case)
    row = tuple(data.draw(st.integers(0, size - 1)) for size in results[0].shape[:3])
    height = tokens_a_row(case)

    def spoil(name: str, tensor: Tensor) -> Tensor:
        values, spoiled = to_torch(tensor), to_torch(tensor).clone()
        spoiled[...] = 0 if name.startswith("l_") and elsewhere == -INF else elsewhere
        own = (row[0], row[1])
        if name != "key_states":
            own = (*own, slice(row[2] * height, (row[2] + 1) * height))  # type: ignore[assignment]
        spoiled[own] = values[own]
        return to_golden(spoiled)

    for elsewhere in ELSEWHERE[operation]:
        spoiled = mapped(case, spoil)
        refusable = operation in (SELECT, ESTIMATE) and math.isnan(elsewhere)  # by R-X12
        if refusable and not implementation_or_oracle.accepts(spoiled):
            continue
        implementation_or_oracle.require_close(
            spoiled,
            tuple(result[row] for result in results),
            tuple(result[row] for result in implementation_or_oracle.call(spoiled)),
            tuple(None if b is None else b[row] for b in honest(implementation_or_oracle, case)),
            f"what others than row {list(row)} hold matters to it",
        )


@contract("xattention.rows.independent")
@every_operation
@given(data=st.data())
@few
def test_the_order_of_batch_entries_and_heads_does_not_matter(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    dim = data.draw(st.sampled_from([0, 1]), label="dimension")
    case = mapped(
        data.draw(cases(operation)),
        lambda _, tensor: to_golden(torch.cat([(x := to_torch(tensor)), x / 2], dim)),
    )
    results = implementation_or_oracle.call(case)
    order = torch.arange(results[0].shape[dim]).roll(1)
    moved = mapped(case, lambda _, tensor: to_golden(to_torch(tensor).index_select(dim, order)))
    implementation_or_oracle.require_close(
        moved,
        tuple(result.index_select(dim, order) for result in results),
        implementation_or_oracle.call(moved),
        honest(implementation_or_oracle, moved),
        f"the order of {['batch entries', 'heads'][dim]} matters",
    )


# --- types (R-X10, R-X16) ------------------------------------------------------------------------


def typed_cases(operation: Operation, dtype: FloatType) -> st.SearchStrategy[Case]:
    if operation == SCORES:
        return score_cases(dtype=dtype)
    if operation == SELECT:
        return select_cases(dtype=dtype)
    if operation == ESTIMATE:
        return estimate_cases(dtype=dtype)
    return softmax_cases(operation, dtype=dtype)


@contract("xattention.dtype.scores")
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o != MERGE])
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(max_examples=4)
def test_every_type_of_scores_is_read_exactly(
    implementation: Runner, operation: Operation, dtype: FloatType, data: st.DataObject
) -> None:
    implementation.judge(data.draw(typed_cases(operation, dtype)))


def of_results(case: Case) -> tuple[torch.dtype, ...]:
    """The type of each result, by its name and by the types of what came in."""
    given: str = next(tensor.dtype for _, _, tensor in tensors(case))
    types = {"m": "float32", "l": "float32", "mask": "bool", "block_sums": given}
    types["scores"] = str(case.inputs.get("out_dtype", given))
    return tuple(getattr(torch, types[name]) for name in case.specification.results)


@contract("xattention.dtype.results")
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o != SELECT])
@given(data=st.data())
@few
def test_results_have_the_types_that_follow_from_the_inputs(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(cases(operation))
    if operation == SCORES and data.draw(st.booleans(), label="out_dtype given"):
        case = case.changed(out_dtype=data.draw(st.sampled_from(DTYPES), label="out_dtype"))
    results = implementation_or_oracle.call(case)
    found, wanted = [result.dtype for result in results], of_results(case)
    implementation_or_oracle.require(
        case, tuple(found) == wanted, f"the results are {found}, not {list(wanted)}", results
    )


# --- addresses (R-X15) ---------------------------------------------------------------------------

STRIDED: tuple[Layout, ...] = ("transposed", "sliced", "padded", "broadcast", "offset")


@contract("xattention.addressing.strides")
@every_operation
@given(data=st.data())
@settings(max_examples=6)
def test_strides_do_not_matter(
    implementation: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Each tensor lies in its own way."""
    case = data.draw(cases(operation))
    plain = laid_out = case
    layouts = iter([data.draw(st.sampled_from(STRIDED)) for _ in tensors(case)])

    def lay_out(name: str, tensor: Tensor) -> Tensor:
        layout = next(layouts)
        if layout == "broadcast":  # all slices are the first
            values = to_torch(tensor)
            tensor = to_golden(values[:1].expand(values.shape))
        return replace(tensor, layout=layout)

    laid_out = mapped(case, lay_out)
    plain = mapped(laid_out, lambda _, tensor: replace(tensor, layout="contiguous"))
    implementation.require_close(
        laid_out,
        implementation.call(plain),
        implementation.call(laid_out),
        honest(implementation, plain),
        "a tensor of these strides is misread",
    )


@contract("xattention.addressing.strides")
@every_operation
@given(data=st.data())
@few
def test_memory_that_is_used_again_is_read_again(
    implementation: Runner, operation: Operation, data: st.DataObject
) -> None:
    """Allocators hand out the same addresses, and other values lie there then."""
    case = data.draw(cases(operation))

    def backwards(_: str, tensor: Tensor) -> Tensor:
        values = to_torch(tensor)
        return to_golden(values.flatten().flip(0).reshape(values.shape), tensor.layout)

    implementation.judge_again(case, mapped(case, backwards))


WIDE = [
    *[(o, name) for o in (SCORES, ESTIMATE) for name in ("query_states", "key_states")],
    *[(o, "attn_weights_slice") for o in SOFTMAX],
    *[(MERGE, name) for name in ("m_chunks", "l_chunks")],
    *[(NORMALISE, name) for name in ("m_global", "l_global")],
    (SELECT, "input_tensor"),
]


@contract("xattention.addressing.wide-offsets")
@pytest.mark.parametrize(("operation", "argument"), WIDE)
@given(data=st.data())
@very_few
def test_heads_may_be_two_to_the_thirty_elements_apart(
    implementation: Runner, operation: Operation, argument: str, data: st.DataObject
) -> None:
    """The third of them begins where 31 bits end, and each holds other values."""
    case = data.draw(cases(operation))

    def three_heads(_: str, tensor: Tensor) -> Tensor:
        values = to_torch(tensor)[:, :1]
        return to_golden(torch.cat([values, values / 2, values / 4], dim=1))

    plain = mapped(case, three_heads)
    first = next(tensor for name, _, tensor in tensors(plain) if name == argument)
    assume(any(first.data))
    wide = mapped(
        plain, lambda name, tensor: replace(tensor, layout="wide") if name == argument else tensor
    )
    implementation.require_close(
        wide,
        implementation.call(plain),
        implementation.call(wide),
        honest(implementation, plain),
        f"{argument} is misread where its heads are 2**30 elements apart",
    )


def require_same_far_apart(implementation: Runner, case: Case, name: str, dim: int = 3) -> None:
    """With an argument's columns, or rows, so far apart that the last ones begin where 31 bits have
    ended. What lies between is never touched.
    """
    values, apart = to_torch(case.tensor(name)), 2**24  # elements
    assert values.shape[:2] == (1, 1)
    near = implementation.judge(case)
    buffer = torch.empty(values.shape[dim] * apart, device=implementation.device)
    strides = (1, 1, apart, 1) if dim == 2 else (1, 1, 1, apart)
    far = buffer.as_strided(values.shape, strides).copy_(values)
    results = implementation.place(case, large={name: far})()
    implementation.require_close(
        case,
        near,
        tuple(result.cpu() for result in results),
        honest(implementation, case),
        f"{name} is misread where its {['rows', 'columns'][dim - 2]} are {apart} elements apart",
    )


def normal(*shape: int) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return to_golden(values, "transposed")


@contract("xattention.addressing.wide-offsets")
@pytest.mark.parametrize("operation", SOFTMAX)
def test_columns_may_be_megabytes_apart(implementation: Runner, operation: Operation) -> None:
    inputs: dict[str, Value] = {
        "attn_weights_slice": normal(1, 1, 4, 132),
        "reshaped_block_size": 4,
        "segment_size": 4,
        "chunk_start": 0,
        "scale": real(0.5),
        "is_causal": False,
    }
    if operation == ONE_PASS:
        inputs["chunk_end"] = 4
    if operation in BLOCK_SUMS:
        inputs["real_q_len"] = 4
    if operation == NORMALISE:
        inputs["m_global"] = to_golden(torch.full((1, 1, 4), 0.5))
        inputs["l_global"] = to_golden(torch.full((1, 1, 4), 64.0))
    require_same_far_apart(implementation, Case(operation, inputs), "attn_weights_slice")


@contract("xattention.addressing.wide-offsets")
@operations(SELECT)
def test_blocks_may_be_megabytes_apart(implementation: Runner) -> None:
    sums = to_golden(torch.arange(4 * 132.0).reshape(1, 1, 4, 132) % 7, "transposed")
    inputs: dict[str, Value] = {"input_tensor": sums, "current_index": 0, "threshold": real(0.5)}
    inputs["causal"] = False
    require_same_far_apart(implementation, Case(SELECT, inputs), "input_tensor")


@contract("xattention.addressing.wide-offsets")
@operations(SCORES)
@pytest.mark.parametrize("argument", ["query_states", "key_states"])
def test_dimensions_may_be_megabytes_apart(implementation: Runner, argument: str) -> None:
    states = {"query_states": normal(1, 1, 4, 132), "key_states": normal(1, 1, 8, 132)}
    case = Case(SCORES, {**states, "stride": 2, "chunk_start": 0, "chunk_end": 2})
    require_same_far_apart(implementation, case, argument)


@contract("xattention.addressing.wide-offsets")
@pytest.mark.parametrize("argument", ["query_states", "key_states"])
@pytest.mark.parametrize("operation", [SCORES, ESTIMATE])
def test_tokens_may_be_megabytes_apart(
    implementation: Runner, operation: Operation, argument: str
) -> None:
    inputs: dict[str, Value] = {"query_states": normal(1, 1, 132, 3), "stride": 2}
    inputs["key_states"] = normal(1, 1, 132, 3)
    if operation == SCORES:
        inputs |= {"chunk_start": 0, "chunk_end": 66}
    else:
        inputs |= {"block_size": 12, "chunk_size": 144}
    require_same_far_apart(implementation, Case(operation, inputs), argument, dim=2)


# --- memory (R-X7) -------------------------------------------------------------------------------


@contract("xattention.memory.in-bounds")
@pytest.mark.parametrize("operation", SOFTMAX)
@given(data=st.data(), beyond=st.integers(0, 3))
@few
def test_queries_past_the_last_key_read_nothing_past_it(
    implementation_or_oracle: Runner, operation: Operation, beyond: int, data: st.DataObject
) -> None:
    """Their diagonal block is none of the tensor's; the runner watches what surrounds it."""
    case = data.draw(softmax_cases(operation, causal=True, layouts=True))
    _, _, rows, keys = case.tensor("attn_weights_slice").shape
    start = keys + beyond * case.number("reshaped_block_size")
    if operation != ONE_PASS:
        start += case.number("kv_offset")
    past = case.changed(chunk_start=start)
    if operation == ONE_PASS:
        past = past.changed(chunk_end=start + rows)
    if operation in BLOCK_SUMS:
        past = past.changed(real_q_len=start + rows)
    implementation_or_oracle.call(past)


@contract("xattention.memory.in-bounds")
@operations(ESTIMATE)
@given(case=estimate_cases(layouts=True))
@few
def test_an_estimate_reads_nothing_past_ragged_tensors(
    implementation_or_oracle: Runner, case: Case
) -> None:
    """Lengths that neither the stride nor the block divides; the runner watches."""
    implementation_or_oracle.call(case)


@contract("xattention.memory.in-bounds", "xattention.inputs.unchanged")
@every_operation
@given(data=st.data())
@few
def test_a_call_reads_and_writes_its_tensors_and_changes_none(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    """The runner watches the memory around each tensor, the gaps in it, and its values."""
    implementation_or_oracle.call(data.draw(cases(operation, layouts=True)))
