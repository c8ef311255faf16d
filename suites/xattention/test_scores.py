"""Scores (R-X1, R-X16), and what a causal early exit leaves in their place (R-X20).

Many cases are of whole numbers, of which fp32 holds every partial sum: whatever the order of the
additions, one result is right. Unless a test is about tiles, the stride is 1, and unless it is
about head_dim, that is a power of two.
"""

import re
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.model import FloatType, Tensor, Value
from suites.cases import (
    ESTIMATE,
    MERGE,
    NORMALISE,
    ONE_PASS,
    SCORES,
    STATS,
    Case,
    Results,
    real,
    to_golden,
    to_torch,
)
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import DTYPES, dtypes, few, score_cases, tensors

INF = float("inf")

whole_numbers = st.integers(-4, 4).map(float)
# So many keys that a kernel's tile of them may lie in the future of every query.
wide = st.sampled_from([150, 7, 33, 70, 260])


@st.composite
def whole_cases(
    draw: st.DrawFn,
    *,
    stride: st.SearchStrategy[int] = st.just(1),  # noqa: B008
    head_dim: st.SearchStrategy[int] = st.sampled_from([2, 1, 4, 8]),  # noqa: B008
) -> Case:
    """Scores of whole numbers."""
    dtype, heads, tile = draw(dtypes), (draw(few), draw(few)), draw(stride)
    # Few, or more of one side than there are in a kernel's tile.
    sizes = [(2, 3), (1, 1), (3, 5), (4, 2), (70, 2), (2, 140)]
    rows, columns = draw(st.sampled_from(sizes), label="rows, columns")
    dimensions = draw(head_dim, label="head_dim")
    queries, keys = (
        draw(tensors(dtype, (*heads, length * tile, dimensions), whole_numbers))
        for length in (rows, columns)
    )
    return _case(queries, keys, tile)


def _case(
    queries: Tensor, keys: Tensor, stride: int = 1, start: int = 0, causal: bool = False
) -> Case:
    rows = queries.shape[2] // stride
    inputs: dict[str, Value] = {
        "query_states": queries,
        "key_states": keys,
        "stride": stride,
        "chunk_start": start,
        "chunk_end": start + rows,
        "is_causal": causal,
    }
    return Case(SCORES, inputs)


def _states(rows: Sequence[Sequence[float]], dtype: FloatType) -> Tensor:
    return to_golden(torch.tensor([[rows]], dtype=getattr(torch, dtype)))


def by_formula(case: Case) -> Results:
    """The sums over antidiagonals, in float64 and rounded once."""
    stride = case.number("stride")
    queries, keys = (
        to_torch(case.tensor(name)).double() for name in ("query_states", "key_states")
    )
    queries, keys = (x.reshape(*x.shape[:2], -1, stride, x.shape[3]) for x in (queries, keys))
    scores = torch.einsum("bhisd,bhjsd->bhij", queries.flip(3), keys)
    return (scores.to(getattr(torch, case.tensor("query_states").dtype)),)


def future(case: Case) -> torch.Tensor:
    """Which entries are after their query's position, bool ``[rows, columns]``."""
    stride = case.number("stride")
    rows, columns = (
        case.tensor(name).shape[2] // stride for name in ("query_states", "key_states")
    )
    last = case.number("chunk_start") + torch.arange(rows)
    return torch.arange(columns) > last.unsqueeze(1)


# --- antidiagonals -------------------------------------------------------------------------------


@contract("xattention.scores.antidiagonal")
@operations(SCORES)
@given(case=whole_cases(stride=st.integers(1, 8)))
@settings(max_examples=20)
def test_an_entry_is_the_sum_over_an_antidiagonal(
    implementation_or_oracle: Runner, case: Case
) -> None:
    actual = implementation_or_oracle.call(case)
    statement = "entries are not the sums over antidiagonals"
    implementation_or_oracle.require_same(case, by_formula(case), actual, statement)


@contract("xattention.scores.antidiagonal")
@operations(SCORES)
@given(data=st.data(), stride=st.integers(1, 8))
@settings(max_examples=15)
def test_a_query_token_meets_one_key_token_of_each_tile(
    implementation_or_oracle: Runner, data: st.DataObject, stride: int
) -> None:
    """All queries are 0 but one, and the keys number themselves: entries tell whom it met."""
    q_len, k_len = (stride * data.draw(st.integers(1, 5)) for _ in range(2))
    token = data.draw(st.integers(0, q_len - 1), label="token")
    case = _case(
        _states([[float(i == token)] for i in range(q_len)], "float32"),
        _states([[float(j)] for j in range(k_len)], "float32"),
        stride,
    )
    (scores,) = implementation_or_oracle.call(case)
    met = torch.zeros_like(scores)
    met[0, 0, token // stride] = torch.arange(stride - 1 - token % stride, k_len, stride).float()
    statement = f"query token {token} meets other key tokens"
    implementation_or_oracle.require_same(case, (met,), (scores,), statement)


@contract("xattention.scores.head-dim")
@operations(SCORES)
@pytest.mark.parametrize("head_dim", [1, 3, 7, 20, 33, 65, 80, 96, 127, 130, 200])
@given(data=st.data())
@settings(max_examples=2)
def test_any_number_of_dimensions(
    implementation_or_oracle: Runner, head_dim: int, data: st.DataObject
) -> None:
    case = data.draw(whole_cases(head_dim=st.just(head_dim)))
    actual = implementation_or_oracle.call(case)
    statement = "head_dim makes a difference"
    implementation_or_oracle.require_same(case, by_formula(case), actual, statement)


# --- causal scores -------------------------------------------------------------------------------


@contract("xattention.scores.causal-past")
@operations(SCORES)
@given(case=score_cases(causal=True, columns=wide))
@settings(max_examples=10)
def test_the_past_is_the_same_with_and_without_a_causal_mask(
    implementation_or_oracle: Runner, case: Case
) -> None:
    """Two honest results are each within the bound of one value."""
    runner = implementation_or_oracle
    complete = case.changed(is_causal=False)
    (whole,), (scores,) = runner.call(complete), runner.call(case)
    # The future is the business of another test.
    masked = scores.where(~future(case), whole)
    (bound,) = complete.bounds(runner.implementation.dot)
    assert bound is not None
    statement = "a score that is visible depends on is_causal"
    runner.require_close(case, (whole,), (masked,), (2 * bound,), statement)


@contract("xattention.scores.causal-written")
@operations(SCORES)
@given(case=score_cases(causal=True, columns=wide))
@settings(max_examples=10)
def test_the_future_is_written_and_finite(implementation_or_oracle: Runner, case: Case) -> None:
    """That it is written shows in that it is the same over two poisons."""
    (scores,) = implementation_or_oracle.call(case)
    finite = bool(scores[..., future(case)].isfinite().all())
    statement = "a score of the future is not finite"
    implementation_or_oracle.require(case, finite, statement, (scores,))


# --- types ---------------------------------------------------------------------------------------

every_dtype = pytest.mark.parametrize("dtype", DTYPES)

# By numpy, in the interpreter.
overflows = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


@contract("xattention.scores.out-dtype")
@operations(SCORES)
@every_dtype
@pytest.mark.parametrize(
    ("out_dtype", "score"), [("float32", 257.0625), ("float16", 257.0), ("bfloat16", 258.0)]
)
def test_a_score_is_rounded_once_to_the_type_asked_for(
    implementation_or_oracle: Runner, dtype: FloatType, out_dtype: FloatType, score: float
) -> None:
    """257.0625 = 256 + 1 + 1 / 16. In bf16, 257 lies halfway between 256 and 258."""
    case = _case(_states([[256.0, 1.0, 0.0625, 0.0]], dtype), _states([[1.0] * 4], dtype))
    case = case.changed(out_dtype=out_dtype)
    expected = to_torch(_states([[score]], out_dtype))
    actual = implementation_or_oracle.call(case)
    implementation_or_oracle.require_same(case, (expected,), actual, "not rounded once")


@contract("xattention.scores.out-dtype")
@operations(SCORES)
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
@overflows
def test_a_score_past_the_range_of_fp16_survives_in_a_wider_type(
    implementation_or_oracle: Runner, out_dtype: FloatType
) -> None:
    case = _case(_states([[256.0], [-512.0]], "float16"), _states([[256.0], [512.0]], "float16"))
    case = case.changed(out_dtype=out_dtype)
    expected = to_torch(_states([[65536.0, 131072.0], [-131072.0, -262144.0]], out_dtype))
    actual = implementation_or_oracle.call(case)
    statement = "the score went through the type of the queries"
    implementation_or_oracle.require_same(case, (expected,), actual, statement)


BF16_MOST = (2 - 2.0**-7) * 2.0**127

# Factors of a score: what they come to is exact before it is rounded.
EDGES: list[tuple[FloatType, list[float], list[float], float]] = [
    ("float16", [4094.0, 15.0], [16.0, 1.0], 65504.0),  # 65519
    ("float16", [4094.0, 16.0], [16.0, 1.0], INF),  # 65520
    ("float16", [256.0], [256.0], INF),
    ("float16", [256.0, -256.0, 1.0, 0.0], [256.0] * 4, 256.0),  # by way of 65536
    ("bfloat16", [BF16_MOST * 2.0**-27, 2.0**100], [2.0**27, 2.0**18], BF16_MOST),  # + 1/4 step
    ("bfloat16", [BF16_MOST * 2.0**-27, 2.0**100], [2.0**27, 2.0**19], INF),  # + 1/2 step
    ("float32", [2.0**64], [2.0**63], 2.0**127),
    ("float32", [2.0**64], [2.0**64], INF),
]


@contract("xattention.scores.overflow")
@operations(SCORES)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "query", "key", "score"), EDGES)
@overflows
def test_past_the_range_of_its_type_a_score_is_infinite(
    implementation_or_oracle: Runner,
    dtype: FloatType,
    query: list[float],
    key: list[float],
    score: float,
    sign: int,
) -> None:
    case = _case(_states([[sign * x for x in query]], dtype), _states([key], dtype))
    expected = to_torch(_states([[sign * score]], dtype))
    actual = implementation_or_oracle.call(case)
    statement = "not rounded as IEEE rounds at the end of the range"
    implementation_or_oracle.require_same(case, (expected,), actual, statement)


# --- what is skipped -----------------------------------------------------------------------------


KEYS = 160  # more than a tile past the last query of the cases below


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Case, int, int]:
    """Causal scores, the size of a block, and the key at which to split them, visible to all."""
    block = draw(st.sampled_from([8, 4, 16]), label="block")
    dtype, heads = draw(dtypes), (draw(few), draw(few))
    rows, start = (block * draw(st.integers(1, 2)) for _ in range(2))
    split = draw(st.integers(1, start // block), label="split / block") * block
    queries, keys = (
        draw(tensors(dtype, (*heads, length, 2), whole_numbers)) for length in (rows, KEYS)
    )
    return _case(queries, keys, 1, start, causal=True), block, split


def softmax_of(
    runner: Runner, scores: torch.Tensor, start: int, block: int, split: int
) -> Iterator[tuple[Case, Results]]:
    """The three stages in two chunks of keys, and the one pass: each call and its results."""
    sizes: dict[str, Value] = {
        "reshaped_block_size": block,
        "segment_size": block,
        "scale": real(0.5),
        "chunk_start": start,
        "is_causal": True,
    }
    end = start + scores.shape[2]
    chunks: list[dict[str, Value]] = [
        {"attn_weights_slice": to_golden(part), "kv_offset": offset, **sizes}
        for offset, part in ((0, scores[..., :split]), (split, scores[..., split:]))
    ]

    def called(case: Case) -> tuple[Case, Results]:
        return case, runner.call(case)

    stats = [called(Case(STATS, chunk)) for chunk in chunks]
    yield from stats
    m_chunks, l_chunks = zip(*(map(to_golden, results) for _, results in stats), strict=True)
    merged = called(Case(MERGE, {"m_chunks": m_chunks, "l_chunks": l_chunks}))
    yield merged
    m, total = map(to_golden, merged[1])
    for chunk in chunks:
        given: dict[str, Value] = {"m_global": m, "l_global": total, "real_q_len": end}
        yield called(Case(NORMALISE, {**chunk, **given}))
    whole = {**sizes, "chunk_end": end, "real_q_len": end}
    yield called(Case(ONE_PASS, {**whole, "attn_weights_slice": to_golden(scores)}))


@contract("xattention.composition.skipped-tiles")
@operations(SCORES, STATS, MERGE, NORMALISE, ONE_PASS)
@given(pipeline=pipelines())
@settings(max_examples=5)
def test_causal_scores_give_causal_consumers_what_complete_ones_give(
    implementation: Runner, pipeline: tuple[Case, int, int]
) -> None:
    """To the bit: the visible scores are whole numbers, and what is masked reaches no result."""
    case, block, split = pipeline
    start = case.number("chunk_start")
    causal, complete = (
        softmax_of(implementation, scores, start, block, split)
        for called in (case, case.changed(is_causal=False))
        for scores in implementation.call(called)
    )
    for (_, expected), (stage, actual) in zip(complete, causal, strict=True):
        statement = f"{stage.operation} is fed what a causal early exit left"
        implementation.require_same(stage, expected, actual, statement)


@contract("xattention.composition.skipped-tiles")
@operations(SCORES)
def test_an_implementation_that_skips_says_so(implementation: Runner) -> None:
    """Whether it skips shows where scores of the future are not what they are without a mask."""
    queries, keys = ([[float(i % 3 + 1)] for i in range(n)] for n in (2, 300))
    case = _case(_states(queries, "float32"), _states(keys, "float32"), causal=True)
    (complete,) = implementation.call(case.changed(is_causal=False))
    (scores,) = implementation.call(case)
    skipped = bool((scores != complete)[..., future(case)].any())
    docstring = implementation.implementation.operations[SCORES].__doc__ or ""
    implementation.require(
        case,
        not skipped or re.search(r"\bcausal\b", docstring) is not None,
        "scores of the future are no logits, and the docstring does not say so: "
        "say that with is_causal they are for causal consumers only",
        (scores,),
    )


@contract("xattention.composition.skipped-tiles")
@operations(ESTIMATE)
@pytest.mark.parametrize("causal", [True, False])
def test_an_estimate_skips_only_what_its_softmax_does_not_see(
    implementation: Runner, causal: bool
) -> None:
    """So many positions that a tile of scores lies in the future of a tile of queries."""
    states = torch.tensor([(i * 37 % 11 - 5) / 4 for i in range(136)]).reshape(1, 1, 136, 1)
    inputs: dict[str, Value] = {
        "query_states": to_golden(states),
        "key_states": to_golden(states.flip(2)),
        "block_size": 8,
        "stride": 1,
        "chunk_size": 136,
        "causal": causal,
    }
    implementation.judge(Case(ESTIMATE, inputs))
