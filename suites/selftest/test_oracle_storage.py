"""The storage oracle against the figures that the source prints."""

from fractions import Fraction

import pytest

from oracles import storage
from oracles.storage import GIB, MIB

K = 1024
# The source's typical values.
SHAPE = {"batch": 1, "heads": 32, "stride": 4}
CHUNK = 16 * K


def test_the_examples_of_the_source() -> None:
    assert storage.peak_one_pass(seq_len=64 * K, **SHAPE) == 32 * GIB
    assert storage.stats(tokens=CHUNK, **SHAPE) == 1 * MIB
    assert storage.stats(tokens=64 * K, **SHAPE) == 4 * MIB
    assert storage.total_extra(seq_len=64 * K, chunk_size=CHUNK, **SHAPE) == 8 * MIB


@pytest.mark.parametrize(
    ("kilo_tokens", "chunks", "scores", "extra", "percent"),
    [
        (16, 1, 2, 2, "0.1"),
        (32, 2, 8, 4, "0.05"),
        (64, 4, 32, 8, "0.025"),
        (128, 8, 128, 16, "0.012"),
    ],
)
def test_the_table_of_the_source(
    kilo_tokens: int, chunks: int, scores: int, extra: int, percent: str
) -> None:
    seq_len = kilo_tokens * K
    assert storage.num_kv_chunks(seq_len, CHUNK) == chunks
    assert storage.peak_one_pass(seq_len=seq_len, **SHAPE) == scores * GIB
    assert storage.total_extra(seq_len=seq_len, chunk_size=CHUNK, **SHAPE) == extra * MIB
    relative = storage.relative_extra(seq_len=seq_len, chunk_size=CHUNK, **SHAPE)
    assert relative == Fraction(extra * MIB, scores * GIB)
    assert storage.printed_percentage(relative) == percent


def test_the_peak_of_the_source() -> None:
    """S = 128K, C = 16K: about 128 GB against about 16 GB, an eighth."""
    assert storage.peak_one_pass(seq_len=128 * K, **SHAPE) == 128 * GIB
    assert storage.peak_three_stages(seq_len=128 * K, chunk_size=CHUNK, **SHAPE) == 16 * GIB


@pytest.mark.parametrize("tokens", [32 * K, 64 * K, 4096 * K])
def test_the_orders_of_growth_of_the_source(tokens: int) -> None:
    """Doubling S: scores O(S**2), statistics O(S), their ratio O(1 / S), the peak O(S * C)."""
    sizes = [
        (
            storage.peak_one_pass(seq_len=seq_len, **SHAPE),
            storage.total_extra(seq_len=seq_len, chunk_size=CHUNK, **SHAPE),
            storage.relative_extra(seq_len=seq_len, chunk_size=CHUNK, **SHAPE),
            storage.peak_three_stages(seq_len=seq_len, chunk_size=CHUNK, **SHAPE),
        )
        for seq_len in (tokens, 2 * tokens)
    ]
    growth = [Fraction(large) / small for small, large in zip(*sizes, strict=True)]
    assert growth == [4, 2, Fraction(1, 2), 2]


def test_sizes_that_do_not_divide_are_rounded_up() -> None:
    """64891 tokens, a length of the source's tests: 16223 positions of 4, the last one partial."""
    assert storage.positions(64891, 4) == 16223
    assert storage.num_kv_chunks(64891, CHUNK) == 4
    assert storage.peak_one_pass(1, 1, 64891, 4) == 16223 * 16223 * 4
    assert storage.total_extra(1, 1, 64891, 4, CHUNK) == 4 * 2 * 4096 * 4 + 2 * 16223 * 4


def test_one_chunk_is_no_larger_than_the_keys() -> None:
    one_pass = storage.peak_one_pass(seq_len=3688, **SHAPE)
    assert storage.peak_three_stages(seq_len=3688, chunk_size=CHUNK, **SHAPE) == one_pass
