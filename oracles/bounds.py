"""How far from the exact value an honest implementation may be, element by element (R-X14).

The functions have the operations' names and parameters. Each returns what its operation returns in
shape, and in place of a value the largest ``|actual - expected|``, ``expected`` being the oracle's
value as rounded to the type of the result; infinite where the result may overflow, 0 where it is
exact, -inf or NaN. They take inputs that the oracle accepts.

Honest is whatever computes in fp32, in any order. u = 2**-24 is the error of one rounding. A
computed value is the exact one times factors within (1 +- u), and a factor (1 + u)**k grows it by
expm1(k * u) at most and shrinks it by less: what textbooks bound by gamma_k = k*u / (1 - k*u).
Errors of an argument add to the same exponent, for exp(t + d) = exp(t) * exp(d). So everything that
happens to a weight is one number, its ``slip``: weight * expm1(slip) is its error. Terms of second
order are within ``SLACK`` of it, and so are the oracle's own float64 errors, 2**-53 to fp32's
2**-24 operation by operation. Flushed subnormals are absolute terms, of ``TINY``.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import repeat
from typing import Literal

from oracles import xattention as oracle
from oracles.array import Array
from oracles.selection import TINY, UNIT, Decision, Result, decide_blocks
from oracles.xattention import Row, round_to

SLACK = 1 + 2.0**-20
LARGEST = (2 - 2.0**-23) * 2.0**127  # of fp32
ANY_FINITE = sys.float_info.max  # the bound of an entry that the specification leaves open

# In units of u, an ulp being 2 at most.
EXPONENTIAL = 4  # declared: 2 ulp
DIVISION = 5  # a quotient within 2 ulp, or a reciprocal within 2 ulp and a product
RESCALING = EXPONENTIAL + 1  # a running sum times exp(old maximum - new one)

# What flushing a score or a product does to an argument, for scales up to 2**26.
FLUSHED_ARGUMENT = 2.0**-100

# --- the tools -----------------------------------------------------------------------------------


def spread(t: float, slip: float) -> float:
    """The most that exp(t) grows when its argument does by ``slip``: exp(t) * expm1(slip)."""
    slip *= SLACK
    if slip < 1:
        return oracle.exponential(t) * math.expm1(slip)
    return oracle.exponential(t + slip) - oracle.exponential(t)


def summed(magnitude: float, error: float, count: int, roundings: float) -> float:
    """The error of a sum of ``count`` terms, in any order, in fp32.

    ``magnitude`` is the sum of their absolute values, ``error`` that of their own errors. Every
    term goes through ``roundings`` factors of (1 +- u) at most, count - 1 where additions round to
    the nearest, and each addition may flush a subnormal.
    """
    return error + (magnitude + error) * math.expm1(roundings * UNIT) + count * TINY


def tolerance(value: float, error: float, dtype: str) -> float:
    """The farther end of ``value`` +- ``error`` from ``value``, all three rounded to ``dtype``.

    Rounding is monotone, so what an honest result was before its one rounding, at most ``error``
    from the value, it is after it: between the two ends. That covers subnormals and overflow, the
    latter with an infinite tolerance where one end is infinite and the value is not, or reversely.
    """
    if math.isnan(value):
        return 0.0
    expected = round_to(value, dtype)
    ends = [round_to(value + side * error * SLACK, dtype) for side in (-1, 1)] if error else []
    return max((abs(end - expected) for end in ends if end != expected), default=0.0)


# --- scores (R-X1, R-X16) ------------------------------------------------------------------------

Dot = Literal["ieee", "tf32"]  # what an fp32 product is; fp16 and bf16 inputs need no word


def score_error(factors: Sequence[tuple[float, float]], dtype: str, dot: Dot) -> float:
    """The error of one score before it is rounded to its type; n = T * head_dim products.

    fp32, "ieee": each product is rounded, 1u, and the sum has n - 1 additions; fusing the two only
    takes roundings away.
    fp32, "tf32": both factors keep 10 bits, by rounding (2**-11) or as the hardware does with what
    it is handed, by cutting (2**-10). Their product is exact in fp32, as are those of fp16 (22
    bits) and bf16 (16 bits).
    Those three run on tensor cores: b >= 4 products and the accumulator are aligned to the largest
    of them, cut to 24 bits, and the sum is cut again. The largest is not cut, so that makes b + 1
    cuts of an ulp, 2u, of what magnitude there is: at most 2.5u a product in full groups, and 2nu
    for n < b. 3u a product holds either way, and holds for fp32 additions in any order too.
    A flushed subnormal factor changes a product by less than TINY times the other factor. Where a
    sum of magnitudes may pass the range of fp32, so may a partial sum: no finite bound.
    """
    magnitude = math.fsum(abs(q * k) for q, k in factors)
    flushed = TINY * math.fsum(1 + abs(q) + abs(k) for q, k in factors)
    n = len(factors)
    if dtype == "float32" and dot == "ieee":
        error = summed(magnitude, magnitude * UNIT + flushed, n, max(n - 1, 0))
    else:
        cut = 2.0**-9 if dtype == "float32" else 0.0
        error = summed(magnitude, magnitude * math.expm1(cut) + flushed, n, 3 * n)
    return error if magnitude + error <= LARGEST else math.inf


def flat_group_gemm_fuse_reshape(
    query_states: Array[float],
    key_states: Array[float],
    stride: int,
    chunk_start: int,
    chunk_end: int,
    is_causal: bool = True,
    out_dtype: str | None = None,
    dot: Dot = "ieee",
) -> Result:
    """Of scores. An entry in its query's future may be any finite number, with ``is_causal``."""
    dtype = query_states.dtype
    batch, heads, q_len, _ = query_states.shape
    height, width = q_len // stride, key_states.shape[2] // stride
    bounds = []
    heads_of_both = zip(oracle.matrices(query_states), oracle.matrices(key_states), strict=True)
    for queries, keys in heads_of_both:
        for i in range(height):
            for j in range(width):
                factors = list(oracle.tile(queries, keys, i, j, stride))
                value = oracle.sum_of_products(factors)
                open_ = is_causal and j > chunk_start + i
                error = score_error(factors, dtype, dot)
                bounds.append(ANY_FINITE if open_ else tolerance(value, error, out_dtype or dtype))
    return Result("float64", (batch, heads, height, width), tuple(bounds))


# --- weights -------------------------------------------------------------------------------------


def slip_to_own_maximum(x: float, m: float) -> float:
    """The error of the argument x - m where x and m are products of one implementation.

    The scale, log2(e) and their product are rounded once each, alike for x and m: 3u of |x - m|,
    and the subtraction makes 1u of it. Products with the scores are rounded apart, and perhaps
    twice (by scale, then by log2(e)): 2u of |x| + |m|. To convert after the subtraction, with 2u of
    |x - m|, is within that, and so is fusing product and subtraction. A maximum reached by way of
    smaller ones adds nothing: what cancels in exact arithmetic is the same number here.
    """
    return UNIT * (2 * (abs(x) + abs(m)) + 4 * abs(x - m)) + FLUSHED_ARGUMENT


def slip_to_given_maximum(x: float, m: float) -> float:
    """The error of x - m where m is an fp32 number that came in.

    Base 2: scale (1), its product with log2(e) (1) and the product with the score (1) make 3u of
    |x|, m * log2(e) 1u of |m|; log2(e) itself, alike for both, and the subtraction 2u of |x - m|.
    Base e: 2u of |x|, 3u of |x - m| with the conversion inside exp, which is no more, as
    |x - m| <= |x| + |m|.
    """
    return UNIT * (3 * abs(x) + abs(m) + 2 * abs(x - m)) + FLUSHED_ARGUMENT


def own_slips(x: Row, m: float, errors: Row) -> list[float]:
    """Of each exp(x - m) of a row up to its place in a sum, over a maximum of its own.

    ``errors``: of each x. The maximum's own cancels in what is normalised, and in l where scores
    are given they are all 0. To the argument and the exponential comes rescaling: a running sum is
    multiplied by exp(old - new maximum) when its maximum changes (exp(0) = 1 otherwise), in any
    order of keys. A term enters under a maximum of x_j at least, and each next one is larger, so
    there are no more changes than logits that may be above x_j.
    """
    tops = sorted(value + error for value, error in zip(x, errors, strict=True))
    return [
        slip_to_own_maximum(value, m)
        + error
        + (EXPONENTIAL + RESCALING * (len(x) - bisect_right(tops, value - error))) * UNIT
        for value, error in zip(x, errors, strict=True)
    ]


def total_error(x: Row, m: float, total: float, slips: Row) -> float:
    """The error of l = sum exp(x - m): n exponentials, n - 1 additions, 2 more flushes a term."""
    terms = [spread(value - m, slip) for value, slip in zip(x, slips, strict=True)]
    return summed(total, math.fsum(terms) + 2 * len(x) * TINY, len(x), max(len(x) - 1, 0))


def own_weight_errors(x: Row, errors: Row, staged: bool) -> list[float]:
    """Of each p = exp(x - m) / l of a whole row, ``errors`` being those of each x.

    With D the relative error of l, log1p(D) bounds the slip of l on both sides: the mean of
    exp(-slip) over p is at least the inverse of that of exp(slip), which is 1 + D. The slip of p is
    that of its numerator, that of l and the division's. Flushed: the numerator (l >= 1), p, and a
    product.

    ``staged``: l came by way of chunks, whose m were stored in base e (2u of |m_c| where they were
    in base 2), merged (1u of |m_c| and of |m|, else as it is without chunks) and multiplied by
    log2(e) again. |m_c| <= |x| + |m|, so that makes 3u of |x| and 4u of |m| more in l. What m is
    cancels: numerator and l are over the same number.
    """
    m, total = oracle.row_stats(x)
    if total == 0 or math.isnan(total):
        return [0.0] * len(x)
    finite = [j for j, value in enumerate(x) if value != -math.inf]
    seen, seen_errors = [x[j] for j in finite], [errors[j] for j in finite]
    slips = own_slips(seen, m, seen_errors)
    more = (UNIT * (3 * abs(value) + 4 * abs(m)) if staged else 0.0 for value in seen)
    slips_in_total = [slip + stage for slip, stage in zip(slips, more, strict=True)]
    shift = math.log1p(total_error(seen, m, total, slips_in_total) / total) + DIVISION * UNIT
    result = [0.0] * len(x)
    for j, slip in zip(finite, slips, strict=True):
        result[j] = spread(x[j] - m, slip + shift) / total + 3 * TINY
    return result


def given_weight_errors(x: Row, m: float, total: float) -> list[float]:
    """Of each p = exp(x - m) / l where m and l came in: argument, exponential, division."""
    if total == 0 or math.isnan(total) or math.isnan(m):
        return [0.0] * len(x)
    return [
        0.0
        if value == -math.inf
        else spread(value - m, slip_to_given_maximum(value, m) + (EXPONENTIAL + DIVISION) * UNIT)
        / total
        + TINY * (2 + 1 / total)
        for value in x
    ]


def block_errors(
    values: Sequence[Row], errors: Sequence[Row], block: int, width: int
) -> tuple[list[float], list[float]]:
    """Block sums and their errors, flat: a block of n weights has n - 1 additions.

    A weight without an error is 0 (or NaN), and to add 0 is exact.
    """
    counts = [[float(error > 0) for error in row] for row in errors]
    sums, errors_in, terms = (
        [value for row in oracle.block_sums(each, block, width) for value in row]
        for each in (values, errors, counts)
    )
    return sums, [
        summed(value, error, int(count), max(int(count) - 1, 0))
        for value, error, count in zip(sums, errors_in, terms, strict=True)
    ]


def block_tolerances(
    scores: Array[float], block: int, heads: Sequence[tuple[Sequence[Row], Sequence[Row]]]
) -> Result:
    """Of the block sums of all heads, from the weights of each and their errors."""
    batch, count, height, width = scores.shape
    bounds: list[float] = []
    for values, errors in heads:
        for value, error in zip(*block_errors(values, errors, block, width), strict=True):
            bounds.append(tolerance(value, error, scores.dtype))
    return Result("float64", (batch, count, height // block, width // block), tuple(bounds))


# --- the operations of the softmax ---------------------------------------------------------------


def stats_tolerances(
    shape: tuple[int, ...], pairs: Sequence[oracle.Stats], errors: Sequence[tuple[float, float]]
) -> tuple[Result, Result]:
    """Of m and l, from the error of each; empty rows and NaN rows have none."""
    bounds = [
        [tolerance(value, error, "float32") for value, error in zip(pair, two, strict=True)]
        for pair, two in zip(pairs, errors, strict=True)
    ]
    return (
        Result("float64", shape, tuple(m for m, _ in bounds)),
        Result("float64", shape, tuple(total for _, total in bounds)),
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
    """Of m and l over one chunk.

    m is the largest of the computed x, each off by 4u of itself at most (scale, log2(e), their
    product, the product with the score); the largest of numbers off by 4u is off by 4u. Converting
    a maximum in base 2 back makes 2u more (ln 2, the product).
    """
    pairs, errors = [], []
    for scores in oracle.matrices(attn_weights_slice):
        for row in oracle.logits(scores, scale, chunk_start, kv_offset, is_causal):
            m, total = oracle.row_stats(row)
            pairs.append((m, total))
            if total == 0 or math.isnan(total):
                errors.append((0.0, 0.0))
                continue
            x = [value for value in row if value != -math.inf]
            slips = own_slips(x, m, [0.0] * len(x))
            error_of_m = abs(m) * math.expm1(6 * UNIT) + FLUSHED_ARGUMENT
            errors.append((error_of_m, total_error(x, m, total, slips)))
    return stats_tolerances(tuple(attn_weights_slice.shape[:3]), pairs, errors)


def merge_error(parts: Sequence[oracle.Stats]) -> tuple[float, float]:
    """Of the m and l of n chunks.

    m is one of the numbers that came in; a caller that converts to base 2 and back rounds it
    twice. In l = sum l_c * exp(m_c - m) the argument is m_c and m times log2(e), 1u of each, and
    log2(e) and the subtraction, 2u of the difference (base e has 3u of it: within that). The term
    has an exponential and a product, and is rescaled, chunk by chunk, no more often than there are
    larger maxima. Where m_c = m the factor is 1 in every one of these ways. n - 1 additions.
    """
    m, total = oracle.merge(parts)
    if total == 0 or math.isnan(total):
        return 0.0, 0.0
    live = [(m_chunk, part) for m_chunk, part in parts if part > 0 and m_chunk != -math.inf]
    tops = sorted(m_chunk for m_chunk, _ in live)
    error = 0.0
    for m_chunk, part in live:
        changes = len(live) - bisect_right(tops, m_chunk)
        slip = UNIT * (abs(m_chunk) + abs(m) + 3 * (m - m_chunk) + RESCALING * (1 + changes))
        error += part * (spread(m_chunk - m, slip) + 2 * TINY) if m_chunk < m else 0.0
    return abs(m) * math.expm1(2 * UNIT), summed(total, error, len(live), max(len(live) - 1, 0))


def merge_softmax_stats(
    m_chunks: Sequence[Array[float]], l_chunks: Sequence[Array[float]]
) -> tuple[Result, Result]:
    """Of m and l of all chunks together, those of each chunk being exact as given."""
    parts = oracle.parts_of(m_chunks, l_chunks)
    pairs = [oracle.merge(each) for each in parts]
    return stats_tolerances(tuple(m_chunks[0].shape), pairs, [merge_error(each) for each in parts])


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
    """Of block sums by statistics that are exact as given."""
    height = attn_weights_slice.shape[2]
    stats = oracle.stats_of(m_global, l_global)
    parts = []
    for head, scores in enumerate(oracle.matrices(attn_weights_slice)):
        x = oracle.logits(scores, scale, chunk_start, kv_offset, is_causal)
        pairs = stats[head * height : (head + 1) * height]
        values = oracle.real_weights(x, pairs, chunk_start, real_q_len)
        errors = [
            given_weight_errors(row[: len(seen)], *pair)
            for row, seen, pair in zip(x, values, pairs, strict=True)
        ]
        parts.append((values, errors))
    return block_tolerances(attn_weights_slice, reshaped_block_size, parts)


def softmax_fuse_block_sum(
    attn_weights_slice: Array[float],
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    chunk_end: int,
    real_q_len: int,
    scale: float,
    is_causal: bool = True,
    staged: bool = False,
) -> Result:
    """Of block sums in one pass or, ``staged``, by the three stages one after the other (R-X9)."""
    parts = []
    for scores in oracle.matrices(attn_weights_slice):
        x = oracle.logits(scores, scale, chunk_start, 0, is_causal)
        stats = [oracle.row_stats(row) for row in x]
        values = oracle.real_weights(x, stats, chunk_start, real_q_len)
        errors = [
            own_weight_errors(row[: len(seen)], [0.0] * len(seen), staged)
            for row, seen in zip(x, values, strict=True)
        ]
        parts.append((values, errors))
    return block_tolerances(attn_weights_slice, reshaped_block_size, parts)


# --- the estimate --------------------------------------------------------------------------------


def stored_error(value: float, error: float, dtype: str) -> float:
    """Of a score that is kept in fp32 or rounded to ``dtype``, whichever is farther off."""
    ends = [round_to(value + side * error, dtype) for side in (-1, 1)]
    return max(error, *(abs(end - value) for end in ends))


def estimate_errors(
    query_states: Array[float],
    key_states: Array[float],
    block_size: int,
    stride: int,
    norm: float,
    causal: bool,
    dot: Dot,
) -> tuple[list[float], list[float]]:
    """Block sums, not rounded, and their errors, both flat.

    The error of an x is that of its score (its sum, and its rounding to the inputs' dtype) times
    the scale, ahead of what the softmax adds, by stages.
    """
    dtype, scale = query_states.dtype, oracle.estimate_scale(query_states.shape[3], stride, norm)
    all_logits = oracle.estimate_logits(query_states, key_states, stride, norm, causal)
    sums: list[float] = []
    sum_errors: list[float] = []
    heads = zip(oracle.matrices(query_states), oracle.matrices(key_states), strict=True)
    for (queries, keys), (x, width) in zip(heads, all_logits, strict=True):
        values, errors = [], []
        for i, row in enumerate(x):
            tiles = (list(oracle.tile(queries, keys, i, j, stride)) for j in range(len(row)))
            of_scores = [
                stored_error(oracle.sum_of_products(each), score_error(each, dtype, dot), dtype)
                for each in tiles
            ]
            values.append(oracle.weights(row, *oracle.row_stats(row)))
            errors.append(own_weight_errors(row, [abs(scale) * e for e in of_scores], staged=True))
        both = block_errors(values, errors, block_size // stride, width)
        sums, sum_errors = sums + both[0], sum_errors + both[1]
    return sums, sum_errors


def sum_ends(
    sums: Sequence[float], errors: Sequence[float], dtype: str
) -> tuple[list[float], list[float]]:
    """What the sums of an estimate lie between, by which honest implementations select.

    An implementation may select by its sums as rounded to the inputs' dtype or as they were before.
    """
    low, high = (
        [
            choose(value + side * error * SLACK, round_to(value + side * error * SLACK, dtype))
            for value, error in zip(sums, errors, strict=True)
        ]
        for side, choose in ((-1, min), (1, max))
    )
    return low, high


def xattn_estimate(
    query_states: Array[float],
    key_states: Array[float],
    block_size: int,
    stride: int,
    norm: float = 1.0,
    threshold: float = 0.9,
    chunk_size: int = 16384,
    causal: bool = True,
    dot: Dot = "ieee",
) -> tuple[Result, Result]:
    """Of the block sums, and of the mask: 1 where a block is undecidable, 0 elsewhere."""
    lengths = query_states.shape[2], key_states.shape[2]
    shape = (*query_states.shape[:2], *(-(-length // block_size) for length in lengths))
    sums, errors = estimate_errors(query_states, key_states, block_size, stride, norm, causal, dot)
    dtype = query_states.dtype
    bounds = tuple(map(tolerance, sums, errors, repeat(dtype)))
    low, high = (Result(dtype, shape, tuple(ends)) for ends in sum_ends(sums, errors, dtype))
    current_index = (lengths[1] - lengths[0]) // block_size if causal else 0
    decisions = decide_blocks(low, high, current_index, threshold, causal)
    return Result("float64", shape, bounds), undecided(decisions)


# --- the selection (R-X12) -----------------------------------------------------------------------


def undecided(decisions: Result) -> Result:
    """Of a mask: 1 where either decision is honest, 0 where one is not."""
    open_ = (float(decision == Decision.UNDECIDABLE) for decision in decisions.data)
    return Result("float64", decisions.shape, tuple(open_))


def find_blocks_chunked(
    input_tensor: Array[float],
    current_index: int,
    threshold: float,
    num_to_choose: None = None,
    decoding: bool = False,
    mode: str = "prefill",
    causal: bool = True,
) -> Result:
    """Of a mask of sums that are exact as given: 1 where a block is undecidable, 0 elsewhere."""
    decisions = decide_blocks(input_tensor, input_tensor, current_index, threshold, causal)
    return undecided(decisions)
