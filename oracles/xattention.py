"""XAttention by chunks of keys: antidiagonal scores, softmax in three stages, and the estimate.

Source: ``xattention-kv-chunking.md``, with the rulings R-X1 to R-X21. Values are computed in
float64 from exactly quantised inputs, sums by ``math.fsum``, and rounded once, to the type of the
result. A row is the list of scores that its query sees, in the order of the keys: a causal mask
cuts the tail off (R-X3), so that what is masked cannot reach a result (R-X6).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal

from oracles.array import Array
from oracles.selection import SCORE_TYPES, Result, find_blocks_chunked, refuse_threshold, rows_of

Row = Sequence[float]
Stats = tuple[float, float]  # m and l of a row

EMPTY: Stats = (-math.inf, 0.0)  # what the merge leaves as it is (R-X4)

# --- element types (R-X10, R-X16) ----------------------------------------------------------------

# Bits in a significand, the exponent of the smallest subnormal, the largest finite value.
_FORMATS = {
    "float32": (24, -149, (2 - 2.0**-23) * 2.0**127),
    "float16": (11, -24, 65504.0),
    "bfloat16": (8, -133, (2 - 2.0**-7) * 2.0**127),
}


def round_to(value: float, dtype: str) -> float:
    """To the nearest value of a score type, ties to even, past its range to infinity (R-X16)."""
    precision, lowest, largest = _FORMATS[dtype]
    if math.isnan(value) or abs(value) > 2 * largest:
        return value * math.inf
    exponent = max(math.frexp(value)[1] - precision, lowest)
    rounded = math.ldexp(round(math.ldexp(value, -exponent)), exponent)
    return rounded if abs(rounded) <= largest else math.copysign(math.inf, value)


def rounded(dtype: str, shape: tuple[int, ...], values: Iterable[float]) -> Result:
    """An array of values, each rounded once."""
    return Result(dtype, shape, tuple(round_to(value, dtype) for value in values))


def matrices(array: Array[float]) -> list[list[list[float]]]:
    """The matrix of each batch entry and head, quantised to the array's type."""
    batch, heads, height, _ = array.shape
    rows = [[round_to(value, array.dtype) for value in row] for row in rows_of(array)]
    return [rows[start * height : (start + 1) * height] for start in range(batch * heads)]


# --- scores (R-X1) -------------------------------------------------------------------------------


def tile(
    queries: Sequence[Row], keys: Sequence[Row], i: int, j: int, stride: int
) -> Iterator[tuple[float, float]]:
    """The factors Q[i*T + (T-1-s), d] and K[j*T + s, d], over s in [0, T) and d.

    A row past the end counts as zeros and adds nothing (R-X7).
    """
    for s in range(stride):
        query, key = i * stride + (stride - 1 - s), j * stride + s
        if query < len(queries) and key < len(keys):
            yield from zip(queries[query], keys[key], strict=True)


def antidiagonal(queries: Sequence[Row], keys: Sequence[Row], i: int, j: int, stride: int) -> float:
    """The score of a tile."""
    return sum_of_products(tile(queries, keys, i, j, stride))


def sum_of_products(factors: Iterable[tuple[float, float]]) -> float:
    """Exact but for one rounding: so is each product, 24 bits by 24 bits."""
    products = [q * k for q, k in factors]
    if math.inf in products and -math.inf in products:  # which fsum refuses to add
        return math.nan
    return math.fsum(products)


def scores(queries: Sequence[Row], keys: Sequence[Row], stride: int) -> list[list[float]]:
    """Every score of one head, ``ceil(q_len / T)`` by ``ceil(k_len / T)``."""
    height, width = -(-len(queries) // stride), -(-len(keys) // stride)
    return [
        [antidiagonal(queries, keys, i, j, stride) for j in range(width)] for i in range(height)
    ]


# --- softmax, a row at a time --------------------------------------------------------------------


def logits(
    scores: Sequence[Row], scale: float, chunk_start: int, kv_offset: int, is_causal: bool
) -> list[list[float]]:
    """x = scale * score of the keys that a row sees, kv_offset + j <= chunk_start + i (R-X3)."""
    ends = [
        chunk_start + i - kv_offset + 1 if is_causal else len(row) for i, row in enumerate(scores)
    ]
    return [
        [scale * score for score in row[: max(end, 0)]]
        for row, end in zip(scores, ends, strict=True)
    ]


def exponential(x: float) -> float:
    return math.inf if x > 709.0 else math.exp(x)  # where math.exp would raise


def row_stats(x: Row) -> Stats:
    """m = max x, l = sum exp(x - m); of no key, or of -inf alone, the empty pair (R-X4, R-X18)."""
    if any(map(math.isnan, x)):
        return math.nan, math.nan
    m = max(x, default=-math.inf)
    return EMPTY if m == -math.inf else (m, math.fsum(exponential(value - m) for value in x))


def merge(parts: Sequence[Stats]) -> Stats:
    """m = max m_c, l = sum l_c * exp(m_c - m): the source's formula for any number of chunks."""
    if any(math.isnan(value) for pair in parts for value in pair):
        return math.nan, math.nan
    m = max(m for m, _ in parts)
    if m == -math.inf:
        return EMPTY
    return m, math.fsum(total * exponential(m_chunk - m) for m_chunk, total in parts)


def weights(x: Row, m: float, total: float) -> list[float]:
    """p = exp(x - m) / l, and 0 for an empty row (R-X4). A NaN in m or l makes all NaN."""
    return [0.0] * len(x) if total == 0 else [exponential(value - m) / total for value in x]


def block_sums(values: Sequence[Row], block: int, width: int) -> list[list[float]]:
    """Sums over blocks of ``block`` rows and columns; ``width`` columns, of which a row may have
    only the first. The last block of either side may be partial.
    """
    return [
        [
            math.fsum(
                value for row in values[top : top + block] for value in row[left : left + block]
            )
            for left in range(0, width, block)
        ]
        for top in range(0, len(values), block)
    ]


# --- dense softmax, formulated apart from the above ----------------------------------------------


def dense_block_sums(
    x: Sequence[Row], block: int, chunk_start: int, real_q_len: int, is_causal: bool
) -> list[list[float]]:
    """softmax(x_i) = exp(x_i) / sum_j exp(x_j) as it stands, summed by block; x finite or -inf.

    No maximum is taken out: decimals of 40 digits have the range for exp(1e8), and visibility is
    asked of each pair of positions.
    """
    context = Context(prec=40, Emax=10**15, Emin=-(10**15))
    width = len(x[0]) if x else 0
    sums = [[Decimal(0)] * (width // block) for _ in range(len(x) // block)]
    for i, row in enumerate(x):
        seen = [j for j in range(width) if not is_causal or j <= chunk_start + i]
        power = {j: context.exp(Decimal(row[j])) for j in seen if row[j] != -math.inf}
        total = Decimal(0)
        for value in power.values():
            total = context.add(total, value)
        for j, value in power.items() if chunk_start + i < real_q_len else ():
            cell = sums[i // block][j // block]
            sums[i // block][j // block] = context.add(cell, context.divide(value, total))
    return [[float(value) for value in row] for row in sums]


# --- the operations on scores --------------------------------------------------------------------


def _refuse_scores(
    scores: Array[float], reshaped_block_size: int, segment_size: int, scale: float
) -> None:
    if len(scores.shape) != 4:
        raise ValueError(f"attn_weights_slice must be 4-D, got {len(scores.shape)}-D")
    if scores.dtype not in SCORE_TYPES:
        raise ValueError(f"attn_weights_slice must be fp32, fp16 or bf16, got {scores.dtype}")
    for name, size in (
        ("reshaped_block_size", reshaped_block_size),
        ("segment_size", segment_size),
    ):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")


def _refuse_negative(**offsets: int) -> None:
    for name, value in offsets.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")


def _refuse_partial_blocks(scores: Array[float], reshaped_block_size: int) -> None:
    for side, length in zip(("rows", "columns"), scores.shape[2:], strict=True):
        if length % reshaped_block_size:
            raise ValueError(
                f"attn_weights_slice must have {side} in whole blocks of {reshaped_block_size}, "
                f"got {length}"
            )


def _refuse_chunk_end(chunk_start: int, chunk_end: int, positions: int) -> None:
    if chunk_end - chunk_start != positions:
        raise ValueError(f"chunk_end must be chunk_start + {positions}, got {chunk_end}")


def _refuse_stats(name: str, stats: Array[float], shape: tuple[int, ...]) -> None:
    if stats.dtype != "float32":
        raise ValueError(f"{name} must be fp32, got {stats.dtype}")
    if tuple(stats.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(stats.shape)}")


def _refuse_states(query_states: Array[float], key_states: Array[float]) -> None:
    """Queries and keys ``[batch, heads, length, head_dim]`` of one type that fit each other."""
    for name, states in (("query_states", query_states), ("key_states", key_states)):
        if len(states.shape) != 4:
            raise ValueError(f"{name} must be 4-D, got {len(states.shape)}-D")
        if states.dtype not in SCORE_TYPES:
            raise ValueError(f"{name} must be fp32, fp16 or bf16, got {states.dtype}")
    if key_states.dtype != query_states.dtype:
        raise ValueError(f"key_states must be {query_states.dtype} too, got {key_states.dtype}")
    for axis, dimension in ((0, "batch"), (1, "heads"), (3, "head_dim")):
        wanted, found = query_states.shape[axis], key_states.shape[axis]
        if found != wanted:
            raise ValueError(f"key_states must have {dimension} {wanted} as queries, got {found}")


def flat_group_gemm_fuse_reshape(
    query_states: Array[float],
    key_states: Array[float],
    stride: int,
    chunk_start: int,
    chunk_end: int,
    is_causal: bool = True,
    out_dtype: str | None = None,
) -> Result:
    """Scores ``[batch, heads, q_len / stride, k_len / stride]``, in the inputs' dtype by default.

    With ``is_causal`` the entries that the specification leaves open (j > chunk_start + i) hold
    what the formula gives. Raises ValueError for a wrong rank, dtype or shape, a stride below 1 or
    one that does not divide, a negative offset, and a ``chunk_end`` that is not
    ``chunk_start + q_len / stride`` (R-X1, R-X10, R-X16).
    """
    _refuse_states(query_states, key_states)
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    for name, states in (("query_states", query_states), ("key_states", key_states)):
        if states.shape[2] % stride:
            raise ValueError(f"{name} must have a length that {stride} divides (the stride)")
    _refuse_negative(chunk_start=chunk_start)
    _refuse_chunk_end(chunk_start, chunk_end, query_states.shape[2] // stride)
    dtype = query_states.dtype if out_dtype is None else out_dtype
    if dtype not in SCORE_TYPES:
        raise ValueError(f"out_dtype must be fp32, fp16 or bf16, got {out_dtype}")
    batch, heads, q_len, _ = query_states.shape
    values = (
        value
        for queries, keys in zip(matrices(query_states), matrices(key_states), strict=True)
        for row in scores(queries, keys, stride)
        for value in row
    )
    shape = (batch, heads, q_len // stride, key_states.shape[2] // stride)
    return rounded(dtype, shape, values)


def _stats(shape: tuple[int, ...], pairs: Sequence[Stats]) -> tuple[Result, Result]:
    return (
        rounded("float32", shape, (m for m, _ in pairs)),
        rounded("float32", shape, (total for _, total in pairs)),
    )


def softmax_compute_partial_stats(
    attn_weights_slice: Array[float],
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int = 0,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> tuple[Result, Result]:
    """m and l of each row over one chunk of keys, fp32 ``[batch, heads, q_len]``.

    Any lengths, 0 included; no result depends on the two sizes (R-X21). Raises ValueError for a
    wrong rank or dtype, a size below 1, a scale that is not finite and a negative offset.
    """
    _refuse_scores(attn_weights_slice, reshaped_block_size, segment_size, scale)
    _refuse_negative(chunk_start=chunk_start, kv_offset=kv_offset)
    pairs = [
        row_stats(x)
        for scores in matrices(attn_weights_slice)
        for x in logits(scores, scale, chunk_start, kv_offset, is_causal)
    ]
    return _stats(tuple(attn_weights_slice.shape[:3]), pairs)


def _refuse_chunks(m_chunks: Sequence[Array[float]], l_chunks: Sequence[Array[float]]) -> None:
    """Statistics fp32 ``[batch, heads, q_len]`` of at least one chunk, as many m as l (R-X5)."""
    if not m_chunks:
        raise ValueError("m_chunks must hold at least one chunk, got an empty list")
    if len(l_chunks) != len(m_chunks):
        raise ValueError(f"l_chunks must hold {len(m_chunks)} chunks, got {len(l_chunks)}")
    if len(m_chunks[0].shape) != 3:
        raise ValueError(f"m_chunks must be 3-D, got {len(m_chunks[0].shape)}-D")
    for name, chunks in (("m_chunks", m_chunks), ("l_chunks", l_chunks)):
        for chunk in chunks:
            _refuse_stats(name, chunk, tuple(m_chunks[0].shape))


def parts_of(
    m_chunks: Sequence[Array[float]], l_chunks: Sequence[Array[float]]
) -> list[list[Stats]]:
    """The statistics of each row, chunk by chunk."""
    pairs = list(map(stats_of, m_chunks, l_chunks))
    return [list(parts) for parts in zip(*pairs, strict=True)]


def stats_of(m: Array[float], total: Array[float]) -> list[Stats]:
    """The pair of each row, quantised to fp32."""
    values = ([round_to(float(value), "float32") for value in array.data] for array in (m, total))
    return list(zip(*values, strict=True))


def merge_softmax_stats(
    m_chunks: Sequence[Array[float]], l_chunks: Sequence[Array[float]]
) -> tuple[Result, Result]:
    """The statistics of all chunks together, fp32 ``[batch, heads, q_len]``.

    Raises ValueError for an empty list, lists of different lengths, and statistics that are not
    fp32, not 3-D or not of one shape.
    """
    _refuse_chunks(m_chunks, l_chunks)
    pairs = [merge(parts) for parts in parts_of(m_chunks, l_chunks)]
    return _stats(tuple(m_chunks[0].shape), pairs)


def _block_results(scores: Array[float], block: int, sums: Iterable[list[list[float]]]) -> Result:
    batch, heads, height, width = scores.shape
    values = (value for matrix in sums for row in matrix for value in row)
    return rounded(scores.dtype, (batch, heads, height // block, width // block), values)


def real_weights(
    x: Sequence[Row], stats: Sequence[Stats], chunk_start: int, real_q_len: int
) -> list[list[float]]:
    """The weights of each row; a padded query, at or past ``real_q_len``, has none (R-X7)."""
    return [
        weights(row, *pair) if chunk_start + i < real_q_len else []
        for i, (row, pair) in enumerate(zip(x, stats, strict=True))
    ]


def softmax_normalize_and_block_sum(
    attn_weights_slice: Array[float],
    m_global: Array[float],
    l_global: Array[float],
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    real_q_len: int,
    scale: float,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> Result:
    """Block sums ``[batch, heads, q_blocks, k_chunk_blocks]`` of one chunk of keys, in its dtype.

    Raises ValueError as ``softmax_compute_partial_stats`` does, and for statistics that are not
    fp32 ``[batch, heads, q_len]``, rows or columns that are no whole blocks (R-X21) and a negative
    ``real_q_len``.
    """
    _refuse_scores(attn_weights_slice, reshaped_block_size, segment_size, scale)
    _refuse_partial_blocks(attn_weights_slice, reshaped_block_size)
    _refuse_negative(chunk_start=chunk_start, real_q_len=real_q_len, kv_offset=kv_offset)
    for name, stats in (("m_global", m_global), ("l_global", l_global)):
        _refuse_stats(name, stats, tuple(attn_weights_slice.shape[:3]))
    _, _, height, width = attn_weights_slice.shape
    pairs = stats_of(m_global, l_global)
    sums = []
    for head, scores in enumerate(matrices(attn_weights_slice)):
        x = logits(scores, scale, chunk_start, kv_offset, is_causal)
        stats_of_head = pairs[head * height : (head + 1) * height]
        values = real_weights(x, stats_of_head, chunk_start, real_q_len)
        sums.append(block_sums(values, reshaped_block_size, width))
    return _block_results(attn_weights_slice, reshaped_block_size, sums)


def softmax_fuse_block_sum(
    attn_weights_slice: Array[float],
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    chunk_end: int,
    real_q_len: int,
    scale: float,
    is_causal: bool = True,
) -> Result:
    """Softmax over all keys, summed by block: ``[batch, heads, q_blocks, k_blocks]``, in one pass.

    Raises ValueError as ``softmax_normalize_and_block_sum`` does, and for a ``chunk_end`` that is
    not ``chunk_start + q_len``.
    """
    _refuse_scores(attn_weights_slice, reshaped_block_size, segment_size, scale)
    _refuse_partial_blocks(attn_weights_slice, reshaped_block_size)
    _refuse_negative(chunk_start=chunk_start, real_q_len=real_q_len)
    _, _, height, width = attn_weights_slice.shape
    _refuse_chunk_end(chunk_start, chunk_end, height)
    sums = []
    for scores in matrices(attn_weights_slice):
        x = logits(scores, scale, chunk_start, 0, is_causal)
        values = real_weights(x, [row_stats(row) for row in x], chunk_start, real_q_len)
        sums.append(block_sums(values, reshaped_block_size, width))
    return _block_results(attn_weights_slice, reshaped_block_size, sums)


# --- the estimate --------------------------------------------------------------------------------


def estimate_scale(head_dim: int, stride: int, norm: float) -> float:
    """1 / (sqrt(head_dim) * T * norm)."""
    return 1 / (math.sqrt(head_dim) * stride * norm)


def _refuse_estimate(
    query_states: Array[float], key_states: Array[float], block_size: int, stride: int
) -> None:
    _refuse_states(query_states, key_states)
    for name, size in (("block_size", block_size), ("stride", stride)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if block_size % stride:
        raise ValueError(f"block_size must be a multiple of stride {stride}, got {block_size}")
    for name, states in (("query_states", query_states), ("key_states", key_states)):
        if states.shape[2] < 1 or states.shape[3] < 1:
            raise ValueError(f"{name} must have a token and a dimension, got {list(states.shape)}")


def xattn_estimate(
    query_states: Array[float],
    key_states: Array[float],
    block_size: int,
    stride: int,
    norm: float = 1.0,
    threshold: float = 0.9,
    chunk_size: int = 16384,
    causal: bool = True,
) -> tuple[Result, Result]:
    """Block sums and selected blocks, each ``[batch, heads, q_blocks, k_blocks]``.

    The sums have the inputs' dtype, and the blocks are selected by them as rounded; scores are not
    rounded on the way. Padding is left out rather than masked: only the ``ceil(len / T)`` real
    positions of either side exist here (R-X7), and no chunks, for nothing depends on them (R-X19,
    R-X21). Raises ValueError for a wrong rank, dtype or shape, no token, sizes below 1 or that are
    no multiples of each other, a scale that is not finite, a threshold outside (0, 1], a
    ``k_len - q_len`` that ``block_size`` does not divide, and, when causal, a negative one:
    queries would sit before the first key.
    """
    _refuse_estimate(query_states, key_states, block_size, stride)
    if chunk_size < 1 or chunk_size % block_size:
        raise ValueError(f"chunk_size must be a multiple of {block_size}, got {chunk_size}")
    if norm == 0 or not math.isfinite(estimate_scale(query_states.shape[3], stride, norm)):
        raise ValueError(f"norm must leave the scale finite, got {norm}")
    refuse_threshold(threshold)
    difference = key_states.shape[2] - query_states.shape[2]
    if difference % block_size or (causal and difference < 0):
        raise ValueError(
            "key_states must be as long as query_states or longer by a multiple of block_size "
            f"{block_size}, got {difference} tokens more"
        )
    sums = [
        block_sums([weights(row, *row_stats(row)) for row in x], block_size // stride, width)
        for x, width in estimate_logits(query_states, key_states, stride, norm, causal)
    ]
    batch, heads = query_states.shape[:2]
    shape = (batch, heads, *(-(-s.shape[2] // block_size) for s in (query_states, key_states)))
    values = rounded(query_states.dtype, shape, (v for head in sums for row in head for v in row))
    current_index = difference // block_size if causal else 0
    return values, find_blocks_chunked(values, current_index, threshold, causal=causal)


def estimate_logits(
    query_states: Array[float], key_states: Array[float], stride: int, norm: float, causal: bool
) -> Iterable[tuple[list[list[float]], int]]:
    """Of each head the logits of its rows, as far as they are visible, and how many keys there are.

    Query token i sits at ``k_len - q_len + i``, by the true lengths (R-X19).
    """
    scale = estimate_scale(query_states.shape[3], stride, norm)
    chunk_start = (key_states.shape[2] - query_states.shape[2]) // stride
    width = -(-key_states.shape[2] // stride)
    for queries, keys in zip(matrices(query_states), matrices(key_states), strict=True):
        yield logits(scores(queries, keys, stride), scale, chunk_start, 0, causal), width
