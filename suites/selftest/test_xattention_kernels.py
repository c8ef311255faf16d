"""The XAttention implementations beyond the contracts: what ours promise and others need not."""

import math
import os
from types import ModuleType
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from torch import Tensor

from kernels.xattention import torch_reference
from suites.watch.interpreter import watched

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("these kernels are interpreted: set TRITON_INTERPRET=1", allow_module_level=True)

from kernels.xattention import triton_streaming, triton_three_stage  # noqa: E402

INF, NAN = math.inf, math.nan

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


def same(actual: Any, expected: Any) -> bool:
    """Bitwise, but for the bits of NaN."""
    if isinstance(actual, tuple):
        return all(same(*pair) for pair in zip(actual, expected, strict=True))
    return torch.equal(actual.isnan(), expected.isnan()) and torch.equal(
        actual.nan_to_num(0, INF, -INF), expected.nan_to_num(0, INF, -INF)
    )


# --- softmax -------------------------------------------------------------------------------------


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


# --- selection -----------------------------------------------------------------------------------


@every_module
def test_no_block_without_mass_is_selected(module: ModuleType) -> None:
    """Though rounding would allow it: ten sums of 0.1 may add up to less than their total."""
    tenths = torch.tensor([0.1] * 10 + [0.0] * 10).view(1, 1, 1, 20)
    for threshold in (1.0, 1 - 2**-20):
        mask = call(module, "find_blocks_chunked", tenths, 0, threshold, causal=False)
        assert mask.flatten().tolist() == [True] * 10 + [False] * 10


# --- the estimate --------------------------------------------------------------------------------


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
    """The deputy of the oracle."""
    q, k = randn(1, 1, 24, 8).double(), randn(1, 1, 24, 8, seed=1).double()
    queries, keys = (x.reshape(1, 1, 12, 2, 8) for x in (q, k))
    x = torch.einsum("bhisd,bhjsd->bhij", queries.flip(3), keys) / (math.sqrt(8) * 2)
    weights = x.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -INF).softmax(-1)
    sums, _ = call(torch_reference, "xattn_estimate", q, k, 4, 2, dtypes=torch_reference.DEPUTY)
    expected = weights.reshape(1, 1, 6, 2, 6, 2).sum((3, 5))
    assert torch.allclose(sums, expected, rtol=1e-14, atol=0)
