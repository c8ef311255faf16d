"""Each way an implementation can be wrong in a call, and what the runner says of it."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from golden.model import Tensor as Values
from kernels.catalog import Implementation
from kernels.witness import torch_reference, triton_fused
from suites.cases import APPLY, SERVE, Case
from suites.explain import explain
from suites.runner import Runner
from suites.verdicts import Nonconformance


def runner(operation: str, function: Callable[..., object], **kernels: str) -> Runner:
    return Runner(Implementation("broken", {operation: function}, kernels), torch.device("cpu"))


def merge_case(**changes: Values | int) -> Case:
    inputs: dict[str, Values | int] = {
        "learned_indices": Values("int32", (2, 4), (0, 5, 9, -1, 0, 5, 9, -1)),
        "context_lens": Values("int32", (2,), (16, 10)),
        "learned_keep": 2,
        "num_segments": 4,
        "max_replacements": 2,
    }
    return Case(APPLY, inputs | changes)


def serve_case(segments: int = 2) -> Case:
    return Case(
        SERVE,
        {
            "topk_indices": Values("int32", (2, 3), (0, 5, -1, 1, 5, -1), layout="padded"),
            "context_lens": Values("int64", (2,), (16, 16), layout="broadcast"),
            "num_segments": segments,
        },
    )


def forgets_a_slot(learned: Tensor, *rest: object) -> Tensor:
    merged = torch.empty_like(learned)
    merged[:, :3] = learned[:, :3]
    return merged


def changes_its_input(learned: Tensor, *rest: object) -> Tensor:
    learned[0, 0] += 1
    return learned.clone()


def raises(learned: Tensor, *rest: object) -> Tensor:
    raise RuntimeError("no\nkernel image")


def leaves(learned: Tensor, *rest: object) -> Tensor:
    raise SystemExit(0)


def refuses(learned: Tensor, *rest: object) -> Tensor:
    raise ValueError("topk must be a power of two")


MERGES: dict[str, tuple[Callable[..., object], str, str]] = {
    "forgets a slot": (forgets_a_slot, "failed", "depends on memory that the call did not write"),
    "changes its input": (changes_its_input, "failed", "changed its input learned_indices"),
    "raises": (raises, "crashed", r"raised RuntimeError: no kernel image \(.*test_runner.py:\d+\)"),
    "leaves": (leaves, "crashed", "raised SystemExit: 0"),
    "refuses": (refuses, "failed", "a legal call was refused: ValueError: topk must be a power"),
    "returns nothing": (lambda *_: None, "failed", "the call returned NoneType, no tensor"),
    "returns a list": (lambda *_: [[0]], "failed", "the call returned list, no tensor"),
    "another device": (
        lambda *a: torch_reference.apply_topology_witnesses(*a).to("meta"),
        "failed",
        "the result is on meta, not cpu",
    ),
    "another type": (
        lambda *a: torch_reference.apply_topology_witnesses(*a).long(),
        "failed",
        "the result is torch.int64, not torch.int32",
    ),
    "another shape": (
        lambda *a: torch_reference.apply_topology_witnesses(*a)[:, :-1],
        "failed",
        re.escape("the result has shape [2, 3], not [2, 4]"),
    ),
    "another value": (
        lambda learned, *_: learned.clone(),
        "failed",
        "2 of 8 elements differ, in 2 of 2 rows",
    ),
}


@pytest.mark.parametrize("fault", MERGES)
def test_a_wrong_merge(fault: str) -> None:
    function, status, message = MERGES[fault]
    broken = runner(APPLY, function)
    with pytest.raises(Nonconformance, match=message) as failure:
        broken.judge(merge_case())
    assert failure.value.status == status


@pytest.mark.parametrize("returned", [None, "1", {}])
def test_a_measure_that_returns_no_number(returned: object) -> None:
    case = Case("segment_of", {"token": 5, "context_len": 16, "num_segments": 4})
    with pytest.raises(Nonconformance, match=r"the call returned .*, which is no result"):
        runner("segment_of", lambda *_: returned).judge(case)


def writes(offset: int) -> Callable[..., None]:
    """A serving entry that also stores beside its view."""

    def serve(buffer: Tensor, lengths: Tensor, segments: int) -> None:
        torch_reference.scatter_topology_witnesses_(buffer, lengths, segments)
        whole = buffer.new_empty(0).set_(buffer.untyped_storage())
        whole[buffer.storage_offset() + offset] += 1

    return serve


@pytest.mark.parametrize("offset", [-1, 3, 9, 40])
def test_a_store_outside_the_view(offset: int) -> None:
    """Before it, in the gap between its rows, right past its end, and further on."""
    with pytest.raises(Nonconformance, match="wrote outside topk_indices"):
        runner(SERVE, writes(offset)).call(serve_case())


def test_a_correct_call_passes_and_is_counted() -> None:
    honest = runner(SERVE, torch_reference.scatter_topology_witnesses_)
    honest.judge(serve_case())
    honest.judge(serve_case(segments=0))
    assert honest.cases == 2


def test_the_same_memory_holds_other_values_whatever_its_strides() -> None:
    known: dict[int, Tensor] = {}

    def remembers(indices: Tensor, lengths: Tensor, segments: int) -> None:
        first = known.setdefault(lengths.data_ptr(), lengths.clone())
        torch_reference.scatter_topology_witnesses_(indices, first, segments)

    case = serve_case()
    other = case.changed(context_lens=Values("int64", (2,), (3, 3), layout="broadcast"))
    runner(SERVE, torch_reference.scatter_topology_witnesses_).judge_again(case, other)
    with pytest.raises(Nonconformance, match="over memory used before"):
        runner(SERVE, remembers).judge_again(case, other)


def test_an_operation_that_is_missing_is_unsupported() -> None:
    partial = runner(SERVE, torch_reference.scatter_topology_witnesses_)
    with pytest.raises(BaseException, match="broken has no apply_topology_witnesses"):
        partial.judge(merge_case())
    assert partial.unsupported


# --- refusals ------------------------------------------------------------------------------------


def writes_then_refuses(buffer: Tensor, *rest: object) -> None:
    buffer[0, 0] = 7
    raise ValueError("too late")


def test_a_refusal_that_comes_too_late() -> None:
    with pytest.raises(Nonconformance, match="the refused call wrote to topk_indices"):
        runner(SERVE, writes_then_refuses).refuse(serve_case(segments=65))


def test_a_refusal_that_does_not_come() -> None:
    with pytest.raises(Nonconformance, match="must be refused with ValueError; it was accepted"):
        runner(APPLY, lambda learned, *_: learned.clone()).refuse(merge_case(num_segments=65))


def test_a_refusal_of_another_kind() -> None:
    with pytest.raises(Nonconformance, match="must be refused with ValueError; it raised Runtime"):
        runner(APPLY, raises).refuse(merge_case(num_segments=65))


# --- which kernel ran ----------------------------------------------------------------------------


def test_a_silent_fall_back_is_a_failure() -> None:
    fallen = runner(
        APPLY, torch_reference.apply_topology_witnesses, **{APPLY: "witness_merge_kernel"}
    )
    with pytest.raises(Nonconformance, match="no kernel ran, not witness_merge_kernel"):
        fallen.judge(merge_case())


def test_another_kernel_is_a_failure() -> None:
    other = runner(APPLY, triton_fused.apply_topology_witnesses, **{APPLY: "some_kernel"})
    with pytest.raises(Nonconformance, match="witness_merge_kernel ran, not some_kernel"):
        other.judge(merge_case())


def test_no_kernel_need_run_where_there_is_nothing_to_do() -> None:
    idle = runner(APPLY, torch_reference.apply_topology_witnesses, **{APPLY: "some_kernel"})
    idle.judge(merge_case(max_replacements=0))
    assert idle.cases == 1


# --- how a failure reads -------------------------------------------------------------------------


def test_a_failure_shows_the_row_and_its_segments() -> None:
    with pytest.raises(Nonconformance) as failure:
        runner(APPLY, lambda learned, *_: learned.clone()).judge(merge_case())
    shown = explain(failure.value, "broken")
    assert shown.splitlines()[0] == (
        "apply_topology_witnesses of broken: 2 of 8 elements differ, in 2 of 2 rows"
    )
    assert "row 0 of 2   L 16   S 4   S_eff 4   topk 4   keep 2   B 2" in shown
    assert re.search(r"^ +2 +9 +2 +12 +9 +differs reserved$", shown, re.MULTILINE)
    assert re.search(r"^ +3 +\[12, 16\) +12$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 100


def test_a_long_row_is_cut_to_what_differs() -> None:
    entries = tuple(range(3000))
    wide = merge_case(
        learned_indices=Values("int32", (1, 3000), entries),
        context_lens=Values("int32", (1,), (64000,)),
        learned_keep=2990,
    )
    with pytest.raises(Nonconformance) as failure:
        runner(APPLY, lambda learned, *_: learned.clone()).judge(wide)
    shown = explain(failure.value, "broken")
    assert re.search(r"^ +2990 +2990 +0 +16000 +2990 +differs reserved$", shown, re.MULTILINE)
    assert "4 of 3000 slots" in shown
    assert len(shown.splitlines()) < 40


def test_a_refused_case_shows_its_inputs() -> None:
    flat = merge_case(learned_indices=Values("int32", (8,), (0, 5, 9, -1, 0, 5, 9, -1)))
    with pytest.raises(Nonconformance) as failure:
        runner(APPLY, lambda learned, *_: learned.clone()).refuse(flat)
    shown = explain(failure.value, "broken")
    assert re.search(r"learned_indices +int32 \[8\] \[0, 5, 9, -1, 0, 5, 9, -1\]", shown)
