"""The estimate: its scale, who sits where, chunks, and what padding must not do (R-X7, R-X19).

Where all scores are equal, a row shares its mass evenly among the keys that it sees, which says of
every block sum what it is. At a threshold of 1 every block with mass is selected, and with
a causal mask the first one and that of the row.
"""

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from golden.model import FloatType, Value
from suites.cases import ESTIMATE, Case, Results, real, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import dtypes, estimate_cases

CHUNKS = (1, 2, 3, 1000)  # in blocks
NEEDLE = 64.0  # a component of keys that outweigh all others
Whole = Literal["blocks", "positions", "tokens"]


def _case(
    queries: torch.Tensor, keys: torch.Tensor, block: int, stride: int, **others: Value
) -> Case:
    inputs: dict[str, Value] = {
        "query_states": to_golden(queries),
        "key_states": to_golden(keys),
        "block_size": block,
        "stride": stride,
        "threshold": real(1.0),
        "chunk_size": 1000 * block,
        "causal": True,
    }
    return Case(ESTIMATE, inputs | others)


def lengths(case: Case) -> tuple[int, int]:
    return case.tensor("query_states").shape[2], case.tensor("key_states").shape[2]


def seen(case: Case) -> torch.Tensor:
    """Which keys each row sees, in positions of ``stride`` tokens: bool ``[rows, keys]``."""
    (q_len, k_len), stride = lengths(case), case.number("stride")
    rows, keys = (torch.arange(math.ceil(length / stride)) for length in (q_len, k_len))
    own = (k_len - q_len) // stride + rows.unsqueeze(1)
    return (keys <= own) | (not case.inputs["causal"])


def blocks_of(case: Case, weights: torch.Tensor) -> Results:
    """The sums of weights ``[rows, keys]`` by block, the same in every head, and the mask."""
    size = case.number("block_size") // case.number("stride")
    rows, keys = weights.shape
    q_blocks, k_blocks = math.ceil(rows / size), math.ceil(keys / size)
    whole = pad(weights, (0, k_blocks * size - keys, 0, q_blocks * size - rows))
    sums = whole.reshape(q_blocks, size, k_blocks, size).sum((1, 3))
    sums = sums.to(getattr(torch, case.tensor("query_states").dtype))
    mask = sums > 0
    if case.inputs["causal"]:
        mask[:, 0] = True
        mask.diagonal(k_blocks - q_blocks)[:] = True
    heads = case.tensor("query_states").shape[:2]
    return sums.expand(*heads, -1, -1), mask.expand(*heads, -1, -1)


def even_shares(case: Case) -> Results:
    """What the estimate is where all scores are equal."""
    visible = seen(case).double()
    return blocks_of(case, visible / visible.sum(1, keepdim=True))


@st.composite
def even_cases(
    draw: st.DrawFn,
    whole: Whole,
    *,
    causal: bool | None = None,
    score: float = 0.0,
    norm: float = 1.0,
) -> Case:
    """Equal scores, of the sign of ``score``; lengths are of so many whole blocks or positions."""
    dtype: FloatType = draw(dtypes, label="dtype")
    stride = draw(st.sampled_from([2, 3, 4]), label="stride")
    # Where the last position may lack tokens, none after it is to be padding.
    size = 1 if whole == "tokens" else draw(st.sampled_from([3, 1, 2, 5]), label="block / stride")
    block = size * stride
    unit = {"blocks": block, "positions": stride, "tokens": 1}[whole]
    q_len = unit * draw(st.integers(1, 2 * block // unit), label="q_len / unit")
    is_causal = draw(st.booleans(), label="causal") if causal is None else causal
    # Who sits where is what whole blocks are for.
    longer = draw(st.integers(0, 3)) if whole == "blocks" or not is_causal else 0
    queries = torch.ones(1, 1, q_len, 2, dtype=getattr(torch, dtype))
    keys = torch.full((1, 1, q_len + longer * block, 2), score, dtype=queries.dtype)
    chunk = block * draw(st.sampled_from(CHUNKS), label="chunk / block")
    more: dict[str, Value] = {"norm": real(norm), "chunk_size": chunk, "causal": is_causal}
    return _case(queries, keys, block, stride, **more)


def require_as_close(
    runner: Runner,
    one: tuple[Case, Results],
    other: tuple[Case, Results],
    statement: str,
    rows: slice = slice(None),
) -> None:
    """Require rows of one result to be as another's, each within its own bounds of one value."""
    (before, expected), (after, actual) = one, other
    bounds = tuple(
        a[:, :, rows] + b
        for a, b in zip(
            *(c.bounds(runner.implementation.dot) for c in (before, after)), strict=True
        )
    )
    part = tuple(result[:, :, rows] for result in expected)
    runner.require_close(after, part, actual, bounds, statement)


# --- scale ---------------------------------------------------------------------------------------


@contract("xattention.estimate.scale")
@operations(ESTIMATE)
@given(
    dtype=dtypes,
    stride=st.integers(1, 4),
    head_dim=st.sampled_from([4, 1, 2, 9, 17]),
    norm=st.sampled_from([1.0, 0.5, 2.0, 1.3, -1.0, 1e60]),  # the last makes 0 of the scale
    values=st.lists(st.integers(-4, 4).map(lambda n: n / 4), min_size=1, max_size=5),
)
@settings(max_examples=12)
def test_scores_are_scaled_by_head_dim_stride_and_norm(
    implementation_or_oracle: Runner,
    dtype: FloatType,
    stride: int,
    head_dim: int,
    norm: float,
    values: list[float],
) -> None:
    """With queries of 1 and keys of a, T * D products make a score of T * D * a."""
    logits = torch.tensor(values, dtype=torch.float64) * math.sqrt(head_dim) / norm
    keys = torch.tensor(values, dtype=getattr(torch, dtype)).repeat_interleave(stride)
    queries = torch.ones(1, 1, stride, head_dim, dtype=keys.dtype)
    keys = keys.reshape(1, 1, -1, 1).expand(-1, -1, -1, head_dim)
    case = _case(queries, keys, stride, stride, norm=real(norm), causal=False)
    implementation_or_oracle.judge(case, blocks_of(case, logits.softmax(0).unsqueeze(0)))


# --- positions -----------------------------------------------------------------------------------


@contract("xattention.estimate.positions")
@operations(ESTIMATE)
@given(case=even_cases("blocks", causal=True))
@settings(max_examples=12)
def test_the_last_query_sits_at_the_last_key(implementation_or_oracle: Runner, case: Case) -> None:
    implementation_or_oracle.judge(case, even_shares(case))


@contract("xattention.estimate.positions")
@operations(ESTIMATE)
@given(case=estimate_cases(causal=True, whole=True), data=st.data())
@settings(max_examples=10)
def test_the_last_queries_alone_see_what_they_see_among_all(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    (q_len, _), block = lengths(case), case.number("block_size")
    most = q_len // block - 1
    left_out = data.draw(st.integers(min(1, most), most), label="blocks left out")
    last = to_torch(case.tensor("query_states"))[:, :, left_out * block :]
    alone = case.changed(query_states=to_golden(last))
    all_of_them, part = ((c, implementation_or_oracle.call(c)) for c in (case, alone))
    statement = "queries see other keys without the ones before them"
    rows = slice(left_out, None)
    require_as_close(implementation_or_oracle, all_of_them, part, statement, rows)


@contract("xattention.causal.no-future-leak")
@operations(ESTIMATE)
@given(data=st.data(), dtype=dtypes, stride=st.sampled_from([2, 1, 4]), size=st.integers(1, 4))
@settings(max_examples=12)
def test_a_key_after_a_row_is_not_seen(
    implementation_or_oracle: Runner, data: st.DataObject, dtype: FloatType, stride: int, size: int
) -> None:
    """A key that outweighs all others takes all mass from its position on, and none before."""
    positions = size * data.draw(st.integers(2, 3), label="blocks")
    needle = data.draw(st.integers(1, positions - 1), label="needle")
    queries = torch.ones(1, 1, positions * stride, 4, dtype=getattr(torch, dtype))
    keys = torch.zeros_like(queries)
    keys[:, :, needle * stride : (needle + 1) * stride] = NEEDLE
    case = _case(queries, keys, size * stride, stride)
    mass = seen(case).double()
    mass[needle:] = torch.eye(positions, dtype=mass.dtype)[needle]
    shares = mass / mass.sum(1, keepdim=True)
    implementation_or_oracle.judge(case, blocks_of(case, shares))


@contract("xattention.causal.no-future-leak")
@operations(ESTIMATE)
@given(case=estimate_cases(causal=True, whole=True), data=st.data())
@settings(max_examples=6)
def test_other_keys_in_the_future_change_no_bit(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    """All keys from a block on are replaced; the rows before it cannot tell."""
    runner = implementation_or_oracle
    keys, block = to_torch(case.tensor("key_states")), case.number("block_size")
    q_len, k_len = lengths(case)
    most = q_len // block - 1
    left = data.draw(st.integers(min(1, most), most), label="q_blocks left")
    keys[:, :, k_len - q_len + left * block :] = NEEDLE
    other = case.changed(key_states=to_golden(keys))
    before, after = (tuple(result[:, :, :left] for result in runner.call(c)) for c in (case, other))
    runner.require_same(other, before, after, "a key after a row contributes to it")


@contract("xattention.block-sum.future-zero")
@operations(ESTIMATE)
@given(case=estimate_cases(causal=True))
@settings(max_examples=8)
def test_blocks_of_the_future_have_no_mass(implementation_or_oracle: Runner, case: Case) -> None:
    sums, mask = implementation_or_oracle.call(case)
    q_blocks, k_blocks = sums.shape[2:]
    after = torch.arange(k_blocks) > k_blocks - q_blocks + torch.arange(q_blocks).unsqueeze(1)
    empty = bool((sums[..., after] == 0).all())
    implementation_or_oracle.require(case, empty, "a block of the future has mass", (sums, mask))


# --- chunks --------------------------------------------------------------------------------------


@contract("xattention.estimate.chunk-size")
@operations(ESTIMATE)
@given(case=estimate_cases(), chunk=st.sampled_from(CHUNKS))
@settings(max_examples=8)
def test_chunks_of_another_size_change_nothing(
    implementation_or_oracle: Runner, case: Case, chunk: int
) -> None:
    require_same_in_chunks(implementation_or_oracle, case, chunk)


def require_same_in_chunks(runner: Runner, case: Case, chunk: int) -> None:
    """Two honest results are each within the bounds of one value, which know no chunks."""
    other = case.changed(chunk_size=chunk * case.number("block_size"))
    before, after = runner.call(case), runner.call(other)
    bounds = tuple(
        2 * bound for bound in case.bounds(runner.implementation.dot) if bound is not None
    )
    runner.require_close(other, before, after, bounds, "the result depends on chunk_size")


# Queries, keys, block, stride, head_dim: more than a tile of each, and blocks that fit none.
Sizes = tuple[int, int, int, int, int, FloatType]
LONG: list[Sizes] = [
    (70, 350, 70, 1, 33, "bfloat16"),
    (37, 133, 12, 4, 20, "float32"),
]


def long_estimate(
    q_len: int, k_len: int, block: int, stride: int, head_dim: int, dtype: FloatType
) -> Case:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (
        torch.randn(1, 2, n, head_dim, generator=generator).to(getattr(torch, dtype))
        for n in (q_len, k_len)
    )
    return _case(queries, keys, block, stride, threshold=real(0.8), chunk_size=3 * block)


@contract("xattention.bounds.derived")
@operations(ESTIMATE)
@pytest.mark.parametrize("sizes", LONG)
def test_long_estimates(implementation: Runner, sizes: Sizes) -> None:
    implementation.judge(long_estimate(*sizes))


@contract("xattention.estimate.chunk-size")
@operations(ESTIMATE)
def test_chunks_of_a_long_estimate(implementation: Runner) -> None:
    require_same_in_chunks(implementation, long_estimate(*LONG[1]), 1000)


# --- padding -------------------------------------------------------------------------------------


@contract("xattention.padding.keys")
@operations(ESTIMATE)
@pytest.mark.parametrize(("score", "norm"), [(0.0, 1.0), (-8.0, 1.0), (-8.0, 1e60)])
@given(data=st.data())
@settings(max_examples=8)
def test_padded_keys_take_no_mass(
    implementation_or_oracle: Runner, score: float, norm: float, data: st.DataObject
) -> None:
    """Beside keys that score as zeros do, ones that zeros would outweigh, and a scale that is 0."""
    case = data.draw(even_cases("positions", score=score, norm=norm))
    implementation_or_oracle.judge(case, even_shares(case))


@contract("xattention.padding.partial-row")
@operations(ESTIMATE)
@given(case=even_cases("tokens"))
@settings(max_examples=12)
def test_a_position_of_one_token_is_a_position(
    implementation_or_oracle: Runner, case: Case
) -> None:
    implementation_or_oracle.judge(case, even_shares(case))


@contract("xattention.padding.partial-row")
@operations(ESTIMATE)
@given(case=estimate_cases(), data=st.data())
@settings(max_examples=8)
def test_tokens_that_a_position_lacks_count_as_zeros(
    implementation_or_oracle: Runner, case: Case, data: st.DataObject
) -> None:
    (q_len, _), stride = lengths(case), case.number("stride")
    lacking = -q_len % stride
    filled = case.changed(
        **{
            name: to_golden(pad(to_torch(case.tensor(name)), (0, 0, 0, lacking)))
            for name in ("query_states", "key_states")
        }
    )
    before, after = ((c, implementation_or_oracle.call(c)) for c in (case, filled))
    statement = "zeros in place of missing tokens make a difference"
    require_as_close(implementation_or_oracle, before, after, statement)


# --- mass ----------------------------------------------------------------------------------------


@contract("xattention.mass.rows")
@operations(ESTIMATE)
@given(case=estimate_cases())
@settings(max_examples=8)
def test_the_mass_of_a_block_is_its_number_of_rows(
    implementation_or_oracle: Runner, case: Case
) -> None:
    runner = implementation_or_oracle
    sums, mask = runner.call(case)
    bound, _ = case.bounds(runner.implementation.dot)
    assert bound is not None
    # The bound is around a rounded value, and rounding moved it by half a step at most.
    limits = torch.finfo(sums.dtype)
    error = bound + sums.double() * limits.eps + limits.tiny
    size, stride = case.number("block_size") // case.number("stride"), case.number("stride")
    first = torch.arange(sums.shape[2]) * size
    rows = (math.ceil(lengths(case)[0] / stride) - first).clamp(max=size)
    wrong = (sums.double().sum(3) - rows).abs() > error.sum(3)
    statement = "the sums of a row of blocks do not add up to its number of rows"
    runner.require(case, not wrong.any(), statement, (sums, mask))
