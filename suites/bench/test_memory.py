"""Peak memory against length, by the allocator, beside the formulas of the source (R-X13)."""

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from golden.record import Measurement
from kernels.catalog import load
from oracles import storage
from suites.bench.calls import GEOMETRIES, THRESHOLD, estimate_call, filled
from suites.bench.device import Device
from suites.bench.figures import FORMULA, PEAK
from suites.bench.timing import positional
from suites.bench.verification import Verification
from suites.cases import ESTIMATE, ONE_PASS, SCORES, SELECT
from suites.runner import Runner

MIB: Final = 2**20
GIB: Final = 2**30
FREE: Final = 0.9  # of the memory, at most

Inputs = dict[str, Any]
Way = Callable[[Runner, Inputs], tuple[Tensor, Tensor]]
RecordPeak = Callable[[str, int, Way], None]


@pytest.fixture
def record_peak(
    tokens: int,
    implementation: Runner,
    device: Device,
    measure: Callable[[Measurement], None],
) -> RecordPeak:
    """Measures one way to the block sums and the mask of so many tokens, once it is verified."""
    geometry = GEOMETRIES[device.full_size]

    def record(name: str, formula: int, way: Way) -> None:
        if formula > FREE * device.memory:
            pytest.skip(
                f"{name} takes {formula / GIB:.0f} GiB, {device.name} has "
                f"{device.memory / GIB:.0f}: measured on a larger device only"
            )
        call = estimate_call(geometry, tokens, geometry.storage_stride, "float32")
        inputs = filled(call, device.place, 0)
        way(implementation, _first_block(inputs))  # what a first call does once is not counted
        peak, results = device.peak(lambda: way(implementation, inputs))
        reference = load("torch").operations[ESTIMATE](**inputs)
        verification = Verification(implementation, ESTIMATE, [inputs], [reference])
        verification.check(0, results)
        verification.judge()
        for quantity, value in ((PEAK, peak), (FORMULA, formula)):
            subject = f"{name} S {tokens}"
            measure(Measurement(implementation.name, subject, quantity, name, value / MIB))

    return record


@pytest.mark.operations(SCORES, ONE_PASS, SELECT)
@pytest.mark.contract("xattention.storage.peak")
def test_one_pass(tokens: int, device: Device, record_peak: RecordPeak) -> None:
    """All scores at once, in fp32 as the source counts them."""
    g = GEOMETRIES[device.full_size]
    record_peak("one pass", storage.peak_one_pass(1, g.heads, tokens, g.storage_stride), one_pass)


@pytest.mark.operations(ESTIMATE)
@pytest.mark.contract("xattention.storage.peak")
def test_estimate(tokens: int, device: Device, record_peak: RecordPeak) -> None:
    """The scores of a chunk of keys, as three stages keep them. An implementation may keep none."""
    g = GEOMETRIES[device.full_size]
    sizes = 1, g.heads, tokens, g.storage_stride, g.tokens
    formula = storage.peak_three_stages(*sizes) + storage.total_extra(*sizes)
    record_peak("estimate", formula, estimate)


def one_pass(runner: Runner, inputs: Inputs) -> tuple[Tensor, Tensor]:
    queries, stride = inputs["query_states"], inputs["stride"]
    tokens, head_dim = queries.shape[2:]
    block, end = inputs["block_size"] // stride, tokens // stride
    unit = math.log(runner.implementation.exponent_base)
    scale = 1 / (math.sqrt(head_dim) * stride) / unit
    operations = runner.implementation.operations
    scores = operations[SCORES](queries, inputs["key_states"], stride, 0, end, True, torch.float32)
    sums = operations[ONE_PASS](scores, block, block, 0, end, end, scale, True)
    del scores
    return sums, operations[SELECT](sums, 0, THRESHOLD)


def estimate(runner: Runner, inputs: Inputs) -> tuple[Tensor, Tensor]:
    sums, mask = runner.implementation.operations[ESTIMATE](*positional(ESTIMATE, inputs, runner))
    return sums, mask


def _first_block(inputs: Inputs) -> Inputs:
    shorter = {
        name: inputs[name][:, :, : inputs["block_size"]] for name in ("query_states", "key_states")
    }
    return {**inputs, **shorter, "chunk_size": inputs["block_size"]}
