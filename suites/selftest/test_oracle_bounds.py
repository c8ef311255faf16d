"""The derived bounds, both ways: honest fp32 arithmetic stays within them, and defects do not.

The implementations simulated here round where real ones do: products, sums in several orders,
base e and base 2, fused or not, streaming with rescaling or in two passes, an exponential that is
an ulp or two off, tensor cores that cut. The tests print the worst |error| / bound.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oracles import bounds, selection
from oracles import xattention as oracle
from oracles.selection import Result

F32 = np.float32
Floats = NDArray[Any]
LOG2E, LN2 = 1 / math.log(2), math.log(2)


def tensor(values: Floats, dtype: str = "float32") -> Result:
    """Rows and columns of one batch entry and head, quantised."""
    data = tuple(oracle.round_to(float(v), dtype) for v in values.ravel())
    return Result(dtype, (1, 1, *values.shape), data)


def array(result: Result) -> Floats:
    return np.array(result.data, dtype=np.float64).reshape(result.shape[2:])


def worst(actual: Floats, expected: Result, bound: Result) -> float:
    """The largest |error| / bound: 0 where the two are equal, infinite where no error is."""
    ratios = [0.0]
    for found, wanted, allowed in zip(
        np.asarray(actual, np.float64).ravel().tolist(), expected.data, bound.data, strict=True
    ):
        if found == wanted or (math.isnan(found) and math.isnan(wanted)):
            continue
        error = abs(found - wanted)
        if not error <= allowed:
            return math.inf if not allowed or math.isnan(error) else max(error / allowed, 1.0001)
        ratios.append(error / allowed if math.isfinite(allowed) else 0.0)
    return max(ratios)


def stored(values: Floats, dtype: str) -> Floats:
    """fp32 values rounded once more, to the type of a result."""
    flat = [oracle.round_to(float(v), dtype) for v in values.ravel()]
    return np.array(flat).reshape(values.shape)


# --- fp32 arithmetic -----------------------------------------------------------------------------

Sum = Callable[[Sequence[Any]], Any]


def in_order(terms: Sequence[Any]) -> Any:
    total = F32(0)
    for term in terms:
        total = F32(total + term)
    return total


def backwards(terms: Sequence[Any]) -> Any:
    return in_order(terms[::-1])


def pairwise(terms: Sequence[Any]) -> Any:
    if len(terms) < 2:
        return in_order(terms)
    half = len(terms) // 2
    return F32(pairwise(terms[:half]) + pairwise(terms[half:]))


def in_lanes(terms: Sequence[Any]) -> Any:
    return pairwise([in_order(terms[lane::8]) for lane in range(8)])


SUMS: list[Sum] = [in_order, backwards, pairwise, in_lanes]


def nudged(exact: Any, nudge: int) -> Any:
    """fp32, and off by half an ulp and one more at most."""
    value = F32(exact)
    return np.nextafter(value, F32(nudge) * F32(np.inf)) if nudge and value else value


def exp_e(t: Any, nudge: int) -> Any:
    return nudged(np.exp(np.float64(t)), nudge)


def exp_2(t: Any, nudge: int) -> Any:
    return nudged(np.exp2(np.float64(t)), nudge)


class Softmax:
    """x - m and its exponential, as an implementation in base e or in base 2 has them."""

    def __init__(self, scale: float, base2: bool, fused: bool, nudge: int) -> None:
        self.scale = F32(F32(scale) * F32(LOG2E)) if base2 else F32(scale)
        self.base2, self.fused, self.nudge = base2, fused, nudge

    def product(self, score: Any) -> Any:
        return F32(F32(score) * self.scale)

    def inward(self, m: Any) -> Any:
        return F32(F32(m) * F32(LOG2E)) if self.base2 else F32(m)

    def outward(self, m: Any) -> Any:
        return F32(m * F32(LN2)) if self.base2 else m

    def power(self, difference: Any) -> Any:
        if difference == 0:
            return F32(1)
        return (exp_2 if self.base2 else exp_e)(difference, self.nudge)

    def weight(self, score: Any, m: Any) -> Any:
        """exp(x - m); fused, the product is not rounded."""
        x = np.float64(score) * np.float64(self.scale) if self.fused else self.product(score)
        return self.power(F32(x - np.float64(m)))

    def two_passes(self, row: Floats, add: Sum) -> tuple[Any, Any]:
        m = max(self.product(score) for score in row)
        return m, add([self.weight(score, m) for score in row])

    def streaming(self, row: Floats, segment: int) -> tuple[Any, Any]:
        m, total = F32(-np.inf), F32(0)
        for left in range(0, len(row), segment):
            scores = row[left : left + segment]
            new = max(m, *(self.product(score) for score in scores))
            if math.isfinite(m):
                total = F32(total * self.power(F32(m - new)))
            total, m = F32(total + in_order([self.weight(s, new) for s in scores])), new
        return m, total


# Base 2, fused, the last half ulp and one more of the exponential: up or down.
VARIANTS = [
    (False, False, 0),
    (False, True, 1),
    (True, False, -1),
    (True, True, 1),
    (True, True, -1),
]


def scores_of_all_kinds() -> Iterator[tuple[str, Floats]]:
    """Magnitudes from 1e-8 to 1e8, rows that never stop rising, rows that are flat, long ones."""
    draw = np.random.default_rng(3)
    for size in (1e-8, 1e-3, 1.0, 40.0, 1e4, 1e8):
        yield f"{size:g}", draw.normal(scale=size, size=(4, 32)).astype(F32)
    yield "rising", np.sort(draw.normal(scale=2, size=(4, 64)).astype(F32), axis=1)
    yield "falling", -np.sort(draw.normal(scale=2, size=(4, 64)).astype(F32), axis=1)
    yield "flat", np.full((4, 64), 1e8, F32)
    yield "far below", (draw.normal(size=(4, 32)) - 1e5).astype(F32)
    yield "long", draw.normal(scale=0.01, size=(4, 2048)).astype(F32)


KINDS = [pytest.param(values, id=name) for name, values in scores_of_all_kinds()]
SCALE = 1 / (math.sqrt(96) * 8)


# The error of fp32 is seldom seen in 16 bits: there most tolerances are 0, and so are the errors.
FLOORS = {"float32": 1e-3, "float16": 0.0, "bfloat16": 0.0}


def report(label: str, ratios: Sequence[float], floor: float = 1e-3) -> None:
    """All within the bound, and the worst of them not by orders of magnitude."""
    ratio = max(ratios)
    print(f"{label}: worst |error| / bound = {ratio:.3g}")
    assert ratio <= 1, f"{label}: |error| / bound reached {ratio:.3g}"
    assert ratio >= floor, f"{label}: the worst |error| / bound is {ratio:.3g}: vacuous?"


# --- the tools -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "error", "dtype", "expected"),
    [
        (1.0, 0.0, "float16", 0.0),
        (1.0, 2.0**-12 * 0.99, "float16", 0.0),
        (1.0, 2.0**-12 * 1.01, "float16", 2.0**-11),  # below 1 the values lie closer
        (1.0, 2.0**-11 * 1.01, "float16", 2.0**-10),
        (2.0**-24, 2.0**-25 * 1.01, "float16", 2.0**-24),
        (65503.0, 16.0, "float16", 32.0),
        (65504.0, 17.0, "float16", math.inf),
        (65520.0, 1.0, "float16", math.inf),
        (65600.0, 1.0, "float16", 0.0),
        (-65600.0, 100.0, "float16", math.inf),
        (math.nan, 1.0, "float32", 0.0),
        (-math.inf, 0.0, "float32", 0.0),
    ],
)
def test_a_tolerance_ends_at_rounded_values(
    value: float, error: float, dtype: str, expected: float
) -> None:
    assert bounds.tolerance(value, error, dtype) == expected


@pytest.mark.parametrize("t", [0.0, -5.0, -700.0])
@pytest.mark.parametrize("slip", [1e-12, 1e-7, 0.1, 3.0, 900.0])
def test_spread_is_the_growth_of_the_exponential(t: float, slip: float) -> None:
    with np.errstate(over="ignore"):
        grown = np.exp(np.longdouble(t)) * np.expm1(np.longdouble(slip) * (1 + 2.0**-20))
    expected = float(grown) if t + slip < 709 else math.inf
    assert bounds.spread(t, slip) == pytest.approx(expected, rel=1e-9)


# --- scores --------------------------------------------------------------------------------------


def cut(value: float, ulp_exponent: int) -> float:
    return math.ldexp(math.trunc(math.ldexp(value, -ulp_exponent)), ulp_exponent)


def ten_bits(value: float) -> float:
    return cut(value, math.frexp(value)[1] - 11)


def on_tensor_cores(products: Sequence[float], group: int) -> float:
    """Aligned to the largest operand, cut to 24 bits, added, cut again."""
    total = 0.0
    for left in range(0, len(products), group):
        operands = [total, *products[left : left + group]]
        top = max(math.frexp(operand)[1] for operand in operands if operand or len(operands) == 1)
        added = math.fsum(cut(operand, top - 24) for operand in operands)
        total = cut(added, math.frexp(added)[1] - 24)
    return total


def states(dtype: str, size: float, dim: int, cancel: bool) -> tuple[Result, Result]:
    draw = np.random.default_rng(int(size * 7) + dim)
    queries, keys = draw.normal(scale=size, size=(2, 8, dim))
    if cancel:  # the second half of a row undoes the first
        queries[:, dim // 2 :] = -queries[:, : dim // 2]
        keys[:, dim // 2 :] = keys[:, : dim // 2] * (1 + 2.0**-9)
    return tensor(queries, dtype), tensor(keys, dtype)


def simulated_score(factors: Sequence[tuple[float, float]], how: Any) -> float:
    if how == "tf32":
        factors = [(ten_bits(q), ten_bits(k)) for q, k in factors]
    if isinstance(how, int):
        return on_tensor_cores([q * k for q, k in factors], how)
    add = in_order if how == "tf32" else how
    return float(add([F32(F32(q) * F32(k)) for q, k in factors]))


@pytest.mark.parametrize(
    ("dtype", "dot", "ways"),
    [
        ("float32", "ieee", SUMS),
        ("float32", "tf32", ["tf32"]),
        ("float16", "ieee", [*SUMS, 4, 8, 16]),
        ("bfloat16", "ieee", [*SUMS, 4, 8, 16]),
    ],
)
def test_honest_scores_are_within_the_bound(dtype: str, dot: bounds.Dot, ways: list[Any]) -> None:
    ratios = []
    sizes = [1e-3, 1.0, 100.0] if dtype == "float16" else [1e-8, 1.0, 1e4]
    for size in sizes:
        for dim, cancel in ((1, False), (2, False), (6, True), (96, False), (96, True)):
            queries, keys = states(dtype, size, dim, cancel)
            call = (queries, keys, 4, 0, 2)
            expected = oracle.flat_group_gemm_fuse_reshape(
                *call, is_causal=False, out_dtype="float32"
            )
            bound = bounds.flat_group_gemm_fuse_reshape(
                *call, is_causal=False, out_dtype="float32", dot=dot
            )
            rows, columns = oracle.matrices(queries)[0], oracle.matrices(keys)[0]
            tiles = [list(oracle.tile(rows, columns, i, j, 4)) for i in (0, 1) for j in (0, 1)]
            for way in ways:
                actual = np.array([simulated_score(tile, way) for tile in tiles])
                ratios.append(worst(actual, expected, bound))
    report(f"scores {dtype} {dot}", ratios)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_score_is_rounded_once_more_and_may_overflow(dtype: str) -> None:
    queries = tensor(np.array([[300.0, 1.0], [1.0, 0.25]]), dtype)
    keys = tensor(np.array([[218.5, -30.0], [218.5, 3.0]]), dtype)
    call = (queries, keys, 1, 0, 2)
    expected = oracle.flat_group_gemm_fuse_reshape(*call, is_causal=False)
    bound = bounds.flat_group_gemm_fuse_reshape(*call, is_causal=False)
    factors = [
        [(q, k) for q, k in zip(row, column, strict=True)]
        for row in oracle.matrices(queries)[0]
        for column in oracle.matrices(keys)[0]
    ]
    exact = np.array([simulated_score(each, in_order) for each in factors])
    assert worst(stored(exact, dtype), expected, bound) <= 1
    if dtype == "float16":  # 300 * 218.5 - 30 = 65520 sharp: infinite, or what is left below
        assert expected.data[0] == bound.data[0] == math.inf


def test_a_partial_sum_that_may_overflow_has_no_bound() -> None:
    one = tensor(np.array([[1e30, 1e30]]))
    bound = bounds.flat_group_gemm_fuse_reshape(
        one, tensor(np.array([[1e9, -1e9]])), 1, 0, 1, is_causal=False
    )
    assert bound.data == (math.inf,)


def test_the_future_of_a_score_may_be_anything_finite() -> None:
    ones = tensor(np.ones((4, 3)))
    expected = oracle.flat_group_gemm_fuse_reshape(ones, ones, 1, 0, 4)
    bound = bounds.flat_group_gemm_fuse_reshape(ones, ones, 1, 0, 4)
    written = np.where(np.tri(4, dtype=bool), array(expected), -1e38)
    assert worst(written, expected, bound) <= 1
    assert worst(np.where(np.tri(4, dtype=bool), written, np.inf), expected, bound) > 1
    assert worst(np.where(np.tri(4, k=-1, dtype=bool), written, 0.0), expected, bound) > 1


# --- statistics and their merge ------------------------------------------------------------------


def simulated_stats(row: Floats, scale: float) -> Iterator[tuple[float, float]]:
    for variant in VARIANTS:
        softmax = Softmax(scale, *variant)
        results = [softmax.two_passes(row, add) for add in SUMS]
        results += [softmax.streaming(row, segment) for segment in (1, 7)]
        for m, total in results:
            yield float(softmax.outward(m)), float(total)


def of_stats(values: Floats, scale: float) -> tuple[list[float], list[float]]:
    scores = tensor(values[:2])
    call = (scores, 4, 8, scale)
    expected, bound = (module.softmax_compute_partial_stats(*call) for module in (oracle, bounds))
    results = np.array([list(simulated_stats(row, scale)) for row in array(scores)])
    return tuple(  # type: ignore[return-value]
        [
            worst(results[:, way, part], expected[part], bound[part])
            for way in range(results.shape[1])
        ]
        for part in (0, 1)
    )


def test_honest_statistics_are_within_the_bound() -> None:
    ratios: tuple[list[float], list[float]] = ([], [])
    for _, values in scores_of_all_kinds():
        for scale in (SCALE, 1.0):
            m, total = of_stats(values, scale)
            ratios[0].extend(m)
            ratios[1].extend(total)
    report("m", ratios[0])
    report("l", ratios[1])


@pytest.mark.parametrize("values", [KINDS[2], KINDS[6], KINDS[10]])
def test_the_bound_of_each_ordinary_row_has_substance(values: Floats) -> None:
    report("l of these rows", of_stats(values, SCALE)[1])


def online(softmax: Softmax, parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The source's formula, chunk by chunk."""
    m, total = softmax.inward(parts[0][0]), F32(parts[0][1])
    for m_chunk, l_chunk in parts[1:]:
        other = softmax.inward(m_chunk)
        new = max(m, other)
        kept = F32(total * softmax.power(F32(m - new)))
        total, m = F32(kept + F32(F32(l_chunk) * softmax.power(F32(other - new)))), new
    return float(softmax.outward(m)), float(total)


def test_honest_merges_are_within_the_bound() -> None:
    draw = np.random.default_rng(5)
    ratios: tuple[list[float], list[float]] = ([], [])
    for size in (1e-8, 1.0, 20.0, 1e4, 1e8):
        for count in (1, 2, 17, 200):
            m = draw.normal(scale=size, size=(count, 4)).astype(F32)
            m[:, 1] = np.sort(m[:, 1])
            m[:, 2] = size
            total = (1 + draw.exponential(scale=300, size=(count, 4))).astype(F32)
            chunks = [
                [Result("float32", (1, 1, 4), tuple(row.tolist())) for row in part]
                for part in (m, total)
            ]
            expected, bound = (module.merge_softmax_stats(*chunks) for module in (oracle, bounds))
            for variant in VARIANTS:
                softmax = Softmax(1.0, *variant)
                for turn in (1, -1):
                    pairs = [
                        list(zip(m[::turn, row].tolist(), total[::turn, row].tolist(), strict=True))
                        for row in range(4)
                    ]
                    results = np.array([online(softmax, parts) for parts in pairs])
                    for part in (0, 1):
                        if part or not softmax.base2:
                            ratios[part].append(
                                worst(results[:, part], expected[part], bound[part])
                            )
    report("merged l", ratios[1])
    # base e has the maximum itself; a caller that converts it and rounds it twice is allowed to
    assert max(ratios[0]) == 0
    converted = ((m[0] * np.float64(LOG2E)).astype(F32) * np.float64(LN2)).astype(F32)
    one = [[chunks[part][0]] for part in (0, 1)]
    ratio = worst(
        converted, oracle.merge_softmax_stats(*one)[0], bounds.merge_softmax_stats(*one)[0]
    )
    report("merged m", [ratio])


def test_merging_equal_maxima_and_one_chunk_are_exact_but_for_additions() -> None:
    chunk = Result("float32", (1, 1, 1), (3.25,))
    assert bounds.merge_softmax_stats([chunk], [chunk])[1].data == (0.0,)


# --- block sums ----------------------------------------------------------------------------------


def simulated_blocks(weights: Floats, block: int, add: Sum) -> Floats:
    height, width = (length // block for length in weights.shape)
    return np.array(
        [
            [
                add([*weights[r * block : (r + 1) * block, c * block : (c + 1) * block].flat])
                for c in range(width)
            ]
            for r in range(height)
        ]
    )


def simulated_weights(scores: Floats, m: Floats, total: Floats, softmax: Softmax) -> Floats:
    """Base 2 multiplies by a reciprocal, base e divides."""
    rows = []
    for row, maximum, mass in zip(scores, m, total, strict=True):
        powers = [softmax.weight(score, maximum) for score in row]
        inverse = F32(1) / F32(mass)
        rows.append([F32(p * inverse) if softmax.base2 else F32(p / F32(mass)) for p in powers])
    return np.array(rows)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_honest_normalisation_is_within_the_bound(dtype: str) -> None:
    """m and l as given, those of a longer row: exact numbers to the bound."""
    ratios = []
    for name, values in scores_of_all_kinds():
        scores = tensor(
            values[:, :64] if dtype != "float16" else np.clip(values, -6e4, 6e4)[:, :64], dtype
        )
        found = array(scores)
        for scale in (SCALE, 1.0):
            m, total = oracle.softmax_compute_partial_stats(scores, 4, 8, scale)
            m = Result("float32", m.shape, tuple(float(F32(v + abs(v) / 64 + 1)) for v in m.data))
            call = (scores, m, total, 4, 8, 0, 4, scale)
            expected, bound = (
                module.softmax_normalize_and_block_sum(*call) for module in (oracle, bounds)
            )
            for variant in VARIANTS:
                softmax = Softmax(scale, *variant)
                inward = [softmax.inward(value) for value in m.data]
                weights = simulated_weights(found, np.array(inward), np.array(total.data), softmax)
                for add in SUMS:
                    actual = stored(simulated_blocks(weights, 4, add), dtype)
                    ratio = worst(actual, expected, bound)
                    assert ratio <= 1, (name, scale, variant, add.__name__, ratio)
                    ratios.append(ratio)
    report(f"normalised block sums {dtype}", ratios, FLOORS[dtype])


def staged_stats(row: Floats, softmax: Softmax, chunk: int) -> tuple[Any, Any]:
    """Statistics by chunks, each through fp32 numbers in base e, merged."""
    parts = []
    for left in range(0, len(row), chunk):
        m, total = softmax.two_passes(row[left : left + chunk], pairwise)
        parts.append((float(softmax.outward(m)), float(total)))
    m, total = online(softmax, parts)
    return softmax.inward(m), F32(total)


def softmax_stats(
    row: Floats, softmax: Softmax, add: Sum, staged: bool, way: int
) -> tuple[Any, Any]:
    """By stages of many chunks or of one; else in two passes or streaming."""
    if staged:
        return staged_stats(row, softmax, len(row) if way else 8)
    return softmax.streaming(row, 1) if way else softmax.two_passes(row, add)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("staged", [False, True])
def test_honest_softmax_is_within_the_bound(dtype: str, staged: bool) -> None:
    ratios = []
    for name, values in scores_of_all_kinds():
        scores = tensor(np.clip(values, -6e4, 6e4) if dtype == "float16" else values, dtype)
        found = array(scores)
        for scale in (SCALE, 1.0):
            call = (scores, 4, 8, 0, 4, 4, scale, False)
            expected = oracle.softmax_fuse_block_sum(*call)
            bound = bounds.softmax_fuse_block_sum(*call, staged=staged)
            for variant, add in zip(VARIANTS, [*SUMS, in_order], strict=True):
                softmax = Softmax(scale, *variant)
                for way in (0, 1) if len(found[0]) < 1000 else (0,):
                    pairs = [softmax_stats(row, softmax, add, staged, way) for row in found]
                    m, total = (np.array(part) for part in zip(*pairs, strict=True))
                    weights = simulated_weights(found, m, total, softmax)
                    actual = stored(simulated_blocks(weights, 4, add), dtype)
                    ratio = worst(actual, expected, bound)
                    assert ratio <= 1, (name, scale, variant, ratio)
                    ratios.append(ratio)
    report(f"block sums {dtype}, staged={staged}", ratios, FLOORS[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("staged", [False, True])
def test_in_16_bits_few_block_sums_may_differ_and_by_one_step(dtype: str, staged: bool) -> None:
    scores = tensor(np.random.default_rng(9).normal(size=(64, 64)), dtype)
    call = (scores, 4, 8, 0, 64, 64, SCALE)
    expected = oracle.softmax_fuse_block_sum(*call)
    bound = bounds.softmax_fuse_block_sum(*call, staged=staged)
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert all(b <= step * e for e, b in zip(expected.data, bound.data, strict=True))
    assert sum(b > 0 for b in bound.data) < 0.1 * len(bound.data)


def test_rows_without_mass_and_with_nan_have_no_tolerance() -> None:
    x = np.zeros((4, 4), F32)
    x[0], x[2, 1] = -np.inf, np.nan
    scores = tensor(x)
    m, total = bounds.softmax_compute_partial_stats(scores, 2, 2, 1.0)
    assert (m.data[0], total.data[0], m.data[2], total.data[2]) == (0, 0, 0, 0)
    bound = bounds.softmax_fuse_block_sum(scores, 2, 2, 0, 4, 4, 1.0, False)
    assert bound.data[2:] == (0, 0)
    assert 0 < bound.data[0] < 1e-5
    padded = bounds.softmax_fuse_block_sum(scores, 2, 2, 4, 8, 5, 1.0, False)
    assert padded.data == (0, 0, 0, 0)


# --- the estimate --------------------------------------------------------------------------------


def simulated_estimate(
    queries: Result, keys: Result, softmax: Softmax, keep: bool, staged: bool
) -> Floats:
    """Stride 2, blocks of 8 tokens, causal; scores in fp32 or rounded to the inputs' type."""
    rows, columns = oracle.matrices(queries)[0], oracle.matrices(keys)[0]
    height, width = -(-len(rows) // 2), -(-len(columns) // 2)
    weights = np.zeros((-(-height // 4) * 4, -(-width // 4) * 4), F32)
    for i in range(height):
        end = width - height + i + 1
        tiles = (list(oracle.tile(rows, columns, i, j, 2)) for j in range(end))
        row = np.array([simulated_score(tile, in_lanes) for tile in tiles])
        row = row if keep else stored(row, queries.dtype)
        m, total = staged_stats(row, softmax, 8) if staged else softmax.streaming(row, 1)
        weights[i, :end] = simulated_weights(row[None], np.array([m]), np.array([total]), softmax)[
            0
        ]
    return stored(simulated_blocks(weights, 4, in_lanes), queries.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_honest_estimates_are_within_the_bound(dtype: str) -> None:
    """The sums, and the selection that each makes for itself."""
    draw = np.random.default_rng(11)
    ratios = []
    for size in (1e-2, 1.0, 4.0):
        queries = tensor(draw.normal(scale=size, size=(29, 12)), dtype)
        keys = tensor(draw.normal(scale=size, size=(45, 12)), dtype)
        expected, mask = oracle.xattn_estimate(queries, keys, 8, 2, threshold=0.8, chunk_size=8)
        bound, open_ = bounds.xattn_estimate(queries, keys, 8, 2, threshold=0.8)
        scale = oracle.estimate_scale(12, 2, 1.0)
        for variant in VARIANTS:
            for keep, staged in ((True, False), (True, True), (False, False), (False, True)):
                actual = simulated_estimate(queries, keys, Softmax(scale, *variant), keep, staged)
                ratios.append(worst(actual, expected, bound))
                chosen = selection.find_blocks_chunked(tensor(actual, dtype), 2, 0.8)
                for wanted, bit, free in zip(mask.data, chosen.data, open_.data, strict=True):
                    assert wanted == bit or free
    report(f"estimate {dtype}", ratios, 1e-3 if dtype == "float16" else FLOORS[dtype])


# --- the worst that the model of arithmetic allows -----------------------------------------------

U = 2.0**-24


class Adversary:
    """Arithmetic in float64 in which every rounding is a whole u and goes the same way.

    What honest hardware does by chance once in a while, this does always, so that it comes close
    to the bound. ``sign`` is the way.
    """

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def off(self, value: float, roundings: float) -> float:
        """Away from 0 or towards it."""
        return value * math.pow(1 + self.sign * U, roundings)

    def off_by(self, value: float, roundings: float) -> float:
        """Up or down, whatever the sign of the value."""
        return value + self.sign * U * roundings * abs(value)

    def less(self, x: float, m: float, of_x: float, of_m: float, of_difference: float) -> float:
        """x - m, the two off in opposite ways."""
        difference = self.off_by(x, of_x) - (2 * m - self.off_by(m, of_m))
        return self.off_by(difference, of_difference)

    def exp(self, t: float) -> float:
        return self.off(math.exp(t), 4)

    def streaming(self, x: Sequence[float]) -> float:
        """l, a key at a time; the argument's whole error is in the weight, as it telescopes."""
        total, top, m = 0.0, -math.inf, max(x)
        for value in x:
            new = max(top, value)
            if top not in (new, -math.inf):
                total = self.off(total * self.exp(top - new), 1)
            slip = self.less(value, m, 2, 2, 4) - (value - m)
            weight = self.exp(value - new + slip) if value < m else math.exp(slip)
            total, top = self.off(total + weight, 1 if total else 0), new
        return total

    def merged(self, parts: Sequence[tuple[float, float]]) -> float:
        """l, a chunk at a time."""
        (top, total), m = parts[0], max(m for m, _ in parts)
        for value, mass in parts[1:]:
            new = max(top, value)
            if top < new:
                # the last factor carries the error of the whole argument
                slip = self.less(top, m, 1, 1, 3) - (top - m) if new == m else 0.0
                total = self.off(total * self.exp(top - new + slip), 1)
            total, top = self.off(total + mass, 1), new
        return total


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("values", "floor"),
    [
        (np.linspace(-1e-3, 0, 64), 0.75),  # 63 rescalings, equal weights
        (np.array([*[-1e-4] * 3, 0.0]), 0.75),  # the exponential itself
        (1e3 + np.linspace(-1e-3, 0, 4), 0.8),  # arguments of large numbers
        (np.array([-9.0, 0.0]), 0.15),  # exp(0) may be off, and is not here
        (np.full(64, 3.0), 0.5),  # a term goes through half of the additions on average
    ],
)
def test_the_bound_of_l_is_near_the_worst_of_the_model(
    values: Floats, floor: float, sign: int
) -> None:
    (x,) = oracle.matrices(tensor(values[None]))[0]
    m, total = oracle.row_stats(x)
    allowed = bounds.total_error(x, m, total, bounds.own_slips(x, m, [0.0] * len(x)))
    error = abs(Adversary(sign).streaming(x) - total)
    assert floor * allowed <= error <= allowed, f"|error| / bound = {error / allowed}"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "maxima", [np.linspace(-1e-4, 0, 64), np.array([1e4 - 1, 1e4]), np.array([-0.7, 0])]
)
def test_the_bound_of_a_merge_is_near_the_worst_of_the_model(maxima: Floats, sign: int) -> None:
    """The last chunk has the least mass: what came before has all the error."""
    parts = [(m, 100.0) for m in maxima.astype(F32).tolist()]
    parts[-1] = (parts[-1][0], 1.0)
    _, allowed = bounds.merge_error(parts)
    error = abs(Adversary(sign).merged(parts) - oracle.merge(parts)[1])
    assert 0.6 * allowed <= error <= allowed, f"|error| / bound = {error / allowed}"


@pytest.mark.parametrize("sign", [1, -1])
def test_statistics_that_travel_cost_more_than_one_pass_allows(sign: int) -> None:
    """A chunk a key, large maxima: m_c is off by 4u where it is stored, and by 1u more in l."""
    x, way = [1000.0, 1000.25], Adversary(sign)
    m, total = oracle.row_stats(x)
    apart = [way.exp(way.less(value, m, 5, 5, 4)) for value in x]
    actual = math.exp(x[0] - m) / way.off(sum(apart), 1)
    exact = math.exp(x[0] - m) / total
    one_pass, staged = (
        bounds.own_weight_errors(x, [0.0, 0.0], staged)[0] for staged in (False, True)
    )
    assert one_pass < abs(actual - exact) <= staged


def test_tensor_cores_that_cut_need_more_than_rounding() -> None:
    """Three products, each just below the last bit of the largest, are all lost: 6u."""
    small = (2 - 2.0**-10) * 2.0**-13
    queries = tensor(np.array([[1.0, small, small, small]]), "float16")
    keys = tensor(np.array([[1.0, 2 * small, 2 * small, 2 * small]]), "float16")
    call = (queries, keys, 1, 0, 1, False, "float32")
    expected = oracle.flat_group_gemm_fuse_reshape(*call)
    lost = on_tensor_cores([1.0, *[2 * small**2] * 3], 4)
    assert lost == 1.0
    ratio = worst(np.array([lost]), expected, bounds.flat_group_gemm_fuse_reshape(*call))
    assert 0.4 < ratio <= 1


def test_the_maximum_in_base_2_is_off_by_several_roundings() -> None:
    values = np.random.default_rng(1).normal(size=(1024, 1)).astype(F32)
    scores, ratios = tensor(values), []
    for scale in (SCALE, 0.3, 1.7, 0.011):
        softmax = Softmax(scale, True, False, 0)
        expected, _ = oracle.softmax_compute_partial_stats(scores, 4, 8, scale)
        bound, _ = bounds.softmax_compute_partial_stats(scores, 4, 8, scale)
        actual = np.array([softmax.outward(softmax.product(score)) for score in values[:, 0]])
        ratios.append(worst(actual, expected, bound))
    report("m in base 2", ratios, 0.4)


def test_the_ends_of_the_estimate_hold_its_sums_rounded_or_not() -> None:
    queries, keys = states("float16", 1.0, 12, False)
    sums, errors = bounds.estimate_errors(queries, keys, 4, 2, 1.0, True, "ieee")
    low, high = bounds.sum_ends(sums, errors, "float16")
    for value, error, least, most in zip(sums, errors, low, high, strict=True):
        for end in (value - error, value + error):
            assert least <= end <= most
            assert least <= oracle.round_to(end, "float16") <= most


# --- defects -------------------------------------------------------------------------------------


def test_a_perturbation_just_above_the_bound_is_caught() -> None:
    """In one element of each output, on either side."""
    values = dict(scores_of_all_kinds())["1"]
    scores, (queries, keys) = tensor(values), states("float32", 1.0, 96, False)
    m, total = oracle.softmax_compute_partial_stats(scores, 4, 8, 1.0)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("flat_group_gemm_fuse_reshape", (queries, keys, 4, 0, 2, False)),
        ("softmax_compute_partial_stats", (scores, 4, 8, 1.0)),
        ("merge_softmax_stats", ([m, m], [total, total])),
        ("softmax_normalize_and_block_sum", (scores, m, total, 4, 8, 0, 4, 1.0)),
        ("softmax_fuse_block_sum", (scores, 4, 8, 0, 4, 4, 1.0, False)),
    ]
    pairs = [(getattr(oracle, name)(*call), getattr(bounds, name)(*call)) for name, call in calls]
    pairs.append(
        (
            oracle.xattn_estimate(queries, keys, 4, 2)[0],
            bounds.xattn_estimate(queries, keys, 4, 2)[0],
        )
    )
    for expected, bound in pairs:
        results = (
            zip(expected, bound, strict=True)
            if isinstance(expected, tuple)
            else [(expected, bound)]
        )
        for wanted, allowed in results:
            for side in (1.01, -1.01):
                actual = np.array(wanted.data)
                assert worst(actual, wanted, allowed) == 0
                place = int(np.argmax(allowed.data))
                actual[place] += side * allowed.data[place]
                assert 1 < worst(actual, wanted, allowed) < 1.02


def test_a_lost_key_a_coarse_sum_and_a_wrong_scale_are_caught() -> None:
    """Defects of ordinary size, in a row of 512 keys of similar weight."""
    row = np.random.default_rng(2).normal(scale=0.1, size=512).astype(F32)
    scores = tensor(row[None])
    m, total = oracle.softmax_compute_partial_stats(scores, 4, 8, 1.0)
    _, bound = bounds.softmax_compute_partial_stats(scores, 4, 8, 1.0)
    softmax = Softmax(1.0, False, False, 0)
    lost = softmax.two_passes(row[:-1], pairwise)[1]
    coarse = 0.0
    for score in row:
        coarse = oracle.round_to(coarse + float(softmax.weight(score, m.data[0])), "bfloat16")
    scaled = Softmax(1.001, False, False, 0).two_passes(row, pairwise)[1]
    for wrong in (lost, coarse, scaled):
        assert worst(np.array([wrong]), total, bound) > 1


def test_infinities_of_both_signs_in_a_tile_have_a_bound() -> None:
    """Their sum is NaN, which has to come as such: there is no error to allow."""
    queries = tensor(np.array([[math.inf], [-math.inf], [0.0], [0.0]]))
    keys = tensor(np.ones((4, 1)))
    bound = bounds.flat_group_gemm_fuse_reshape(queries, keys, 2, 0, 2, is_causal=False)
    expected = oracle.flat_group_gemm_fuse_reshape(queries, keys, 2, 0, 2, False)
    assert [math.isnan(x) for x in expected.data] == [True, True, False, False]
    assert bound.data[:2] == (0.0, 0.0)
    sums, _ = bounds.xattn_estimate(queries, keys, 2, 2, causal=False)
    assert not any(map(math.isnan, sums.data))
