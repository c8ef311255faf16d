"""CUDA C++ among the implementations under test: how its launches are judged, or why not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from golden.model import Tensor as Values
from kernels import catalog
from kernels.catalog import Implementation
from kernels.cuda import ToolchainMissing, host
from kernels.witness import cuda_fused
from suites.cases import SERVE, Case
from suites.runner import Runner
from suites.selftest.cuda.programs import Build, zeros
from suites.selftest.whole_runs import ROOT, run_pytest
from suites.verdicts import Nonconformance

DIFFERENTIAL = str(ROOT / "suites" / "witness" / "test_differential.py")


def serve_case(segments: int = 2) -> Case:
    return Case(
        SERVE,
        {
            "topk_indices": Values("int32", (2, 3), (0, 5, -1, 1, 5, -1)),
            "context_lens": Values("int32", (2,), (16, 16)),
            "num_segments": segments,
        },
    )


def runner(implementation: Implementation) -> Runner:
    return Runner(implementation, torch.device("cpu"))


def test_undefined_behaviour_is_a_failure(build: Build) -> None:
    text = "__global__ void serve(int* out) {\n    if (threadIdx.x < 5) __syncthreads();\n}"
    kernel = build(text, "serves", serve="int*")["serve"]

    def serve(buffer: Tensor, lengths: Tensor, segments: int) -> None:
        kernel.launch(1, 32, buffer)

    message = r"serves\.cu, serve, block \(0, 0, 0\): a barrier is not reached .* in line 2"
    with pytest.raises(Nonconformance, match=message) as failure:
        runner(Implementation("broken", {SERVE: serve})).call(serve_case())
    assert failure.value.status == "failed"


ORDER = """
__global__ void order(int* threads, int* count) { threads[atomicAdd(count, 1)] = threadIdx.x; }
"""


def test_each_case_has_an_order_of_its_own(build: Build) -> None:
    """Both calls of a case have the same, so that only memory is another."""
    kernel, seen = build(ORDER, "order", order="int*, int*")["order"], []

    def serve(buffer: Tensor, lengths: Tensor, segments: int) -> None:
        threads = zeros(96)
        kernel.launch(1, 96, threads, zeros(1))
        seen.append(threads.tolist())
        if segments > 64:
            raise ValueError

    looking = runner(Implementation("looking", {SERVE: serve}))
    for segments in (1, 2, 3):
        looking.call(serve_case(segments))
    looking.refuse(serve_case(65))
    first, second, third = seen[:6:2]
    assert seen[1:6:2] == [first, second, third]
    orders = [list(range(96)), first, second, third, seen[6]]
    assert all(orders.count(order) == 1 for order in orders)


def test_the_kernel_that_ran_is_known_without_its_template_arguments() -> None:
    runner(catalog.load("cuda")).judge(serve_case())
    other = Implementation(
        "other", {SERVE: cuda_fused.scatter_topology_witnesses_}, {SERVE: "witness_merge"}
    )
    with pytest.raises(Nonconformance, match="witness_serve ran, not witness_merge"):
        runner(other).judge(serve_case())


# --- without a compiler --------------------------------------------------------------------------


def test_what_a_machine_cannot_build_is_not_run(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the catalog does not see the source, in another module than the operations."""

    def none() -> tuple[str, str]:
        raise ToolchainMissing("no compiler here")

    monkeypatch.setattr(host, "compiler", none)
    kernel = build("__global__ void serve(int* out) {}", "unbuilt", serve="int*")["serve"]

    def serve(buffer: Tensor, lengths: Tensor, segments: int) -> None:
        kernel.launch(1, 32, buffer)

    hidden = runner(Implementation("hidden", {SERVE: serve}))
    for ask in (hidden.call, hidden.refuse):
        with pytest.raises(pytest.skip.Exception, match="no compiler here"):
            ask(serve_case())


def test_the_sources_of_a_module_are_known() -> None:
    assert [each.source.name for each in catalog.load("cuda").sources] == [
        "cuda_fused.cu",
        "cuda_three_stage.cu",
    ]
    assert catalog.load("torch").sources == ()


@pytest.mark.parametrize(("others", "code"), [([], 5), (["--impl", "torch"], 0)])
def test_a_machine_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str], code: int
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = run_pytest(tmp_path, DIFFERENTIAL, "--impl", "cuda", *others, "-k", "indices and many")
    assert run.returncode == code, run.stdout + run.stderr
    assert " 1 skipped" in run.stdout
    matrix, _, said = run.stdout.partition("\nnot-run: cuda: ")
    assert " not-run 0" in matrix
    assert said.startswith("CUDA C++ on the host needs g++ 11 or newer, and there is none")
