"""How much memory a call takes at its peak, and how that grows with the length (R-X13).

A chunk of keys keeps its size here while the length grows to four times. What grows linearly is
then at most four times as much, what grows with the square sixteen, and what is constant draws
either down. So a peak grows with one power of the length and not with the next as long as it stays
below what lies halfway, by ratio. Blocks are few, as their number squared is in every result.
"""

from collections.abc import Callable

import pytest
import torch

from golden.model import Operation, Value
from golden.record import Measurement
from suites.cases import ESTIMATE, MERGE, NORMALISE, ONE_PASS, STATS, Case, real, to_golden
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.verdicts import Nonconformance

GROWTH = 4
CHUNK = 32  # positions, of one token each; a chunk is a block
SHORT = 2 * CHUNK


def estimate(length: int) -> Case:
    states = torch.linspace(-1, 1, length).reshape(1, 1, length, 1)
    inputs: dict[str, Value] = {
        "query_states": to_golden(states),
        "key_states": to_golden(states),
        "block_size": CHUNK,
        "stride": 1,
        "chunk_size": CHUNK,
    }
    return Case(ESTIMATE, inputs)


def softmax(operation: Operation, rows: int, columns: int) -> Case:
    """Equal scores, of all queries and of so many keys."""
    inputs: dict[str, Value] = {
        "attn_weights_slice": to_golden(torch.zeros(1, 1, rows, columns)),
        "reshaped_block_size": CHUNK,
        "segment_size": CHUNK,
        "scale": real(1.0),
        "is_causal": False,
    }
    if operation != STATS:
        inputs |= {"chunk_start": 0, "real_q_len": rows}
    if operation == ONE_PASS:
        inputs["chunk_end"] = rows
    if operation == NORMALISE:
        m, total = torch.zeros(1, 1, rows), torch.full((1, 1, rows), float(columns))
        inputs |= {"m_global": to_golden(m), "l_global": to_golden(total)}
    return Case(operation, inputs)


def merge(chunks: int) -> Case:
    """Partial statistics of as many rows as the source's tables count: those of a chunk."""
    m, total = (to_golden(torch.full((1, 1, CHUNK), value)) for value in (0.0, float(CHUNK)))
    return Case(MERGE, {"m_chunks": (m,) * chunks, "l_chunks": (total,) * chunks})


Measure = Callable[[Measurement], None]


def require_power(runner: Runner, measure: Measure, power: int, short: Case, long: Case) -> None:
    """Require the peak to grow with no higher power of the length, and put both on record."""
    less, more = runner.peak(short), runner.peak(long)
    for length, peak in (("S", less), (f"{GROWTH} S", more)):
        measure(Measurement(runner.name, long.operation, "peak KiB", length, peak / 1024))
    if more > GROWTH ** (power + 0.5) * less:
        raise Nonconformance(
            f"for {GROWTH} times the length, {long.operation} holds {more:,} bytes beside its "
            f"inputs in place of {less:,}, and about {GROWTH**power * less:,} are due",
            long,
        )


@contract("xattention.storage.peak")
@operations(ESTIMATE)
def test_an_estimate_holds_scores_of_chunks(implementation: Runner, measure: Measure) -> None:
    """Of one side all, of the other a chunk, or none at all."""
    require_power(implementation, measure, 1, estimate(SHORT), estimate(GROWTH * SHORT))


@contract("xattention.storage.peak")
@pytest.mark.parametrize("operation", [STATS, NORMALISE])
def test_a_stage_takes_memory_for_one_chunk_of_keys(
    implementation: Runner, operation: Operation, measure: Measure
) -> None:
    short, long = (softmax(operation, n * CHUNK, CHUNK) for n in (8, 8 * GROWTH))
    require_power(implementation, measure, 1, short, long)


@contract("xattention.storage.peak")
@operations(MERGE)
def test_a_merge_takes_memory_for_the_statistics_of_all_chunks(
    implementation: Runner, measure: Measure
) -> None:
    require_power(implementation, measure, 1, merge(4), merge(GROWTH * 4))


@contract("xattention.storage.peak")
@operations(ONE_PASS)
def test_one_pass_takes_memory_for_all_scores(implementation: Runner, measure: Measure) -> None:
    """They are its input, so that as much again, or several times, is of their order."""
    short, long = (softmax(ONE_PASS, length, length) for length in (SHORT, GROWTH * SHORT))
    require_power(implementation, measure, 2, short, long)
