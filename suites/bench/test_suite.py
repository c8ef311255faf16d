"""The suite itself: what a case costs its contributors. Timed on the host, whatever it runs on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from golden.record import Measurement
from kernels.catalog import load
from kernels.cuda import ToolchainMissing
from suites.bench.calls import GEOMETRIES, estimate_call, filled, witness_call
from suites.bench.figures import MEDIAN, THROUGHPUT
from suites.bench.timing import MICRO
from suites.bench.verification import case_of
from suites.cases import APPLY, ESTIMATE, STATS, Case, real, to_golden
from suites.runner import Runner

ROUNDS: Final = 5
CPU: Final = torch.device("cpu")
CALLS: Final = 100  # in a worker: a turn of the scheduler is not to be what is timed
ROWS: Final = 4  # of 2048 slots, for what takes software a millisecond each

TimeHost = Callable[[str, str, Callable[[], Any], int, str], None]


@pytest.fixture
def time_host(benchmark: BenchmarkFixture, measure: Callable[[Measurement], None]) -> TimeHost:
    """Times a call of the suite: what it is, by whom, and how many of what it gets through."""

    def record(subject: str, name: str, call: Callable[[], Any], count: int, what: str) -> None:
        benchmark.pedantic(call, rounds=ROUNDS, warmup_rounds=1)  # type: ignore[no-untyped-call]
        if benchmark.stats is not None:
            seconds = benchmark.stats.stats.median
            measure(Measurement(name, subject, MEDIAN, what, seconds * MICRO))
            measure(Measurement(name, subject, THROUGHPUT, what, count / seconds))

    return record


def rows_case() -> Case:
    return case_of(APPLY, filled(witness_call(APPLY, ROWS), CPU, 0))


def statistics_case() -> Case:
    scores = torch.randn(1, 1, 8, 1024, generator=torch.Generator().manual_seed(0))
    return Case(
        STATS,
        {
            "attn_weights_slice": to_golden(scores),
            "reshaped_block_size": 8,
            "segment_size": 8,
            "scale": real(1.0),
        },
    )


@pytest.mark.parametrize(
    ("make", "count", "what"),
    [(rows_case, ROWS, "rows"), (statistics_case, 8, "rows")],
    ids=["merge", "statistics"],
)
def test_oracle(make: Callable[[], Case], count: int, what: str, time_host: TimeHost) -> None:
    case = make()
    time_host(f"expected values, {case.operation}", "oracle", case.expected, count, what)


def test_bounds(time_host: TimeHost) -> None:
    case = statistics_case()
    time_host(f"bounds, {case.operation}", "oracle", case.bounds, 8, "rows")


def test_watch(time_host: TimeHost) -> None:
    """A call under watch, twice over different poisons, beside the call as it is."""
    case, runner = rows_case(), Runner(load("torch"), CPU)
    time_host(f"watched call, {case.operation}", "torch", lambda: runner.call(case), 1, "calls")


IN_A_WORKER: Final = """
def apply_topology_witnesses(
    learned_indices, context_lens, learned_keep, num_segments, max_replacements
):
    return learned_indices.clone()
"""


def test_worker(tmp_path: Path, time_host: TimeHost) -> None:
    """A call that does next to nothing, there and back."""
    (tmp_path / "a_module.py").write_text(IN_A_WORKER, encoding="utf-8")
    file = tmp_path / "worker.toml"
    file.write_text('name = "worker"\nimport = "a_module"\npath = ["."]\n', encoding="utf-8")
    implementation = load(f"toml:{file}")
    assert implementation.worker is not None
    inputs = filled(witness_call(APPLY, ROWS), CPU, 0)
    function = implementation.operations[APPLY]

    def calls() -> None:
        for _ in range(CALLS):
            function(**inputs)

    try:
        time_host(f"call in a worker, {APPLY}", "worker", calls, CALLS, "calls")
    finally:
        implementation.worker.close()


@pytest.mark.parametrize("name", ["triton", "cuda"])
def test_kernels_on_the_host(name: str, time_host: TimeHost) -> None:
    """Triton's interpreter, and CUDA C++ a fiber a thread."""
    implementation = load(name)
    try:
        for source in implementation.sources:
            source.require(CPU)
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
    inputs = filled(witness_call(APPLY, ROWS), CPU, 0)
    function = implementation.operations[APPLY]
    time_host(f"kernel on the host, {APPLY}", name, lambda: function(**inputs), ROWS, "rows")


def test_oracle_of_an_estimate(time_host: TimeHost) -> None:
    """The slowest oracle, of one head and two blocks."""
    geometry = replace(GEOMETRIES[False], heads=1)
    inputs = filled(estimate_call(geometry, 256, geometry.stride, "float32"), CPU, 0)
    case = case_of(ESTIMATE, inputs)
    time_host("expected values, xattn_estimate", "oracle", case.expected, 1, "cases")
