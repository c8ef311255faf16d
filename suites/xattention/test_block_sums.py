"""Block sums, by one pass and by given statistics: weights, mass, and what has none."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from golden.model import Operation, Value
from suites.cases import ESTIMATE, NORMALISE, ONE_PASS, Case, real, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import (
    BLOCK_SUMS,
    estimate_cases,
    logits,
    softmax_cases,
    visible,
)
from suites.xattention import dense
from suites.xattention.stages import chunks, of_keys

both = pytest.mark.parametrize("operation", BLOCK_SUMS)


def _real(case: Case) -> NDArray[np.bool_]:
    """Which query rows are below ``real_q_len``, by their positions: ``[q_len]``."""
    rows = np.arange(case.tensor("attn_weights_slice").shape[2])
    below: NDArray[np.bool_] = case.number("chunk_start") + rows < case.number("real_q_len")
    return below


# --- weights -------------------------------------------------------------------------------------


@contract("xattention.block-sum.weights")
@both
@given(data=st.data())
@settings(max_examples=20)
def test_entries_are_sums_of_weights(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(softmax_cases(operation))
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.block-sum.weights")
@pytest.mark.parametrize(("block", "k_blocks"), [(1, 300), (7, 40), (33, 3), (64, 2), (70, 1)])
@both
@given(data=st.data())
@settings(max_examples=2)
def test_blocks_of_any_size_and_number(
    implementation_or_oracle: Runner,
    operation: Operation,
    block: int,
    k_blocks: int,
    data: st.DataObject,
) -> None:
    case = data.draw(softmax_cases(operation, blocks=st.just(block), k_blocks=st.just(k_blocks)))
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.block-sum.weights")
@both
@pytest.mark.parametrize(("block", "k_blocks"), [(520, 2), (64, 16), (32, 16)])
def test_blocks_as_wide_as_a_program_reads(
    implementation_or_oracle: Runner, operation: Operation, block: int, k_blocks: int
) -> None:
    """Of the columns that a program takes at a time there may be enough for one block and a half,
    or the blocks may need all of them.

    Three rows count; the others are padding.
    """
    shape = 1, 2, block, k_blocks * block
    scores = (torch.arange(math.prod(shape)) % 7 * 0.25).reshape(shape)
    inputs: dict[str, Value] = {
        "attn_weights_slice": to_golden(scores),
        "reshaped_block_size": block,
        "segment_size": block,
        "chunk_start": 0,
        "real_q_len": 3,
        "scale": real(1.0),
        "is_causal": False,
    }
    if operation == ONE_PASS:
        inputs["chunk_end"] = block
    else:
        statistics = dense.statistics(scores.double().numpy())
        for name, values in zip(("m_global", "l_global"), statistics, strict=True):
            inputs[name] = to_golden(torch.from_numpy(values).float())
    case = Case(operation, inputs)
    implementation_or_oracle.judge(case, dense.results(case))


# --- the future ----------------------------------------------------------------------------------


def _future(case: Case) -> NDArray[np.bool_]:
    """The blocks whose first key comes after their last row: ``[q_blocks, k_blocks]``."""
    if case.operation == ESTIMATE:
        block = case.number("block_size")
        q_len, k_len = (case.tensor(name).shape[2] for name in ("query_states", "key_states"))
        start, offset = k_len - q_len, 0
    else:
        block = case.number("reshaped_block_size")
        q_len, k_len = case.tensor("attn_weights_slice").shape[2:]
        start = case.number("chunk_start")
        offset = case.number("kv_offset") if "kv_offset" in case.inputs else 0
    last_rows = start + np.arange(block - 1, q_len, block)
    first_keys = offset + np.arange(0, k_len, block)
    after: NDArray[np.bool_] = first_keys > last_rows[:, None]
    return after


@contract("xattention.block-sum.future-zero")
@pytest.mark.parametrize("operation", [*BLOCK_SUMS, ESTIMATE])
@given(data=st.data())
@settings(max_examples=8)
def test_blocks_after_their_rows_have_no_mass(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    if operation == ESTIMATE:
        cases = estimate_cases(causal=True, whole=True)
        cases = cases.map(lambda case: case.changed(chunk_size=100 * case.number("block_size")))
    else:
        cases = softmax_cases(operation, causal=True)
    case = data.draw(cases.filter(lambda case: bool(_future(case).any())))
    results = implementation_or_oracle.call(case)
    future = torch.from_numpy(_future(case))
    implementation_or_oracle.require(
        case,
        bool((results[0][:, :, future] == 0).all()),
        "a block whose keys all come after its rows has mass",
        results,
    )


# --- mass ----------------------------------------------------------------------------------------


def _require_mass(
    runner: Runner, case: Case, sums: torch.Tensor, bounds: torch.Tensor, roundings: int
) -> None:
    """The sums of a query block add up to its real rows, ``case`` being of one pass.

    Each is off by its bound and by one rounding to its type, from what is exact; where statistics
    came rounded to fp32, the mass of each row by ``roundings`` more of these.
    """
    seen = _real(case) & visible(case).any(-1)
    rows = torch.from_numpy(seen.reshape(-1, case.number("reshaped_block_size")).sum(-1))
    limits = torch.finfo(sums.dtype)
    step = limits.eps * (sums.double().abs() + bounds) + limits.smallest_normal * limits.eps
    error = (sums.double().sum(-1) - rows).abs()
    runner.require(
        case,
        bool((error <= (bounds + step).sum(-1) + rows * roundings * 2.0**-24).all()),
        f"the mass of the query blocks is not the number of their real rows, {rows.tolist()}",
        (sums,),
    )


@contract("xattention.mass.rows")
@operations(ONE_PASS)
@given(case=softmax_cases(ONE_PASS, padded=True))
@settings(max_examples=20)
def test_the_mass_of_one_pass(implementation_or_oracle: Runner, case: Case) -> None:
    (sums,) = implementation_or_oracle.call(case)
    (bounds,) = case.bounds()
    assert bounds is not None
    _require_mass(implementation_or_oracle, case, sums, bounds, roundings=0)


@contract("xattention.mass.rows")
@operations(NORMALISE)
@given(data=st.data())
@settings(max_examples=15)
def test_the_mass_of_all_chunks(implementation_or_oracle: Runner, data: st.DataObject) -> None:
    """By statistics worked out here: m is rounded to fp32 first and l, over that m, afterwards."""
    case = data.draw(softmax_cases(ONE_PASS, padded=True))
    x = logits(case)
    m = torch.from_numpy(x.max(-1)).float()
    total = torch.from_numpy(np.exp(x - m.double().numpy()[..., None]).sum(-1)).float()
    statistics = {"m_global": to_golden(m), "l_global": to_golden(total)}
    block = case.number("reshaped_block_size")
    ends = data.draw(chunks(x.shape[-1], block), label="chunks")
    stages = [of_keys(case, NORMALISE, *chunk).changed(**statistics) for chunk in pairwise(ends)]
    sums = torch.cat([implementation_or_oracle.call(stage)[0] for stage in stages], -1)
    bounds = [bound for stage in stages for bound in stage.bounds() if bound is not None]
    _require_mass(implementation_or_oracle, case, sums, torch.cat(bounds, -1), roundings=1)


# --- padded rows ---------------------------------------------------------------------------------


@contract("xattention.padding.query-rows")
@both
@given(data=st.data())
@settings(max_examples=20)
def test_padded_rows_add_nothing(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject
) -> None:
    case = data.draw(softmax_cases(operation, padded=True))
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.padding.query-rows")
@both
@given(data=st.data(), row=st.integers(-20, 3))
@settings(max_examples=10)
def test_rows_count_from_the_start_of_the_sequence(
    implementation_or_oracle: Runner, operation: Operation, data: st.DataObject, row: int
) -> None:
    """A chunk of queries past the last real one adds nothing at all; real_q_len may be 0."""
    case = data.draw(softmax_cases(operation))
    case = case.changed(real_q_len=max(case.number("chunk_start") + row, 0))
    implementation_or_oracle.judge(case, dense.results(case))


@contract("xattention.padding.query-rows")
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), 3e4, -3e4])
@both
@given(data=st.data())
@settings(max_examples=4)
def test_whatever_padded_rows_hold(
    implementation_or_oracle: Runner, operation: Operation, garbage: float, data: st.DataObject
) -> None:
    """Scores and statistics of theirs reach no bit of a block sum."""
    cases = softmax_cases(operation, padded=True)
    case = data.draw(cases.filter(lambda case: not _real(case).all()))
    padded = ~torch.from_numpy(_real(case))
    spoiled = {}
    for name in ("attn_weights_slice", "m_global", "l_global"):
        if name in case.inputs:
            values = to_torch(case.tensor(name))
            values[:, :, padded] = garbage
            spoiled[name] = to_golden(values)
    before, after = (
        implementation_or_oracle.call(each) for each in (case, case.changed(**spoiled))
    )
    implementation_or_oracle.require_same(
        case.changed(**spoiled), before, after, "what padded rows hold reaches a block sum"
    )
