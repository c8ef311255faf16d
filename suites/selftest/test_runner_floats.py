"""What the runner knows besides: several results, bounds, declarations, tolerated refusals."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from golden.model import Layout
from kernels.catalog import Dot, Implementation
from kernels.xattention import torch_reference
from suites.cases import MERGE, NORMALISE, SCORES, STATS, Case, real, to_golden
from suites.explain import explain
from suites.runner import Runner
from suites.verdicts import Nonconformance

Function = Callable[..., Any]


def runner(*functions: Function, base: float = math.e, dot: Dot = "ieee") -> Runner:
    """Of an implementation that has these operations, called as their functions are."""
    operations = {function.__name__: function for function in functions}
    return Runner(Implementation("broken", operations, {}, base, dot), torch.device("cpu"))


def named(operation: str, function: Function) -> Function:
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = operation
    return call


SCORES_OF_TWO_ROWS = torch.tensor([[0.5, -1.0, 2.0, 0.25], [3.0, 0.0, -2.0, 1.0]]).view(1, 1, 2, 4)


def stats_case(layout: Layout = "contiguous", chunk_start: int = 4, kv_offset: int = 2) -> Case:
    return Case(
        STATS,
        {
            "attn_weights_slice": to_golden(SCORES_OF_TWO_ROWS, layout),
            "reshaped_block_size": 2,
            "segment_size": 2,
            "scale": real(0.5),
            "chunk_start": chunk_start,
            "kv_offset": kv_offset,
            "is_causal": True,
        },
    )


def merge_case() -> Case:
    m = [to_golden(torch.tensor([[[x, 1.0]]])) for x in (2.0, -3.0)]
    total = [to_golden(torch.tensor([[[x, 2.0]]])) for x in (1.0, 1.5)]
    return Case(MERGE, {"m_chunks": tuple(m), "l_chunks": tuple(total)})


def normalise_case() -> Case:
    return Case(
        NORMALISE,
        {
            "attn_weights_slice": to_golden(SCORES_OF_TWO_ROWS),
            "m_global": to_golden(torch.tensor([[[1.0, 1.5]]])),
            "l_global": to_golden(torch.tensor([[[2.0, 2.5]]])),
            "reshaped_block_size": 2,
            "segment_size": 2,
            "chunk_start": 4,
            "real_q_len": 6,
            "scale": real(0.5),
        },
    )


def score_case() -> Case:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 4, 8, generator=generator) for _ in range(2))
    inputs = {"query_states": to_golden(query), "key_states": to_golden(key)}
    numbers = {"stride": 2, "chunk_start": 0, "chunk_end": 2, "is_causal": False}
    return Case(SCORES, {**inputs, **numbers})


# --- several results -----------------------------------------------------------------------------

honest = torch_reference.softmax_compute_partial_stats

RETURNED: dict[str, tuple[Function, str]] = {
    "one of two": (lambda *a: honest(*a)[0], "the call returned Tensor, which is no result"),
    "a tuple of one": (lambda *a: honest(*a)[:1], "the call returned tuple, which is no result"),
    "three": (lambda *a: (*honest(*a), None), "the call returned tuple, no tensor"),
    "three tensors": (lambda *a: (*honest(*a), honest(*a)[0]), "tuple, which is no result"),
    "nothing": (lambda *a: None, "the call returned NoneType, no tensor"),
    "numbers": (lambda *a: (0.5, 1.5), "the call returned tuple, no tensor"),
    "another shape of the second": (
        lambda *a: (honest(*a)[0], honest(*a)[1].unsqueeze(-1)),
        "the result l has shape [1, 1, 2, 1], not [1, 1, 2]",
    ),
    "another type of the first": (
        lambda *a: (honest(*a)[0].double(), honest(*a)[1]),
        "the result m is torch.float64, not torch.float32",
    ),
    "in the other order": (lambda *a: honest(*a)[::-1], "2 of 2 elements of m differ"),
    "one wrong": (lambda *a: (honest(*a)[0], 2 * honest(*a)[1]), "2 of 2 elements of l differ"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_statistics_that_are_none(what: str) -> None:
    function, message = RETURNED[what]
    with pytest.raises(Nonconformance, match=re.escape(message)) as failure:
        runner(named(STATS, function)).judge(stats_case())
    assert failure.value.status == "failed"


@pytest.mark.parametrize("kind", [tuple, list])
def test_two_results_come_in_any_sequence(kind: Function) -> None:
    sound = runner(named(STATS, lambda *a: kind(honest(*a))))
    sound.judge(stats_case())
    assert sound.cases == 1


def test_one_result_comes_as_a_tensor_alone() -> None:
    scores = torch_reference.flat_group_gemm_fuse_reshape
    with pytest.raises(Nonconformance, match="the call returned tuple, no tensor"):
        runner(named(SCORES, lambda *a: (scores(*a),))).judge(score_case())


# --- bounds --------------------------------------------------------------------------------------


def test_the_largest_share_of_the_bound_is_kept() -> None:
    sound = runner(honest)
    sound.judge(stats_case())
    assert sound.error_ratio is not None
    assert sound.error_ratio <= 1
    off = runner(named(STATS, lambda *a: (honest(*a)[0], honest(*a)[1] * (1 + 2**-22))))
    off.judge(stats_case())
    assert off.error_ratio is not None
    assert sound.error_ratio < off.error_ratio <= 1


def keeps_ten_bits(query: Tensor, key: Tensor, *rest: Any) -> Tensor:
    """As tensor cores take fp32 factors, by cutting."""
    query, key = (
        x.view(torch.int32).bitwise_and(-(2**13)).view(torch.float32) for x in (query, key)
    )
    return torch_reference.flat_group_gemm_fuse_reshape(query, key, *rest)


def test_a_product_of_ten_bits_has_to_be_declared() -> None:
    function = named(SCORES, keeps_ten_bits)
    with pytest.raises(Nonconformance, match="4 of 4 elements differ"):
        runner(function).judge(score_case())
    declared = runner(function, dot="tf32")
    declared.judge(score_case())
    assert declared.error_ratio is not None
    assert 0.01 < declared.error_ratio <= 1


# --- base 2 (R-X2) -------------------------------------------------------------------------------

LN2 = math.log(2)


def stats_in_base_2(scores: Tensor, block: int, segment: int, scale: float, *rest: Any) -> Any:
    """``scale`` has log2(e) in it, and m comes out in units of ln 2."""
    m, total = honest(scores, block, segment, scale * LN2, *rest)
    return m / LN2, total


def merge_in_base_2(m_chunks: list[Tensor], l_chunks: list[Tensor]) -> Any:
    m = torch.stack(m_chunks).amax(0)
    total = sum(x * torch.exp2(m_c - m) for m_c, x in zip(m_chunks, l_chunks, strict=True))
    return m, total


def sums_in_base_2(
    scores: Tensor, m: Tensor, total: Tensor, block: int, segment: int, *rest: Any
) -> Tensor:
    start, real, scale, *more = rest
    return torch_reference.softmax_normalize_and_block_sum(
        scores, m * LN2, total, block, segment, start, real, scale * LN2, *more
    )


BASE_2: dict[str, tuple[Function, Case]] = {
    STATS: (stats_in_base_2, stats_case()),
    MERGE: (merge_in_base_2, merge_case()),
    NORMALISE: (sums_in_base_2, normalise_case()),
}


@pytest.mark.parametrize("operation", BASE_2)
def test_base_2_is_converted_where_it_is_declared(operation: str) -> None:
    function, case = BASE_2[operation]
    runner(named(operation, function), base=2).judge(case)
    with pytest.raises(Nonconformance, match="differ"):
        runner(named(operation, function)).judge(case)


def test_what_base_2_is_given_and_what_becomes_of_it() -> None:
    """m and scale in units of ln 2, l as it is; m back in natural units."""
    given: dict[str, Any] = {}

    def normalise(scores: Tensor, m: Tensor, total: Tensor, *rest: Any) -> Tensor:
        given.update(m=m.clone(), l=total.clone(), scale=rest[4])
        return scores.new_zeros(1, 1, 1, 2)

    runner(named(NORMALISE, normalise), base=2).call(normalise_case())
    torch.testing.assert_close(given["m"], torch.tensor([[[1.0, 1.5]]]) / LN2, rtol=2**-24, atol=0)
    assert given["l"].tolist() == [[[2.0, 2.5]]]
    assert given["scale"] == 0.5 / LN2

    returned = torch.tensor([[[2.0, -math.inf]]]), torch.tensor([[[3.0, 0.0]]])
    copies = named(STATS, lambda *a: tuple(each.clone() for each in returned))
    m, total = runner(copies, base=2).call(stats_case())
    assert m.tolist() == [[[pytest.approx(2 * LN2, rel=2**-24), -math.inf]]]
    assert total.tolist() == [[[3.0, 0.0]]]

    def merge(m_chunks: list[Tensor], l_chunks: list[Tensor]) -> tuple[Tensor, Tensor]:
        given.update(m=m_chunks[1].clone(), l=l_chunks[1].clone())
        return m_chunks[0].clone(), l_chunks[0].clone()

    m, _ = runner(named(MERGE, merge), base=2).call(merge_case())
    assert given["m"].tolist() == [[[pytest.approx(x / LN2, rel=2**-24) for x in (-3, 1)]]]
    assert given["l"].tolist() == [[[1.5, 2.0]]]
    assert m.tolist() == [[[pytest.approx(x, rel=2**-23) for x in (2, 1)]]]


# --- refusals ------------------------------------------------------------------------------------


def refuses(message: str, writes: bool = False) -> Function:
    def refuse(scores: Tensor, *rest: Any) -> None:
        if writes:
            scores[0, 0, 0, 0] = 7
        raise ValueError(message)

    return named(STATS, refuse)


TOLERATED = {
    "strides": (stats_case("transposed"), "attn_weights_slice must be contiguous"),
    "gaps": (stats_case("padded"), "attn_weights_slice must be contiguous"),
    "wide heads": (stats_case("wide"), "attn_weights_slice spans more than 2 GiB"),
    "the queries' offset": (stats_case(chunk_start=5), "chunk_start must be a multiple of 2"),
    "the keys' offset": (stats_case(kv_offset=1), "kv_offset must be a multiple of 2"),
}


@pytest.mark.parametrize("what", TOLERATED)
def test_what_may_be_refused_by_name_is_unsupported(what: str) -> None:
    case, message = TOLERATED[what]
    limited = runner(refuses(message))
    with pytest.raises(pytest.skip.Exception, match=f"broken refuses {STATS}: {message}"):
        limited.judge(case)
    assert limited.unsupported
    assert limited.cases == 0


@pytest.mark.parametrize("what", TOLERATED)
def test_a_tolerated_refusal_must_not_write(what: str) -> None:
    case, message = TOLERATED[what]
    limited = runner(refuses(message, writes=True))
    assert failure_of(limited, case) == "the refused call wrote to attn_weights_slice"
    assert not limited.unsupported


def failure_of(broken: Runner, case: Case) -> str:
    """What is said of a case that fails; one that is left as unsupported does not."""
    with pytest.raises((Nonconformance, pytest.skip.Exception)) as left:
        broken.judge(case)
    assert isinstance(left.value, Nonconformance), left.value
    return left.value.statement


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (stats_case(), "attn_weights_slice must have a power of two of columns"),
        (stats_case(), "chunk_start must be 0"),
        (stats_case("transposed"), "not contiguous"),
        (stats_case("transposed"), "chunk_start must be 0"),
        (stats_case("offset"), "attn_weights_slice must be aligned to 16 bytes"),
        (stats_case(chunk_start=5), "kv_offset must be a multiple of 2"),
    ],
)
def test_no_other_refusal_of_a_legal_call_is_tolerated(case: Case, message: str) -> None:
    said = failure_of(runner(refuses(message)), case)
    assert said.startswith(f"a legal call was refused: ValueError: {message} (")


def test_a_refusal_has_to_name_the_argument() -> None:
    refused = runner(refuses("scale must be finite, got nan"))
    refused.refuse(stats_case())
    refused.refuse(stats_case(), "scale")
    refused.refuse(stats_case(), ("segment_size", "scale"))
    with pytest.raises(Nonconformance) as failure:
        refused.refuse(stats_case(), "segment_size")
    assert str(failure.value).startswith(
        "the refusal must name segment_size; it says ValueError: scale must be finite, got nan ("
    )
    assert "\n" not in str(failure.value)
    with pytest.raises(Nonconformance, match="must name segment_size or chunk_start; it says"):
        refused.refuse(stats_case(), ("segment_size", "chunk_start"))


def test_a_name_is_a_whole_word() -> None:
    refused = runner(refuses("reshaped_block_size must be positive"))
    with pytest.raises(Nonconformance, match="must name block_size"):
        refused.refuse(stats_case(), "block_size")


def test_what_has_to_fit_another_may_be_named_instead() -> None:
    assert "key_states" in score_case().at_fault("query_states")
    assert stats_case().at_fault("scale") == ("scale",)


# --- how a failure reads -------------------------------------------------------------------------


def test_a_float_failure_shows_elements_with_their_bounds() -> None:
    def off(*arguments: Any) -> Any:
        m, total = honest(*arguments)
        total[0, 0, 1] *= 1.5
        return m, total

    with pytest.raises(Nonconformance) as failure:
        runner(named(STATS, off)).judge(stats_case("padded"))
    shown = explain(failure.value, "broken")
    lines = shown.splitlines()
    assert lines[0] == "softmax_compute_partial_stats of broken: 1 of 2 elements of l differ"
    assert re.search(r"attn_weights_slice +float32 \[1, 1, 2, 4\] padded \[0.5, -1, ", shown)
    assert re.search(r"expected m +float32 \[1, 1, 2\] \[", shown)
    assert re.search(r"l +expected +actual +\|error\| +bound +\|error\| / bound", shown)
    # Half of l too much, and how many times the bound that is.
    assert re.search(
        r"\[0, 0, 1\] +1\.673\d+ +2\.509\d+ +0\.836\d+ +\d\.\d+e-0[67] +\d+\.\d", shown
    )
    assert "[0, 0, 0]" not in shown
    assert max(map(len, lines)) <= 100


def test_the_worst_elements_are_shown_first_and_not_all() -> None:
    queries = to_golden(torch.arange(40.0).view(1, 1, 40, 1))
    case = Case(SCORES, {**score_case().inputs, "query_states": queries, "key_states": queries})
    case = case.changed(stride=1, chunk_end=40)

    def off(*arguments: Any) -> Tensor:
        result = torch_reference.flat_group_gemm_fuse_reshape(*arguments)
        result[0, 0, 1:4, 1:] += 1
        result[0, 0, 2, 7] = math.nan
        result[0, 0, 2, 8] = math.inf
        return result

    with pytest.raises(Nonconformance) as failure:
        runner(named(SCORES, off)).judge(case)
    shown = explain(failure.value, "broken")
    assert "117 of 1600 elements differ" in shown
    assert "16 of 117 elements that differ" in shown
    rows = re.findall(r"^ *\[0, 0, \d+, \d+\] .*$", shown, re.MULTILINE)
    assert len(rows) == 16
    assert {"nan", "inf"} <= {*rows[0].split(), *rows[1].split()}
    assert max(map(len, shown.splitlines())) <= 100
