"""What an implementation says that it lacks is put to the proof; sizes may be refused by name."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.model import Value
from golden.record import Verdict
from kernels.catalog import CatalogError, Implementation, load
from kernels.worker.protocol import Capability
from kernels.xattention import torch_reference
from suites.capabilities import COVERS, lacking, refusable_sizes
from suites.cases import INDICES, MERGE, SCORES, SELECT, STATS, Case, real, to_golden
from suites.runner import Runner
from suites.selftest.test_plugin import HONEST
from suites.selftest.whole_runs import ROOT, record_of, run_pytest
from suites.selftest.worker.declared import CPU, indices
from suites.verdicts import Nonconformance

Inputs = dict[str, Value]


def statistics(scores: torch.Tensor, layout: Any = "contiguous", **changed: Any) -> Case:
    inputs: Inputs = {
        "attn_weights_slice": to_golden(scores, layout),
        "reshaped_block_size": 4,
        "segment_size": 4,
        "scale": real(0.5),
    }
    return Case(STATS, inputs | changed)


PLAIN = torch.arange(32.0).reshape(1, 1, 4, 8)


def scores(**changed: Value) -> Case:
    tokens = to_golden(torch.ones(1, 1, 4, 8))
    inputs: Inputs = {"query_states": tokens, "key_states": tokens, "stride": 2}
    return Case(SCORES, inputs | {"chunk_start": 0, "chunk_end": 2, "is_causal": False} | changed)


def lengths(dtype: torch.dtype) -> Case:
    return indices(4).changed(context_lens=to_golden(torch.tensor([16, 16], dtype=dtype)))


# A case that needs each capability, and one like it that does not.
PAIRS: Mapping[Capability, tuple[Case, Case]] = {
    "float16": (statistics(PLAIN.half()), statistics(PLAIN.bfloat16())),
    "bfloat16": (scores(out_dtype="bfloat16"), scores(out_dtype="float16")),
    "float32": (statistics(PLAIN), statistics(PLAIN.half())),
    "int64": (lengths(torch.int64), lengths(torch.int32)),
    "strided": (statistics(PLAIN, "transposed"), statistics(PLAIN, "offset")),
    "causal": (statistics(PLAIN, is_causal=True), statistics(PLAIN)),
    "num_segments>64": (indices(65), indices(64)),
}


def implementation(function: Callable[..., Any], operation: str, *lacks: str) -> Runner:
    return Runner(Implementation("limited", {operation: function}, lacks=lacks), CPU)


def refusing(*arguments: Any) -> Any:
    raise ValueError("this kernel does not do that")


def test_every_capability_is_understood() -> None:
    assert PAIRS.keys() == COVERS.keys() == {*get_args(Capability)}


@pytest.mark.parametrize("capability", PAIRS)
def test_a_lack_that_is_refused_is_unsupported(capability: Capability) -> None:
    needs, other = PAIRS[capability]
    runner = implementation(refusing, needs.operation, capability)
    with pytest.raises(pytest.skip.Exception, match="this kernel does not do that"):
        runner.judge(needs)
    assert runner.unsupported
    with pytest.raises(Nonconformance, match="a legal call was refused"):
        runner.judge(other)
    with pytest.raises(Nonconformance, match="a legal call was refused"):
        implementation(refusing, needs.operation).judge(needs)


def reference(case: Case) -> Callable[..., Any]:
    if case.operation == INDICES:
        return load("torch").operations[INDICES]
    function: Callable[..., Any] = getattr(torch_reference, case.operation)
    return function


@pytest.mark.parametrize("capability", PAIRS)
def test_a_lack_that_is_none_is_a_failure(capability: Capability) -> None:
    needs, other = PAIRS[capability]
    runner = implementation(reference(needs), needs.operation, capability)
    with pytest.raises(Nonconformance, match=f"it says it lacks {capability} and has it") as seen:
        runner.judge(needs)
    assert seen.value.status == "failed"
    runner.judge(other)


def test_an_operation_may_be_lacking() -> None:
    case = statistics(PLAIN)
    with pytest.raises(pytest.skip.Exception):
        implementation(refusing, STATS, STATS).judge(case)
    with pytest.raises(Nonconformance, match=f"it says it lacks {STATS} and has it"):
        implementation(reference(case), STATS, STATS).judge(case)
    with pytest.raises(Nonconformance, match="a legal call was refused"):
        implementation(refusing, STATS, SELECT).judge(case)


def test_statistics_are_fp32_whatever_is_lacking() -> None:
    state = to_golden(torch.zeros(1, 1, 4))
    case = Case(MERGE, {"m_chunks": (state,), "l_chunks": (state,)})
    runner = implementation(torch_reference.merge_softmax_stats, MERGE, "float32")
    runner.judge(case)


def test_a_lack_that_is_refused_after_writing_is_a_failure() -> None:
    def writes(scores: torch.Tensor, *rest: Any) -> None:
        scores.zero_()
        refusing()

    with pytest.raises(Nonconformance, match="the refused call wrote to attn_weights_slice"):
        implementation(writes, STATS, "float32").judge(statistics(PLAIN))


def test_a_lack_may_hide_why_a_call_is_illegal() -> None:
    """A refusal that has to name its reason is no test of who refuses the call for another."""
    illegal = statistics(PLAIN, segment_size=0)
    with pytest.raises(pytest.skip.Exception):
        implementation(refusing, STATS, "float32").refuse(illegal, "segment_size")
    with pytest.raises(Nonconformance, match="the refusal must name segment_size"):
        implementation(refusing, STATS).refuse(illegal, "segment_size")


def test_among_generated_cases_those_that_are_lacking_are_left_out() -> None:
    runner = implementation(half, STATS, "float32")

    @hypothesis.settings(database=None, deadline=None)
    @given(st.sampled_from([torch.float32, torch.float16]))
    def judge(dtype: torch.dtype) -> None:
        runner.judge(statistics(PLAIN.to(dtype)))

    judge()
    assert runner.cases > 0
    assert runner.unsupported


def half(scores: torch.Tensor, *rest: Any) -> Any:
    if scores.dtype == torch.float32:
        refusing()
    return torch_reference.softmax_compute_partial_stats(scores, *rest)


# --- sizes ---------------------------------------------------------------------------------------


def sized(function: Callable[..., Any], **multiples: int) -> Runner:
    return Runner(Implementation("sized", {STATS: function}, multiples=multiples), CPU)


def test_a_size_that_is_no_multiple_may_be_refused_by_name() -> None:
    def needs_eight(scores: torch.Tensor, block: int, segment: int, *rest: Any) -> Any:
        if segment % 8:
            raise ValueError("segment_size must be a multiple of 8")
        return torch_reference.softmax_compute_partial_stats(scores, block, segment, *rest)

    runner = sized(needs_eight, segment_size=8)
    with pytest.raises(pytest.skip.Exception, match="segment_size must be a multiple of 8"):
        runner.judge(statistics(PLAIN))
    runner.judge(statistics(PLAIN, segment_size=16))
    for other in ({}, {"segment_size": 4}, {"reshaped_block_size": 8}):
        with pytest.raises(Nonconformance, match="a legal call was refused"):
            sized(needs_eight, **other).judge(statistics(PLAIN))


def test_a_size_that_is_not_refused_is_judged() -> None:
    sized(torch_reference.softmax_compute_partial_stats, segment_size=8).judge(statistics(PLAIN))
    wrong = sized(lambda *_: (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)), segment_size=8)
    with pytest.raises(Nonconformance):
        wrong.judge(statistics(PLAIN))


def test_the_sizes_of_tensors() -> None:
    it = Implementation("sized", {}, multiples={"q_len": 3, "k_len": 8, "head_dim": 16})
    assert refusable_sizes(it, statistics(PLAIN)) == ("q_len", "attn_weights_slice")
    assert refusable_sizes(it, scores()) == (
        *("q_len", "query_states", "k_len", "key_states", "head_dim", "query_states"),
    )
    assert refusable_sizes(it, indices(4)) == ()


# --- of modules ----------------------------------------------------------------------------------


def test_a_module_says_what_it_lacks(tmp_path: Path) -> None:
    """In the matrix it is unsupported where it refuses, and failed where it does not."""
    source = HONEST.replace(
        "def check(learned, context_lens):",
        "def check(learned, context_lens):\n"
        "    if context_lens.dtype == torch.int64:\n"
        "        raise ValueError('no int64')",
    )
    (tmp_path / "lacks_int64.py").write_text(source + "\nLACKS = ['int64']\n", encoding="utf-8")
    (tmp_path / "claims_it.py").write_text(HONEST + "\nLACKS = ['int64']\n", encoding="utf-8")
    (tmp_path / "says_nothing.py").write_text(source, encoding="utf-8")
    names = ("lacks_int64", "claims_it", "says_nothing")
    given = [part for name in names for part in ("--impl", name)]
    tests = str(ROOT / "suites" / "test_golden.py")
    result = run_pytest(tmp_path, *given, "-k", "int64-lengths or edges-are-rounded-up", tests)
    verdicts = [line for line in record_of(tmp_path) if isinstance(line, Verdict)]
    found = {
        name: {each.status for each in verdicts if each.implementation == name} for name in names
    }
    assert "unsupported" in found["lacks_int64"], result.stdout
    assert "failed" not in found["lacks_int64"]
    assert "failed" in found["claims_it"]
    assert "failed" in found["says_nothing"]


def test_a_lack_of_something_else_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_such_lack.py").write_text(HONEST + "\nLACKS = ['luck']\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    message = "--impl no_such_lack: LACKS has 'luck'; it may have operations of the specification, "
    with pytest.raises(CatalogError, match=message):
        load("no_such_lack")


def test_nothing_is_lacking_without_a_word() -> None:
    for needs, _ in PAIRS.values():
        assert lacking(Implementation("plain", {}), needs, {}) == ""
