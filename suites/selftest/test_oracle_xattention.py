"""The XAttention oracle against hand values, other formulations, and the rulings."""

import itertools
import math
import random
import struct
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import xattention as oracle
from oracles.selection import Result, find_blocks_chunked

NAN, INF = math.nan, math.inf
Matrix = Sequence[Sequence[float]]


def tensor(matrix: Matrix, dtype: str = "float32") -> Result:
    """One batch entry, one head."""
    width = len(matrix[0]) if matrix else 0
    return Result(dtype, (1, 1, len(matrix), width), tuple(itertools.chain(*matrix)))


def matrix_of(result: Result) -> list[list[float]]:
    width = result.shape[-1]
    return [list(result.data[at : at + width]) for at in range(0, len(result.data), width)]


def random_scores(seed: int, height: int, width: int, size: float = 4.0) -> list[list[float]]:
    draw = random.Random(seed)
    return [[draw.gauss(0, size) for _ in range(width)] for _ in range(height)]


def same(one: Sequence[float], other: Sequence[float]) -> bool:
    return [x.hex() for x in map(float, one)] == [x.hex() for x in map(float, other)]


# --- element types (R-X10, R-X16) ----------------------------------------------------------------

FLOATS = st.floats(allow_nan=False, width=64) | st.floats(-7e4, 7e4) | st.floats(-1e-6, 1e-6)


@pytest.mark.parametrize(("dtype", "code"), [("float32", "f"), ("float16", "e")])
@given(value=FLOATS)
def test_rounding_is_that_of_the_machine(dtype: str, code: str, value: float) -> None:
    try:
        (expected,) = struct.unpack(code, struct.pack(code, value))
    except OverflowError:
        expected = math.copysign(INF, value)
    assert oracle.round_to(value, dtype) == expected


@given(value=FLOATS)
def test_rounding_to_bfloat16_takes_the_nearer_neighbour(value: float) -> None:
    """The neighbours are fp32 patterns with the lower half clear, or 2**128."""
    bits = 0
    for bit in reversed(range(15)):
        (below,) = struct.unpack(">f", struct.pack(">I", (bits | 1 << bit) << 16))
        if math.isfinite(below) and below <= abs(value):
            bits |= 1 << bit
    values = [
        Fraction(2) ** 128 if pattern == 0x7F80 else Fraction(struct.unpack(">f", packed)[0])
        for pattern in (bits, bits + 1)
        for packed in [struct.pack(">I", pattern << 16)]
    ]
    if not math.isfinite(value):
        expected = INF
    else:
        gaps = [abs(Fraction(abs(value)) - each) for each in values]
        pick = gaps[1] < gaps[0] or (gaps[1] == gaps[0] and bits % 2 == 1)
        expected = INF if pick and values[1] == 2**128 else float(values[pick])
    assert oracle.round_to(value, "bfloat16") == math.copysign(expected, value)


def test_inputs_are_quantised_and_nan_and_infinities_kept() -> None:
    (row,) = oracle.matrices(tensor([[0.1, NAN, INF, -INF]], "float16"))[0]
    assert row[0] == Fraction(0.0999755859375)
    assert math.isnan(row[1])
    assert row[2:] == [INF, -INF]


# --- scores (R-X1, R-X16) ------------------------------------------------------------------------


def test_the_hand_value_of_the_scores() -> None:
    queries, keys = (tensor([[1.0 + i % 2] * 128 for i in range(length)]) for length in (8, 12))
    result = oracle.flat_group_gemm_fuse_reshape(queries, keys, 4, 0, 2, is_causal=False)
    assert result == Result("float32", (1, 1, 2, 3), (1024.0,) * 6)


def test_a_score_is_the_antidiagonal_of_its_tile() -> None:
    """One-hot rows: query row a meets key row b in the score of their tiles where a + b = T - 1."""
    for a, b in itertools.product(range(6), repeat=2):
        queries = [[float(i == a)] for i in range(6)]
        keys = [[float(j == b)] for j in range(6)]
        result = oracle.flat_group_gemm_fuse_reshape(tensor(queries), tensor(keys), 3, 0, 2)
        expected = [
            float(i == a // 3 and j == b // 3 and a % 3 + b % 3 == 2)
            for i in range(2)
            for j in range(2)
        ]
        assert list(result.data) == expected


def test_heads_and_batch_entries_stay_apart() -> None:
    queries = Result("float32", (2, 2, 1, 1), (1.0, 2.0, 3.0, 4.0))
    keys = Result("float32", (2, 2, 2, 1), tuple(map(float, range(8))))
    result = oracle.flat_group_gemm_fuse_reshape(queries, keys, 1, 0, 1)
    assert result == Result("float32", (2, 2, 1, 2), (0, 1, 4, 6, 12, 15, 24, 28))


@pytest.mark.parametrize(
    ("queries", "out_dtype", "expected"),
    [
        ([65519.0], None, 65504.0),
        ([65504.0, 16.0], None, INF),
        ([-65504.0, -16.0], None, -INF),
        ([65504.0, 16.0], "float32", 65520.0),
        ([65504.0, 16.0], "bfloat16", 65536.0),
        ([2.0**-24, 2.0**-24], None, 2.0**-23),
    ],
)
def test_scores_leave_the_range_of_their_type_as_ieee_says(
    queries: list[float], out_dtype: str | None, expected: float
) -> None:
    keys = tensor([[1.0] * len(queries)], "float16")
    result = oracle.flat_group_gemm_fuse_reshape(
        tensor([queries], "float16"), keys, 1, 0, 1, out_dtype=out_dtype
    )
    assert result.dtype == (out_dtype or "float16")
    assert result.data == (expected,)


def test_infinities_of_both_signs_add_up_to_nan() -> None:
    """As IEEE says; what a row holds that nobody looks at may be infinite."""
    queries = tensor([[INF, INF, 1.0]])
    keys = tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    first, second = oracle.flat_group_gemm_fuse_reshape(queries, keys, 1, 1, 2).data
    assert math.isnan(first)
    assert second == INF


def test_a_score_is_summed_exactly() -> None:
    queries, keys = tensor([[1e30, 1.0, -1e30]]), tensor([[1e8, 1.0, 1e8]])
    assert oracle.flat_group_gemm_fuse_reshape(queries, keys, 1, 0, 1).data == (1.0,)


# --- statistics by hand (R-X2, R-X4, R-X11, R-X18) -----------------------------------------------

LN2, LN3 = math.log(2), math.log(3)


def test_a_small_softmax_by_hand() -> None:
    """Odds 1 : 2 : 3 over a maximum of ln 3: l = 1/3 + 2/3 + 1 = 2, weights 1/6, 1/3, 1/2."""
    row = [0.0, LN2, LN3]
    m, total = oracle.row_stats(row)
    assert m == LN3
    assert total == pytest.approx(2, rel=1e-15)
    assert oracle.weights(row, m, total) == pytest.approx([1 / 6, 1 / 3, 1 / 2], rel=1e-15)


def test_the_scale_multiplies_scores() -> None:
    m, total = oracle.softmax_compute_partial_stats(tensor([[4.0, 8.0, 8.0]]), 1, 1, 0.25)
    assert m.data == (2.0,)
    assert total.data == (oracle.round_to(2 + math.exp(-1), "float32"),)
    assert (m.dtype, m.shape) == (total.dtype, total.shape) == ("float32", (1, 1, 1))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([], (-INF, 0.0)),
        ([-INF, -INF], (-INF, 0.0)),
        ([-INF, 1.0, -INF, 1.0, -INF], (1.0, 2.0)),
        ([-1e8, -1e8], (-1e8, 2.0)),
        ([-2e6] * 3, (-2e6, 3.0)),
        ([1e30, -1e30], (oracle.round_to(1e30, "float32"), 1.0)),
        ([0.0, NAN], (NAN, NAN)),
        ([NAN, -INF], (NAN, NAN)),
    ],
)
def test_the_statistics_of_odd_rows(row: list[float], expected: tuple[float, float]) -> None:
    m, total = oracle.softmax_compute_partial_stats(tensor([row], "float32"), 1, 1, 1.0)
    assert same((*m.data, *total.data), expected)


@pytest.mark.parametrize("shape", [(1, 2, 0, 5), (2, 1, 3, 0), (1, 1, 0, 0), (0, 3, 2, 2)])
def test_statistics_take_any_length(shape: tuple[int, ...]) -> None:
    empty = Result("float16", shape, (0.0,) * math.prod(shape))
    m, total = oracle.softmax_compute_partial_stats(empty, 4, 8, 1.0)
    rows = math.prod(shape[:3])
    assert m == Result("float32", shape[:3], (-INF,) * rows)
    assert total == Result("float32", shape[:3], (0.0,) * rows)


@given(start=st.integers(0, 9), offset=st.integers(0, 9))
def test_a_key_is_visible_up_to_its_own_position(start: int, offset: int) -> None:
    """R-X3, for every pair of offsets: l counts the keys of equal scores."""
    m, total = oracle.softmax_compute_partial_stats(
        tensor([[0.0] * 4] * 5), 2, 2, 1.0, start, offset, True
    )
    counts = [sum(offset + j <= start + i for j in range(4)) for i in range(5)]
    assert list(total.data) == counts
    assert list(m.data) == [0.0 if count else -INF for count in counts]


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
def test_masked_positions_reach_no_bit(garbage: float) -> None:
    """R-X6, for statistics, one pass and normalisation."""
    clean = random_scores(0, 4, 4)
    dirty = [[v if j <= i else garbage for j, v in enumerate(row)] for i, row in enumerate(clean)]
    stats = [
        oracle.softmax_compute_partial_stats(tensor(x), 2, 2, 1.0, is_causal=True)
        for x in (clean, dirty)
    ]
    assert stats[0] == stats[1]
    one_pass = [
        oracle.softmax_fuse_block_sum(tensor(x), 2, 2, 0, 4, 4, 1.0) for x in (clean, dirty)
    ]
    assert one_pass[0] == one_pass[1]
    last_stage = [
        oracle.softmax_normalize_and_block_sum(
            tensor(x), *stats[0], 2, 2, 0, 4, 1.0, is_causal=True
        )
        for x in (clean, dirty)
    ]
    assert last_stage[0] == last_stage[1]


# --- the merge (R-X4, R-X5, R-X11) ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(2.5, 3.0)], (2.5, 3.0)),
        ([(0.0, 4.0), (LN2, 2.0)], (LN2, 4.0)),
        ([(-INF, 0.0)] * 3, (-INF, 0.0)),
        ([(-INF, 0.0), (-7.0, 2.0), (-INF, 0.0)], (-7.0, 2.0)),
        ([(-1e30, 1.0), (1e30, 1.0)], (1e30, 1.0)),
        ([(-1e8, 5.0), (-1e8, 6.0)], (-1e8, 11.0)),
        ([(1.0, 2.0), (NAN, NAN), (-INF, 0.0)], (NAN, NAN)),
        ([(NAN, NAN)], (NAN, NAN)),
    ],
)
def test_the_merge_by_hand(parts: list[tuple[float, float]], expected: tuple[float, float]) -> None:
    for order in itertools.permutations(parts):
        chunks = [[Result("float32", (1, 1, 1), (pair[k],)) for pair in order] for k in (0, 1)]
        merged = oracle.merge_softmax_stats(*chunks)
        rounded = [oracle.round_to(value, "float32") for value in expected]
        assert [m.data[0] for m in merged] == pytest.approx(rounded, rel=2**-23, nan_ok=True)


# --- block sums by hand (R-X4, R-X7, R-X8, R-X11) ------------------------------------------------

# Row i sees i + 1 equal scores: each weighs 1 / (i + 1).
CAUSAL_BY_HAND = [[Fraction(2), Fraction(0)], [Fraction(7, 6), Fraction(5, 6)]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_causal_block_sums_by_hand(dtype: str) -> None:
    result = oracle.softmax_fuse_block_sum(tensor([[3.0] * 4] * 4, dtype), 2, 4, 0, 4, 4, 1.0)
    expected = [oracle.round_to(float(v), dtype) for row in CAUSAL_BY_HAND for v in row]
    assert result == Result(dtype, (1, 1, 2, 2), tuple(expected))


def test_padded_query_rows_add_nothing() -> None:
    """R-X7, by absolute position: of rows 4 to 7 the first three are real, and the NaN is not."""
    x = [[0.0] * 4] * 3 + [[NAN] * 4]
    result = oracle.softmax_fuse_block_sum(tensor(x), 2, 2, 4, 8, 7, 1.0)
    assert result.data == (1.0, 1.0, 0.5, 0.5)


def test_a_row_with_nan_spoils_the_blocks_it_sees_and_no_others() -> None:
    x = [[0.0] * 4 for _ in range(4)]
    x[1][0] = NAN
    result = matrix_of(oracle.softmax_fuse_block_sum(tensor(x), 2, 2, 0, 4, 4, 1.0))
    assert math.isnan(result[0][0])
    assert result[0][1] == 0
    assert result[1] == [oracle.round_to(float(v), "float32") for v in CAUSAL_BY_HAND[1]]


def test_a_row_whose_statistics_are_nan_is_nan_in_every_chunk_that_it_sees() -> None:
    nan = Result("float32", (1, 1, 1), (NAN,))
    for score in (0.0, -INF):
        result = oracle.softmax_normalize_and_block_sum(
            tensor([[score]]), nan, nan, 1, 1, 0, 1, 1.0
        )
        assert math.isnan(result.data[0])


def test_an_empty_row_adds_nothing() -> None:
    stats = (Result("float32", (1, 1, 2), (-INF, 0.0)), Result("float32", (1, 1, 2), (0.0, 1.0)))
    result = oracle.softmax_normalize_and_block_sum(
        tensor([[-INF, -INF], [0.0, -INF]]), *stats, 2, 1, 0, 2, 1.0
    )
    assert result.data == (1.0,)


# --- three formulations (R-X8, R-X9) -------------------------------------------------------------


def cuts(draw: random.Random, blocks: int) -> list[int]:
    """Where a split into chunks of whole blocks cuts, both ends included."""
    inner = draw.sample(range(1, blocks), draw.randint(0, blocks - 1))
    return [0, *sorted(inner), blocks]


def by_three_stages(
    x: Matrix, block: int, start: int, real: int, is_causal: bool, key_cuts: Sequence[int]
) -> list[list[float]]:
    """Block sums of one chunk of queries, over keys cut at those blocks."""
    spans = [(left * block, right * block) for left, right in itertools.pairwise(key_cuts)]
    seen = [
        oracle.logits([row[left:right] for row in x], 1.0, start, left, is_causal)
        for left, right in spans
    ]
    parts = zip(*([oracle.row_stats(row) for row in each] for each in seen), strict=True)
    merged = [oracle.merge(part) for part in parts]
    sums = [
        oracle.block_sums(oracle.real_weights(each, merged, start, real), block, right - left)
        for each, (left, right) in zip(seen, spans, strict=True)
    ]
    return [list(itertools.chain(*row)) for row in zip(*sums, strict=True)]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("size", [1e-6, 1.0, 30.0, 1e8])
def test_three_stages_one_pass_and_dense_softmax_agree(is_causal: bool, size: float) -> None:
    """Row functions in float64, for several splits of queries and keys; and the mass (R-X8)."""
    draw = random.Random(size)
    block, height, width, start, real = 3, 12, 15, 3, 13
    x = random_scores(int(size), height, width, size)
    x[2][:4] = [-INF] * 4
    x[7] = [-INF] * width
    dense = oracle.dense_block_sums(x, block, start, real, is_causal)
    own = oracle.logits(x, 1.0, start, 0, is_causal)
    stats = [oracle.row_stats(row) for row in own]
    one_pass = oracle.block_sums(oracle.real_weights(own, stats, start, real), block, width)
    for one, other in zip(one_pass, dense, strict=True):
        assert one == pytest.approx(other, rel=1e-13 * max(size, 1), abs=1e-300)
    rows = [
        sum(start + i < real and i != 7 for i in range(top, top + block))
        for top in range(0, height, block)
    ]
    assert [math.fsum(row) for row in one_pass] == pytest.approx(rows, rel=1e-14)

    for _ in range(4):
        three: list[list[float]] = []
        for top, bottom in itertools.pairwise(cuts(draw, height // block)):
            rows_of_chunk = x[top * block : bottom * block]
            key_cuts = cuts(draw, width // block)
            at = start + top * block
            three += by_three_stages(rows_of_chunk, block, at, real, is_causal, key_cuts)
        for one, other in zip(three, one_pass, strict=True):
            assert one == pytest.approx(other, rel=1e-14, abs=1e-300)


def test_dense_softmax_by_hand() -> None:
    assert oracle.dense_block_sums([[0.0] * 4] * 4, 2, 0, 4, True) == [
        [float(value) for value in row] for row in CAUSAL_BY_HAND
    ]
    weights = oracle.dense_block_sums([[1e8, 1e8 - 2, -INF]], 1, 0, 1, False)[0]
    expected = 1 / (1 + Decimal(-2).exp())
    assert weights == pytest.approx([float(expected), float(1 - expected), 0.0], rel=1e-15)


# --- the estimate (R-X7, R-X19, R-X21) -----------------------------------------------------------


def states(seed: int, length: int, dtype: str = "float32", heads: int = 2, dim: int = 3) -> Result:
    draw = random.Random(seed)
    data = tuple(draw.gauss(0, 3) for _ in range(heads * length * dim))
    return Result(dtype, (1, heads, length, dim), data)


def by_definition(
    queries: Matrix, keys: Matrix, block_size: int, stride: int, scale: float, causal: bool
) -> list[list[float]]:
    """Token by token: where each stands, whether it is real, what its position's logit is."""
    q_len, k_len = len(queries), len(keys)
    first = (k_len - q_len) // stride
    q_blocks, k_blocks = -(-q_len // block_size), -(-k_len // block_size)
    sums = [[0.0] * k_blocks for _ in range(q_blocks)]
    for row in range(q_blocks * block_size // stride):
        if row * stride >= q_len:
            continue
        odds = {}
        for column in range(k_blocks * block_size // stride):
            if column * stride >= k_len or (causal and column > first + row):
                continue
            score = 0.0
            for s in range(stride):
                query, key = row * stride + stride - 1 - s, column * stride + s
                if query < q_len and key < k_len:
                    score += sum(a * b for a, b in zip(queries[query], keys[key], strict=True))
            odds[column] = math.exp(scale * score)
        for column, odd in odds.items():
            cell = sums[row * stride // block_size]
            cell[column * stride // block_size] += odd / sum(odds.values())
    return sums


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("q_len", "k_len"), [(1, 1), (8, 8), (16, 16), (13, 13), (9, 25), (5, 21), (16, 32)]
)
def test_the_estimate_is_its_definition(q_len: int, k_len: int, causal: bool) -> None:
    queries, keys = states(q_len, q_len), states(100 + k_len, k_len)
    sums, mask = oracle.xattn_estimate(queries, keys, 8, 2, 1.5, chunk_size=16, causal=causal)
    assert sums.shape == mask.shape == (1, 2, -(-q_len // 8), -(-k_len // 8))
    assert (sums.dtype, mask.dtype) == ("float32", "bool")
    scale = 1 / (math.sqrt(3) * 2 * 1.5)
    expected: list[float] = []
    for head in range(2):
        of_queries, of_keys = (oracle.matrices(each)[head] for each in (queries, keys))
        for row in by_definition(of_queries, of_keys, 8, 2, scale, causal):
            expected += row
    assert sums.data == pytest.approx(expected, rel=1e-6)
    index = (k_len - q_len) // 8 if causal else 0
    assert mask == find_blocks_chunked(sums, index, 0.9, causal=causal)
    # the mass of a query block is its real rows (R-X8)
    per_row = sums.shape[3]
    rows = [min(4, -(-q_len // 2) - 4 * r) for r in range(sums.shape[2])] * 2
    masses = [math.fsum(sums.data[at : at + per_row]) for at in range(0, len(sums.data), per_row)]
    assert masses == pytest.approx(rows, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_estimate_does_not_depend_on_the_chunk_size(dtype: str) -> None:
    queries, keys = states(1, 13, dtype), states(2, 29, dtype)
    results = [
        oracle.xattn_estimate(queries, keys, 8, 4, chunk_size=size) for size in (8, 16, 24, 16384)
    ]
    assert all(result == results[0] for result in results)
    assert results[0][0].dtype == dtype


def test_the_estimate_selects_by_its_sums() -> None:
    """Head 0 sees key block 0 alone but for the diagonal; head 1 weighs all keys alike."""
    queries = Result("float32", (1, 2, 16, 1), (1.0,) * 16 + (0.0,) * 16)
    keys = Result("float32", (1, 2, 16, 1), ((100.0,) * 4 + (0.0,) * 12) * 2)
    sums, mask = oracle.xattn_estimate(queries, keys, 4, 2, threshold=0.9)
    assert matrix_of(mask)[3] == [True, False, False, True]
    assert matrix_of(mask)[7] == [True, True, True, True]
    assert matrix_of(sums)[3] == pytest.approx([2, 0, 0, 0], abs=1e-6)


# --- refusals ------------------------------------------------------------------------------------

SCORES, STATS = tensor([[0.0] * 4] * 4), Result("float32", (1, 1, 4), (0.0,) * 4)
STATES = tensor([[0.0] * 2] * 8)
CALLS: dict[str, dict[str, Any]] = {
    "flat_group_gemm_fuse_reshape": {
        "query_states": STATES,
        "key_states": STATES,
        "stride": 4,
        "chunk_start": 0,
        "chunk_end": 2,
    },
    "softmax_compute_partial_stats": {
        "attn_weights_slice": SCORES,
        "reshaped_block_size": 2,
        "segment_size": 2,
        "scale": 1.0,
    },
    "merge_softmax_stats": {"m_chunks": [STATS, STATS], "l_chunks": [STATS, STATS]},
    "softmax_normalize_and_block_sum": {
        "attn_weights_slice": SCORES,
        "m_global": STATS,
        "l_global": STATS,
        "reshaped_block_size": 2,
        "segment_size": 2,
        "chunk_start": 0,
        "real_q_len": 4,
        "scale": 1.0,
    },
    "softmax_fuse_block_sum": {
        "attn_weights_slice": SCORES,
        "reshaped_block_size": 2,
        "segment_size": 2,
        "chunk_start": 0,
        "chunk_end": 4,
        "real_q_len": 4,
        "scale": 1.0,
    },
    "xattn_estimate": {
        "query_states": STATES,
        "key_states": STATES,
        "block_size": 4,
        "stride": 2,
        "chunk_size": 8,
    },
}
FLAT, DOUBLE = Result("float32", (4, 4), (0.0,) * 16), tensor([[0.0] * 4] * 4, "float64")
OF_STATES = [
    ("query_states", FLAT),
    ("key_states", FLAT),
    ("query_states", tensor([[0.0] * 2] * 8, "int32")),
    ("key_states", tensor([[0.0] * 2] * 8, "float16")),
    ("key_states", tensor([[0.0] * 3] * 8)),
    ("key_states", Result("float32", (1, 2, 8, 2), (0.0,) * 32)),
    ("key_states", Result("float32", (2, 1, 8, 2), (0.0,) * 32)),
    ("stride", 0),
]
OF_SCORES = [
    ("attn_weights_slice", FLAT),
    ("attn_weights_slice", DOUBLE),
    ("reshaped_block_size", 0),
    ("segment_size", 0),
    ("scale", NAN),
    ("scale", INF),
    ("chunk_start", -1),
]
OF_BLOCKS = [
    *OF_SCORES,
    ("attn_weights_slice", tensor([[0.0] * 3] * 4)),
    ("attn_weights_slice", tensor([[0.0] * 4] * 3)),
    ("real_q_len", -1),
]
OF_STATS = [
    (name, value)
    for name in ("m_global", "l_global")
    for value in (
        Result("float16", (1, 1, 4), (0.0,) * 4),
        Result("float32", (1, 1, 3), (0.0,) * 3),
        Result("float32", (1, 1, 4, 1), (0.0,) * 4),
    )
]
REFUSALS: dict[str, list[tuple[str, Any]]] = {
    "flat_group_gemm_fuse_reshape": [
        *OF_STATES,
        ("query_states", tensor([[0.0] * 2] * 7)),
        ("key_states", tensor([[0.0] * 2] * 7)),
        ("chunk_start", -1),
        ("chunk_end", 1),
        ("out_dtype", "float64"),
    ],
    "softmax_compute_partial_stats": [*OF_SCORES, ("kv_offset", -1)],
    "merge_softmax_stats": [
        ("m_chunks", []),
        ("l_chunks", [STATS]),
        ("m_chunks", [SCORES, SCORES]),
        ("l_chunks", [STATS, Result("float32", (1, 1, 3), (0.0,) * 3)]),
        ("m_chunks", [STATS, Result("float16", (1, 1, 4), (0.0,) * 4)]),
    ],
    "softmax_normalize_and_block_sum": [*OF_BLOCKS, *OF_STATS, ("kv_offset", -1)],
    "softmax_fuse_block_sum": [*OF_BLOCKS, ("chunk_end", 3)],
    "xattn_estimate": [
        *OF_STATES,
        ("block_size", 0),
        ("block_size", 3),
        ("chunk_size", 6),
        ("chunk_size", 0),
        ("norm", 0.0),
        ("norm", NAN),
        ("threshold", 0.0),
        ("threshold", 1.5),
        ("key_states", tensor([[0.0] * 2] * 10)),
        ("key_states", tensor([[0.0] * 2] * 4)),
        ("query_states", Result("float32", (1, 1, 0, 2), ())),
    ],
}


@pytest.mark.parametrize(
    ("operation", "argument", "value"),
    [(operation, *pair) for operation, pairs in REFUSALS.items() for pair in pairs],
)
def test_refusals_name_the_argument(operation: str, argument: str, value: Any) -> None:
    call = getattr(oracle, operation)
    call(**CALLS[operation])
    with pytest.raises(ValueError, match=rf"^{argument} must "):
        call(**CALLS[operation] | {argument: value})


def test_without_a_mask_fewer_keys_than_queries_are_legal() -> None:
    keys = tensor([[0.0] * 2] * 4)
    sums, _ = oracle.xattn_estimate(STATES, keys, 4, 2, chunk_size=8, causal=False)
    assert sums.data == (2.0, 2.0)
