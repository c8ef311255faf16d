"""What a worker costs: a small call is made in turns with the same call in this process."""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kernels.catalog import Implementation
from suites.cases import APPLY
from suites.selftest.worker.declared import declare, running

AT_MOST = 0.3e-3  # seconds
PAIRS = 200
TRIES = 5  # a machine that is busy may take a turn away, but not every time

MODULE = """
def apply_topology_witnesses(
    learned_indices, context_lens, learned_keep, num_segments, max_replacements
):
    return learned_indices.clone()
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Implementation]:
    folder = tmp_path_factory.mktemp("cost")
    (folder / "small_call.py").write_text(MODULE, encoding="utf-8")
    with running(declare(folder, name="cost", path=["."], **{"import": "small_call"})) as runner:
        yield runner.implementation


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def test_a_small_call_costs_no_more_than_three_tenths_of_a_millisecond(
    worker: Implementation,
) -> None:
    """The quartile of the differences: half of a busy machine's noise is other people's work."""
    learned = torch.arange(4 * 64, dtype=torch.int32).reshape(4, 64)
    lengths = torch.full((4,), 4096, dtype=torch.int64)
    there = worker.operations[APPLY]

    def remote() -> object:
        return there(learned, lengths, 48, 16, 16)

    def local() -> object:
        return learned.clone()

    assert torch.equal(there(learned, lengths, 48, 16, 16), learned)
    quartiles = []
    for _ in range(TRIES):
        differences = [seconds(remote) - seconds(local) for _ in range(PAIRS)]
        quartiles.append(statistics.quantiles(differences, n=4)[0])
        if quartiles[-1] <= AT_MOST:
            return
    pytest.fail(f"a call costs {min(quartiles) * 1e3:.2f} ms more in a worker, not at most 0.3")


def test_a_worker_is_not_started_anew_for_each_call(worker: Implementation) -> None:
    """A second of starts would leave hypothesis a handful of cases where it needs hundreds."""
    learned = torch.zeros(1, 4, dtype=torch.int32)
    lengths = torch.ones(1, dtype=torch.int32)
    assert worker.worker is not None
    (process,) = worker.worker._process
    for keep in range(5):
        worker.operations[APPLY](learned, lengths, keep, 1, 1)
    assert worker.worker._process == [process]
