"""The XAttention implementations against dense float64 softmax, computed here with torch.

Errors are held to bounds that any fp32 computation keeps, with u = 2**-24. A score of n summands is
within (n + 2) u of the sum of their absolute values. A weight's exponent x - m is off by at most
8 u max|x|: scale, product and difference round x and m, and the exponential rounds its argument
again; it and the sums of n terms add (n + 16) u. Of such factors l has one and a weight two. The
type of the result adds one rounding.
"""

import itertools
import math
import os
from types import ModuleType
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.xattention import torch_reference
from suites.watch.interpreter import watched

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("these kernels are interpreted: set TRITON_INTERPRET=1", allow_module_level=True)

from kernels.xattention import triton_streaming, triton_three_stage  # noqa: E402

INF, NAN = math.inf, math.nan
U = 2.0**-24
UNIT = {torch.float32: U, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float64: 0.0}
SMALLEST = {torch.float32: 2.0**-126, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-126}

every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str
)
every_module = pytest.mark.parametrize(
    "module", [torch_reference, triton_three_stage], ids=["torch", "triton"]
)
every_estimate = pytest.mark.parametrize(
    "module",
    [torch_reference, triton_three_stage, triton_streaming],
    ids=["torch", "triton", "streaming"],
)


def call(module: ModuleType, operation: str, *arguments: Any, **named: Any) -> Any:
    """Call an operation; what its kernels touch is watched, and which one runs is asserted."""
    with watched() as watch:
        result = getattr(module, operation)(*arguments, **named)
    kernel = getattr(module, "KERNELS", {}).get(operation)
    if kernel is not None:
        output = result[0] if isinstance(result, tuple) else result
        assert watch.launches == [kernel] * bool(output.numel())
    return result


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layouts(x: Tensor) -> list[Tensor]:
    """The same values with other strides, among NaN that is not theirs."""
    spaced = x.new_full((*x.shape[:-1], 3 * x.shape[-1] + 2), NAN)[..., 1:-1:3]
    larger = x.new_full([size + 2 for size in x.shape], NAN)
    inner = larger[tuple(slice(1, -1) for _ in x.shape)]
    backwards = x.new_full(x.shape[::-1], NAN).permute(*reversed(range(x.ndim)))
    for view in (spaced, inner, backwards):
        view.copy_(x)
    return [spaced, inner, backwards]


def same(actual: Any, expected: Any) -> bool:
    """Bitwise, but for the bits of NaN."""
    if isinstance(actual, tuple):
        return all(same(*pair) for pair in zip(actual, expected, strict=True))
    return torch.equal(actual.isnan(), expected.isnan()) and torch.equal(
        actual.nan_to_num(0, INF, -INF), expected.nan_to_num(0, INF, -INF)
    )


def close(actual: Tensor, expected: Tensor, bound: Tensor, dtype: torch.dtype) -> None:
    """Within the bound and one rounding to ``dtype``; NaN and infinities by place and sign."""
    assert (actual.dtype, actual.shape) == (dtype, expected.shape)
    finite = expected.isfinite()
    assert same(actual[~finite].double(), expected[~finite])
    bound = bound + UNIT[dtype] * (expected.abs() + bound) + SMALLEST.get(dtype, 0)
    error = (actual.double() - expected).abs()[finite]
    assert (error <= bound[finite]).all(), (error - bound[finite]).max()


# --- dense softmax -------------------------------------------------------------------------------


def dense_scores(q: Tensor, k: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """The scores, and the sums of their summands' absolute values."""
    q, k = (pad(x.double(), (0, 0, 0, -x.shape[2] % stride)) for x in (q, k))
    q, k = (x.reshape(*x.shape[:2], x.shape[2] // stride, stride, -1) for x in (q, k))
    q, equation = q.flip(3), "bhisd,bhjsd->bhij"
    return torch.einsum(equation, q, k), torch.einsum(equation, q.abs(), k.abs())


def dense_softmax(scores: Tensor, scale: float, diagonal: int, causal: bool) -> tuple[Tensor, ...]:
    """m, l, the weights, and the slip of each row: how far a relative error of l may be from 0."""
    rows, columns = scores.shape[-2:]
    seen = torch.arange(columns) <= diagonal + torch.arange(rows).unsqueeze(1)
    seen = seen | (not causal)
    x = torch.where(seen, scores.double() * scale, -INF)
    m = pad(x, (0, 1), value=-INF).amax(-1)
    weight = torch.where(seen, (x - torch.where(m == -INF, 0.0, m).unsqueeze(-1)).exp(), 0)
    total = weight.sum(-1)
    weight = torch.where(seen, weight / torch.where(total == 0, 1.0, total).unsqueeze(-1), 0)
    largest = pad(torch.where(x.isfinite(), x, 0).abs(), (0, 1)).amax(-1)
    return m, total, weight, U * (8 * largest + columns + 16)


def by_block(weight: Tensor, block: int) -> Tensor:
    rows, columns = weight.shape[-2:]
    weight = pad(weight, (0, -columns % block, 0, -rows % block))
    q_blocks, k_blocks = weight.shape[2] // block, weight.shape[3] // block
    return weight.reshape(*weight.shape[:2], q_blocks, block, k_blocks, block).sum((3, 5))


def check_statistics(actual: tuple[Tensor, ...], softmax: tuple[Tensor, ...]) -> None:
    m, total, _, slip = softmax
    close(actual[0], m, slip * m.abs().nan_to_num(0, 0), torch.float32)
    close(actual[1], total, total * slip.expm1(), torch.float32)


def check_block_sums(
    actual: Tensor, softmax: tuple[Tensor, ...], block: int, real: int, dtype: torch.dtype
) -> None:
    _, _, weight, slip = softmax
    weight = torch.where(torch.arange(weight.shape[2]).unsqueeze(1) < real, weight, 0)
    error = weight * (2 * slip + U * block**2).expm1().unsqueeze(-1)
    close(actual, by_block(weight, block), by_block(error, block), dtype)


# --- scores --------------------------------------------------------------------------------------


@every_module
@every_dtype
@pytest.mark.parametrize(
    ("stride", "head_dim", "positions"), [(1, 5, (3, 70)), (3, 33, (5, 4)), (4, 96, (66, 130))]
)
def test_scores(
    module: ModuleType, dtype: torch.dtype, stride: int, head_dim: int, positions: tuple[int, int]
) -> None:
    q = randn(2, 2, positions[0] * stride, head_dim, dtype=dtype)
    k = randn(2, 2, positions[1] * stride, head_dim, dtype=dtype, seed=1)
    expected, magnitude = dense_scores(q, k, stride)
    bound = U * (stride * head_dim + 2) * magnitude
    arguments = (stride, 7, 7 + positions[0], False)
    scores = call(module, "flat_group_gemm_fuse_reshape", q, k, *arguments)
    close(scores, expected, bound, dtype)
    for x, y in zip(layouts(q), layouts(k), strict=True):
        close(
            call(module, "flat_group_gemm_fuse_reshape", x, y, *arguments), expected, bound, dtype
        )
    wide = call(module, "flat_group_gemm_fuse_reshape", q, k, *arguments, torch.float32)
    close(wide, expected, bound, torch.float32)
    assert same(scores, wide.to(dtype))


@every_module
def test_scores_of_causal_queries(module: ModuleType) -> None:
    """Before the diagonal they are what they are, after it finite."""
    q, k = randn(1, 2, 70, 8), randn(1, 2, 600, 8, seed=1)
    expected, magnitude = dense_scores(q, k, 2)
    for start in (0, 3, 130, 300):
        scores = call(module, "flat_group_gemm_fuse_reshape", q, k, 2, start, start + 35)
        seen = torch.arange(300) <= start + torch.arange(35).unsqueeze(1)
        close(scores[..., seen], expected[..., seen], 18 * U * magnitude[..., seen], torch.float32)
        assert scores.isfinite().all()


@every_module
def test_scores_by_hand(module: ModuleType) -> None:
    rows = torch.tensor([1.0, 2.0]).repeat(4).unsqueeze(1).expand(1, 1, 8, 128)
    scores = call(module, "flat_group_gemm_fuse_reshape", rows, rows, 4, 0, 2, False)
    assert same(scores, torch.full((1, 1, 2, 2), 1024.0))


@every_module
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # by the interpreter
def test_scores_past_the_range(module: ModuleType) -> None:
    q = torch.tensor([[[[65519.0], [65520.0], [-65520.0]]]]).half()
    q[...] = torch.tensor([4094.0, 4096.0, -4096.0]).half().view(1, 1, 3, 1)
    k = torch.full((1, 1, 1, 1), 16.0).half()
    scores = call(module, "flat_group_gemm_fuse_reshape", q, k, 1, 0, 3, False)
    assert scores.flatten().tolist() == [65504, INF, -INF]
    wide = call(module, "flat_group_gemm_fuse_reshape", q, k, 1, 0, 3, False, torch.bfloat16)
    assert wide.flatten().tolist() == [65536, 65536, -65536]


# --- softmax -------------------------------------------------------------------------------------

SCALE = 0.7


def run_stages(
    module: ModuleType, chunks: list[tuple[int, Tensor]], block: int, start: int, real: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Causal statistics and block sums over chunks of keys, given by offset and scores."""
    parts = [
        call(module, "softmax_compute_partial_stats", x, block, 9, SCALE, start, offset, True)
        for offset, x in chunks
    ]
    merged = call(module, "merge_softmax_stats", [m for m, _ in parts], [x for _, x in parts])
    sums = [
        call(
            module,
            "softmax_normalize_and_block_sum",
            *(x, *merged, block, 5, start, real, SCALE, offset, True),
        )
        for offset, x in chunks
    ]
    return merged, torch.cat(sums, -1)


@every_module
@pytest.mark.parametrize(
    ("dtype", "block", "q_blocks", "k_blocks"),
    [
        (torch.float32, 1, 3, 5),
        (torch.float32, 3, 2, 90),
        (torch.float32, 16, 2, 3),
        (torch.float32, 70, 1, 2),
        (torch.float16, 5, 2, 7),
        (torch.bfloat16, 5, 2, 7),
    ],
)
def test_softmax(
    module: ModuleType, dtype: torch.dtype, block: int, q_blocks: int, k_blocks: int
) -> None:
    """Dense softmax, three stages and one pass agree, whatever the sizes, offsets and strides."""
    rows, columns = q_blocks * block, k_blocks * block
    scores = 3 * randn(2, 2, rows, columns, dtype=dtype)
    start = columns // 2
    softmax = dense_softmax(scores, SCALE, start, True)
    real, split = rows - block // 2, start // block * block
    for x in (scores, *layouts(scores)):
        chunks = [(0, x[..., :split]), (split, x[..., split:])]
        merged, sums = run_stages(module, chunks, block, start, start + real)
        check_statistics(merged, softmax)
        check_block_sums(sums, softmax, block, real, dtype)
        one = call(
            module, "softmax_fuse_block_sum", x, block, 4, start, start + rows, start + real, SCALE
        )
        check_block_sums(one, softmax, block, real, dtype)

    everything = dense_softmax(scores, SCALE, 0, False)
    check_statistics(call(module, "softmax_compute_partial_stats", scores, 1, 1, SCALE), everything)
    one = call(module, "softmax_fuse_block_sum", scores, block, 4, 0, rows, rows, SCALE, False)
    check_block_sums(one, everything, block, rows, dtype)


@every_module
def test_every_pair_of_offsets(module: ModuleType) -> None:
    scores = randn(1, 1, 6, 9)
    for start, offset in itertools.product(range(12), range(9)):
        softmax = dense_softmax(scores, SCALE, start - offset, True)
        arguments = (3, 4, SCALE, start, offset, True)
        parts = call(module, "softmax_compute_partial_stats", scores, *arguments)
        check_statistics(parts, softmax)
        merged, sums = run_stages(module, [(offset, scores)], 3, start, start + 4)
        assert same(merged, parts)
        check_block_sums(sums, softmax, 3, 4, torch.float32)


@every_module
def test_chunks_of_keys_and_of_queries(module: ModuleType) -> None:
    scores = randn(1, 2, 12, 24)
    softmax = dense_softmax(scores, SCALE, 12, True)
    for q_size, k_size in ((2, 24), (12, 2), (4, 6), (6, 8)):
        for first in range(0, 12, q_size):
            rows = scores[:, :, first : first + q_size]
            chunks = [(j, rows[..., j : j + k_size]) for j in range(0, 24, k_size)]
            merged, sums = run_stages(module, chunks, 2, 12 + first, 12 + 11)
            part = tuple(x[:, :, first : first + q_size] for x in softmax)
            check_statistics(merged, part)
            check_block_sums(sums, part, 2, 11 - first, torch.float32)


@every_module
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30, -1e30])
def test_what_is_masked_reaches_no_bit(module: ModuleType, garbage: float) -> None:
    scores = randn(1, 2, 8, 12)
    seen = torch.arange(12) <= 1 + torch.arange(8).unsqueeze(1)
    seen[6:] = False  # padding
    spoiled = scores.where(seen, garbage)

    def results(x: Tensor) -> tuple[Tensor, ...]:
        real = x[:, :, :6]
        stats = call(module, "softmax_compute_partial_stats", real, 2, 3, SCALE, 3, 2, True)
        m, total = (pad(s, (0, 2), value=garbage if x is spoiled else 1) for s in stats)
        arguments = (2, 3, 3, 9, SCALE, 2, True)
        sums = call(module, "softmax_normalize_and_block_sum", x, m, total, *arguments)
        one = call(module, "softmax_fuse_block_sum", x, 2, 3, 1, 9, 7, SCALE)
        return *stats, sums, one

    assert same(results(spoiled), results(scores))


@every_module
def test_scores_that_are_not_finite(module: ModuleType) -> None:
    scores = randn(1, 1, 6, 300)
    scores[0, 0, 0, :130] = NAN
    scores[0, 0, 1, :] = -INF
    scores[0, 0, 2, :290] = -INF
    scores[0, 0, 3, 5:] = -INF
    scores[0, 0, 4, :] = -1e8 - torch.arange(300.0) * 1e4
    scores[0, 0, 5, 290:] = NAN  # past the diagonal
    softmax = dense_softmax(scores, SCALE, 284, True)
    assert softmax[0].isnan().flatten().tolist() == [True] + [False] * 5
    parts = call(module, "softmax_compute_partial_stats", scores, 3, 64, SCALE, 284, 0, True)
    merged, sums = run_stages(module, [(0, scores)], 3, 284, 290)
    assert same(merged, parts)
    assert (merged[0][0, 0, 1].item(), merged[1][0, 0, 1].item()) == (-INF, 0)
    assert merged[1][0, 0, 4] == 1  # x - m is 0 at the maximum, however large x is
    check_statistics(merged, softmax)
    check_block_sums(sums, softmax, 3, 6, torch.float32)
    one = call(module, "softmax_fuse_block_sum", scores, 3, 64, 284, 290, 290, SCALE)
    check_block_sums(one, softmax, 3, 6, torch.float32)
    assert not one[0, 0, 0, 96:].isnan().any()  # a NaN stays with the keys that its row sees


@every_module
def test_given_statistics(module: ModuleType) -> None:
    """Any strides; a row without mass contributes none, whatever its scores."""
    scores, m, total = randn(2, 2, 6, 9), randn(2, 2, 6, seed=1), randn(2, 2, 6, seed=2).abs() + 1
    m[1, 0, 4], total[1, 0, 4] = -INF, 0
    weight = (scores.double() * SCALE - m.double().unsqueeze(-1)).exp() / total.unsqueeze(-1)
    weight[1, 0, 4] = 0
    softmax = (m, total, weight, torch.full((2, 2, 6), 64 * U))
    for x, y in zip(layouts(m), layouts(total), strict=True):
        arguments = (x, y, 3, 3, 0, 5, SCALE)
        sums = call(module, "softmax_normalize_and_block_sum", scores, *arguments)
        check_block_sums(sums, softmax, 3, 5, torch.float32)


@every_module
def test_lengths_of_zero(module: ModuleType) -> None:
    for rows, columns in ((0, 4), (4, 0), (0, 0)):
        scores = randn(2, 1, rows, columns)
        m, total = call(module, "softmax_compute_partial_stats", scores, 2, 2, 1.0)
        assert same(m, torch.full((2, 1, rows), -INF))
        assert same(total, torch.zeros(2, 1, rows))
        assert same(call(module, "merge_softmax_stats", [m], [total]), (m, total))
        shape = (2, 1, rows // 2, columns // 2)
        sums = call(module, "softmax_normalize_and_block_sum", scores, m, total, 2, 2, 0, rows, 1.0)
        one = call(module, "softmax_fuse_block_sum", scores, 2, 2, 0, rows, rows, 1.0)
        assert sums.shape == one.shape == shape
        q, k = randn(1, 1, 2 * rows, 3), randn(1, 1, 2 * columns, 3)
        scores = call(module, "flat_group_gemm_fuse_reshape", q, k, 2, 0, rows)
        assert scores.shape == (1, 1, rows, columns)
    blocks = call(module, "find_blocks_chunked", torch.ones(1, 1, 0, 3), 1, 0.5)
    assert blocks.shape == (1, 1, 0, 3)


@every_module
def test_merge(module: ModuleType) -> None:
    """Any order, any strides, and identities that change nothing."""
    m, total = 50 * randn(4, 2, 3, 700), randn(4, 2, 3, 700, seed=1).abs() + 1
    m[1, 0], total[1, 0] = -INF, 0
    m[:, 1, 1, 5], total[:, 1, 1, 5] = -INF, 0
    m[2, 1, 2, 6], total[2, 1, 2, 6] = NAN, NAN
    expected_m = torch.where(m.isnan().any(0), NAN, m.nan_to_num(0, INF, -INF).amax(0)).double()
    shift = torch.where(expected_m == -INF, 0.0, expected_m)
    expected = (total.double() * (m.double() - shift).exp()).sum(0)
    bound = expected * U * (2 * 400 + 16)
    for order in itertools.permutations(range(4)):
        parts = [m[c] for c in order], [total[c] for c in order]
        merged = call(module, "merge_softmax_stats", *parts)
        close(merged[0], expected_m, torch.zeros_like(expected), torch.float32)
        close(merged[1], expected, bound, torch.float32)
    strided = call(
        module, "merge_softmax_stats", [*layouts(m[0]), m[0]], [*layouts(total[0]), total[0]]
    )
    close(strided[1], 4 * total[0].double(), 64 * U * total[0].double(), torch.float32)
    assert same(call(module, "merge_softmax_stats", [m[3]], [total[3]]), (m[3], total[3]))


# --- selection -----------------------------------------------------------------------------------


def choose(sums: Tensor, index: int, threshold: float, causal: bool) -> Tensor:
    """By the wording of R-X12, one row after another."""
    selected = torch.zeros(sums.shape, dtype=torch.bool)
    for b, h, r in itertools.product(*map(range, sums.shape[:3])):
        row = sums[b, h, r].double().tolist()
        visible = range(index + r + 1) if causal else range(len(row))
        chosen = {0, index + r} if causal else set()
        mass = sum(row[j] for j in chosen)
        for j in sorted(set(visible) - chosen, key=lambda j: -row[j]):
            if mass < threshold * sum(row[j] for j in visible):
                chosen.add(j)
            mass += row[j]
        selected[b, h, r, list(chosen)] = True
    return selected


@every_module
@every_dtype
@pytest.mark.parametrize("causal", [True, False])
def test_selection(module: ModuleType, dtype: torch.dtype, causal: bool) -> None:
    for q_blocks, k_blocks, index in ((1, 1, 0), (3, 3, 0), (5, 9, 2), (2, 70, 68)):
        # Multiples of 1 / 4, whose sums are exact, so that every decision is.
        sums = (randn(2, 2, q_blocks, k_blocks).abs() * 12).round() / 4
        for threshold, x in itertools.product((0.125, 0.875, 1), layouts(sums.to(dtype))):
            # Equal sums may be ordered either way: the masks agree in number.
            selected = call(module, "find_blocks_chunked", x, index, threshold, causal=causal)
            expected = choose(x, index, threshold, causal)
            assert selected.dtype is torch.bool
            assert torch.equal(selected.sum(-1), expected.sum(-1))
            mass = [(x.float() * mask).sum(-1) for mask in (selected, expected)]
            assert torch.equal(*mass)


@every_module
def test_selection_of_distinct_sums(module: ModuleType) -> None:
    order = torch.argsort(randn(2, 2, 4, 90), -1)
    sums = (order + 1.0) / 128
    for threshold, causal in itertools.product((0.25, 0.5, 0.75), (True, False)):
        selected = call(module, "find_blocks_chunked", sums, 40, threshold, causal=causal)
        assert torch.equal(selected, choose(sums, 40, threshold, causal))


@every_module
def test_selection_of_all(module: ModuleType) -> None:
    """A threshold of 1 takes every block with mass, however little beside the others."""
    sums = torch.tensor([1.0, 1e-12, 3.0, 0.0, 1e-30, NAN]).view(1, 1, 1, 6)
    mask = call(module, "find_blocks_chunked", sums, 4, 1.0)
    assert mask.flatten().tolist() == [True, True, True, False, True, False]
    mask = call(module, "find_blocks_chunked", sums[..., :5], 0, 1.0, causal=False)
    assert mask.flatten().tolist() == [True, True, True, False, True]
    # Sums of 0.1 that round past their total: nothing without mass comes in.
    tenths = torch.tensor([0.1] * 10 + [0.0] * 10).view(1, 1, 1, 20)
    for threshold in (1.0, 1 - 2**-20):
        mask = call(module, "find_blocks_chunked", tenths, 0, threshold, causal=False)
        assert mask.flatten().tolist() == [True] * 10 + [False] * 10


@every_module
def test_selection_of_rows_with_nan(module: ModuleType) -> None:
    sums = torch.ones(2, 1, 2, 5)
    sums[1, 0, 1, 2] = NAN
    mask = call(module, "find_blocks_chunked", sums, 2, 0.1)
    assert mask[0, 0].tolist() == [
        [True, False, True, False, False],
        [True, False, False, True, False],
    ]
    assert mask[1, 0].tolist() == [[True, False, True, False, False], [True] * 4 + [False]]


# --- the estimate --------------------------------------------------------------------------------


@every_estimate
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("q_len", "k_len", "block", "stride", "head_dim", "dtype"),
    [
        (37, 37, 12, 4, 20, torch.float32),
        (37, 37, 12, 4, 20, torch.float16),
        (37, 37, 12, 4, 20, torch.bfloat16),
        (11, 53, 6, 2, 16, torch.float32),
        (30, 30, 1, 1, 3, torch.float16),
        (70, 350, 70, 1, 33, torch.bfloat16),
        (3, 3, 8, 8, 5, torch.float32),
    ],
)
def test_estimate(
    module: ModuleType,
    causal: bool,
    q_len: int,
    k_len: int,
    block: int,
    stride: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    """By chunks of every size, and with any strides."""
    q = randn(1, 2, q_len, head_dim, dtype=dtype)
    k = randn(1, 2, k_len, head_dim, dtype=dtype, seed=1)
    scale = 1 / (math.sqrt(head_dim) * stride * 0.9)
    scores, magnitude = dense_scores(q, k, stride)
    softmax = dense_softmax(scores, scale, (k_len - q_len) // stride, causal)
    slip = softmax[3] + 2 * scale * U * (stride * head_dim + 2) * magnitude.amax(-1)
    blocks = math.ceil(k_len / block)
    for chunk, x, y in zip((1, 2, blocks), layouts(q), layouts(k), strict=True):
        sums, mask = call(
            module,
            "xattn_estimate",
            *(x, y, block, stride, 0.9, 0.8, block * max(chunk, blocks // 5), causal),
        )
        check_block_sums(sums, (*softmax[:3], slip), block // stride, q_len, dtype)
        index = blocks - math.ceil(q_len / block) if causal else 0
        again = call(torch_reference, "find_blocks_chunked", sums, index, 0.8, causal=causal)
        assert (mask != again).sum() <= mask.numel() // 50


@every_estimate
def test_estimate_of_garbage(module: ModuleType) -> None:
    """A NaN reaches the rows that see it, whatever their weights, and no token that is missing."""
    q, k = randn(1, 1, 23, 4), randn(1, 1, 31, 4)
    clean, _ = call(module, "xattn_estimate", q, k, 4, 4, 1e-3, chunk_size=8)
    k[0, 0, 20] = NAN  # in block 5, which queries see from block 3 on
    spoiled, mask = call(module, "xattn_estimate", q, k, 4, 4, 1e-3, chunk_size=8)
    assert same(spoiled[:, :, :3], clean[:, :, :3])
    # The last query lacks token 23, the one that token 20 of the keys would meet.
    assert spoiled[0, 0, 3:5, :6].isnan().all()
    assert not spoiled[0, 0, 5].isnan().any()
    assert mask[0, 0, 3].tolist() == [True] * 6 + [False] * 2


def test_estimate_in_float64() -> None:
    """The reference stands in for the oracle where it is given fp64."""
    q, k = randn(1, 1, 24, 8).double(), randn(1, 1, 24, 8, seed=1).double()
    softmax = dense_softmax(dense_scores(q, k, 2)[0], 1 / (math.sqrt(8) * 2), 0, True)
    sums, _ = call(torch_reference, "xattn_estimate", q, k, 4, 2)
    assert torch.allclose(sums, by_block(softmax[2], 2), rtol=1e-14, atol=0)


# --- refusals ------------------------------------------------------------------------------------

X, STATS = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4)
LEGAL: dict[str, dict[str, Any]] = {
    "flat_group_gemm_fuse_reshape": {
        "query_states": X, "key_states": X, "stride": 2, "chunk_start": 1, "chunk_end": 3,
    },
    "softmax_fuse_block_sum": {
        "attn_weights_slice": X, "reshaped_block_size": 2, "segment_size": 3, "chunk_start": 4,
        "chunk_end": 8, "real_q_len": 8, "scale": 1.0,
    },
    "softmax_compute_partial_stats": {
        "attn_weights_slice": X, "reshaped_block_size": 3, "segment_size": 3, "scale": 1.0,
    },
    "merge_softmax_stats": {"m_chunks": [STATS], "l_chunks": [STATS]},
    "softmax_normalize_and_block_sum": {
        "attn_weights_slice": X, "m_global": STATS, "l_global": STATS, "reshaped_block_size": 2,
        "segment_size": 3, "chunk_start": 4, "real_q_len": 8, "scale": 1.0,
    },
    "find_blocks_chunked": {"input_tensor": X, "current_index": 4, "threshold": 0.5},
    "xattn_estimate": {
        "query_states": X, "key_states": X, "block_size": 4, "stride": 2, "chunk_size": 8,
    },
}  # fmt: skip
STATES: dict[str, list[Any]] = {
    "query_states": [X[0], X.int(), X.half(), X[..., :5]],
    "key_states": [X[0], X.int(), X.half(), X[..., :5], X.expand(2, 1, 4, 8), X.expand(1, 2, 4, 8)],
}
SCORES: dict[str, list[Any]] = {
    "attn_weights_slice": [X[0], X.int()],
    "reshaped_block_size": [0, -1],
    "segment_size": [0, -1],
    "scale": [NAN, INF, -INF],
    "chunk_start": [-1],
}
BLOCKS: dict[str, list[Any]] = {
    "attn_weights_slice": [X[0], X[:, :, 1:], X[..., 1:]],
    "real_q_len": [-1],
}
REFUSED: list[tuple[str, dict[str, list[Any]]]] = [
    ("flat_group_gemm_fuse_reshape", STATES),
    ("flat_group_gemm_fuse_reshape", {"stride": [0, -2, 3], "chunk_start": [-1, 0]}),
    ("flat_group_gemm_fuse_reshape", {"chunk_end": [2, 5], "out_dtype": [torch.int32]}),
    ("flat_group_gemm_fuse_reshape", {"query_states": [X[:, :, 1:]], "key_states": [X[:, :, 1:]]}),
    ("softmax_fuse_block_sum", SCORES),
    ("softmax_fuse_block_sum", BLOCKS | {"chunk_end": [7, 9]}),
    ("softmax_compute_partial_stats", SCORES | {"kv_offset": [-1]}),
    ("merge_softmax_stats", {"m_chunks": [[], [STATS[0]], [STATS.half()], [STATS[..., 1:]]]}),
    ("merge_softmax_stats", {"l_chunks": [[], [STATS, STATS], [STATS.half()], [STATS[..., 1:]]]}),
    ("softmax_normalize_and_block_sum", SCORES | {"kv_offset": [-1]}),
    ("softmax_normalize_and_block_sum", BLOCKS),
    ("softmax_normalize_and_block_sum", {"m_global": [STATS[0], STATS.half(), STATS[..., 1:]]}),
    ("softmax_normalize_and_block_sum", {"l_global": [STATS[0], STATS.half(), STATS[..., 1:]]}),
    ("find_blocks_chunked", {"input_tensor": [X[0], X.int(), X[..., :0]]}),
    ("find_blocks_chunked", {"current_index": [-1, 5], "num_to_choose": [3]}),
    ("find_blocks_chunked", {"threshold": [0.0, -0.5, 1.5, NAN, INF]}),
    ("find_blocks_chunked", {"decoding": [True], "mode": ["decode"]}),
    ("xattn_estimate", STATES),
    ("xattn_estimate", {"query_states": [X[:, :, 1:], X[:, :, :0], X.repeat(1, 1, 2, 1)]}),
    ("xattn_estimate", {"key_states": [X[:, :, 1:], X[:, :, :0]]}),
    ("xattn_estimate", {"block_size": [0, 3], "stride": [0, 3], "chunk_size": [0, 6]}),
    ("xattn_estimate", {"norm": [0.0, NAN], "threshold": [0.0, 1.5, NAN]}),
]  # fmt: skip


@every_estimate
def test_refusals(module: ModuleType) -> None:
    """One line that names the argument, before any launch; the legal call is not refused."""
    for operation, changes in REFUSED:
        function = getattr(module, operation, None)
        if function is None:
            continue
        function(**LEGAL[operation])
        for name, values in changes.items():
            for value in values:
                with watched() as watch, pytest.raises(ValueError, match=name) as refusal:
                    function(**LEGAL[operation] | {name: value})
                assert "\n" not in str(refusal.value)
                assert not watch.launches
