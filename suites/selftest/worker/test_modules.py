"""Python modules in a worker: what they do to their own process is nobody's business, or is seen.

One worker serves them all; what an operation does depends on how many segments it is asked for.
"""

import ast
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from golden.model import Layout, Value
from kernels import catalog
from kernels.worker import operations, serve
from suites.cases import APPLY, INDICES, SERVE, Case, to_golden
from suites.runner import Runner
from suites.selftest.test_plugin import HONEST
from suites.selftest.whole_runs import ROOT
from suites.selftest.worker.declared import CPU, declare, indices, running
from suites.verdicts import Nonconformance

MODULE = f"""
import gc, os, random, sys
import kernels  # a package of its own, of the same name as one of this project
{HONEST}
honest_indices, honest_apply = topology_witness_indices, apply_topology_witnesses
kept = []
print("what is printed at import is in the log")


def topology_witness_indices(context_lens, learned_indices, num_segments):
    result = honest_indices(context_lens, learned_indices, num_segments)
    if num_segments == 101:
        print("printed in a call", flush=True)
        os.write(1, b"written to stdout")
        assert sys.stdin.read() == ""
    if num_segments == 102:
        random.seed(5)
        torch.manual_seed(5)
    if num_segments == 103:  # keeps the memory of every call, and writes to that of those before
        for tensor in kept:
            tensor.fill_(7)
        kept.extend([context_lens, learned_indices])
    if num_segments == 104:
        return kept[-1]
    if num_segments == 105:
        assert kernels.OWN == "theirs"
        names = ("golden", "oracles", "suites", "serve", "protocol")
        found = [name for name in names if importable(name)]
        if found:
            raise RuntimeError(f"it can import {{found}}")
    if num_segments == 106:
        unwritten = torch.empty_like(result)
        poisoned = unwritten.flatten()[0].item() in (-2**31, 2**31 - 1)
        return unwritten if poisoned else result
    if num_segments == 107:
        return None
    if num_segments == 108:
        return [result, result]
    if num_segments == 109:
        raise RuntimeError("out of\\nluck")
    if num_segments == 110:
        os._exit(4)
    if num_segments == 111:
        sys.exit("enough")
    if num_segments == 112:
        return object()
    if num_segments == 113:
        context_lens[0] += 1
    if num_segments == 114:
        learned_indices.as_strided((1,), (1,), learned_indices.storage_offset() - 1).fill_(0)
    if num_segments == 115:
        learned_indices.fill_(0)
        raise ValueError("num_segments is written to and refused")
    if num_segments == 116:
        return result.to(torch.complex64)
    return result


def importable(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("module")
    (folder / "theirs.py").write_text(MODULE, encoding="utf-8")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "__init__.py").write_text('OWN = "theirs"\n', encoding="utf-8")
    keys = {"name": "theirs", "import": "theirs", "path": ["."]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # as some have it
        with running(declare(folder, **keys), folder / "logs") as runner:
            yield runner


@pytest.fixture
def runner(module: Runner) -> Runner:
    """As each test has one of its own."""
    return Runner(module.implementation, CPU)


@pytest.mark.parametrize("segments", [4, 101, 102, 103, 105])
def test_what_a_module_does_to_its_own_process_changes_no_verdict(
    runner: Runner, segments: int
) -> None:
    """It prints and reads, sets the seed, keeps memory, has a package named as one of ours."""
    state = random.getstate(), torch.get_rng_state()
    for length in (16, 17):
        runner.judge(indices(segments, length=length))
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert runner.cases == 2


def test_what_it_prints_is_in_its_log(module: Runner) -> None:
    module.judge(indices(101))
    implementation = module.implementation
    log = Path(implementation.argument.removeprefix("toml:")).parent / "logs" / "theirs.log"
    said = log.read_text()
    for words in ("printed at import", "printed in a call", "written to stdout"):
        assert words in said


SEEN = {
    104: ("failed", "shape"),  # the memory of another call for a result
    106: ("failed", "depends on memory that the call did not write"),
    107: ("failed", "the call returned NoneType, no tensor"),
    108: ("failed", "the call returned tuple, no tensor"),
    109: ("crashed", r"the call raised RuntimeError: out of luck \(.*theirs.py:\d+\)$"),
    110: ("crashed", "the worker exited with 4"),
    111: ("crashed", r"the call raised SystemExit: enough \(.*theirs.py:\d+\)$"),
    112: ("failed", "the call returned object, no tensor"),
    113: ("failed", "the call changed its input context_lens"),
    114: ("failed", "wrote outside learned_indices: 1 element outside the view changed"),
    115: ("failed", "a legal call was refused: ValueError: num_segments is written to and refused"),
    116: ("failed", "its reply is no message, Invalid enum value 'complex64'"),
}


@pytest.mark.parametrize("segments", SEEN)
def test_what_it_does_to_a_call_is_seen(runner: Runner, segments: int) -> None:
    status, statement = SEEN[segments]
    if segments == 104:
        runner.judge(indices(103))
    with pytest.raises(Nonconformance, match=statement) as verdict:
        runner.judge(indices(segments))
    assert verdict.value.status == status
    runner.judge(indices(4))


def test_a_refusal_that_has_written_is_seen(runner: Runner) -> None:
    with pytest.raises(Nonconformance, match="the refused call wrote to learned_indices"):
        runner.refuse(indices(115))


@pytest.mark.parametrize(
    "layout", ["contiguous", "offset", "padded", "sliced", "transposed", "broadcast"]
)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_layout_arrives(runner: Runner, layout: Layout, rows: int) -> None:
    """So does a result of one element, whatever its strides."""
    learned = to_golden(torch.full((rows, 1), 3, dtype=torch.int32), layout)
    lengths = to_golden(torch.full((rows,), 2**31 - 1, dtype=torch.int64), layout)
    tensors: dict[str, Value] = {"learned_indices": learned, "context_lens": lengths}
    rest: dict[str, Value] = {"learned_keep": 0, "num_segments": 2, "max_replacements": 1}
    runner.judge(Case(INDICES, tensors | {"num_segments": 2}))
    runner.judge(Case(APPLY, tensors | rest))
    if layout != "broadcast":
        in_place: dict[str, Value] = {"topk_indices": learned, "context_lens": lengths}
        runner.judge(Case(SERVE, in_place | {"num_segments": 1}))


# --- every kind of argument and result -----------------------------------------------------------

KINDS = """
import torch

def flat_group_gemm_fuse_reshape(
    query_states, key_states, stride, chunk_start, chunk_end, is_causal=True, out_dtype=None
):
    assert type(stride) is int and type(is_causal) is bool
    # What was given, and where: the last elements of heads that are far apart.
    ends = torch.stack([query_states[0, :, -1, -1], key_states[0, :, -1, -1]])
    query_states[0, -1, -1, -1] = 9
    return ends.to(out_dtype or query_states.dtype)

def merge_softmax_stats(m_chunks, l_chunks):
    assert type(m_chunks) is list
    return m_chunks[0] + m_chunks[1], l_chunks[0].double()

def find_blocks_chunked(
    input_tensor, current_index, threshold, num_to_choose=None, decoding=False, mode="prefill",
    causal=True,
):
    return torch.tensor([threshold]), mode + "" == "both", num_to_choose

def segment_of(token, context_len, num_segments):
    return token

def segment_coverage(candidates, context_len, num_segments):
    return 0.1

def random_null(context_len, budget, seed):
    return [1, 2, seed]
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[catalog.Implementation]:
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "every_kind.py").write_text(KINDS, encoding="utf-8")
    with running(declare(folder, name="kinds", path=["."], **{"import": "every_kind"})) as runner:
        yield runner.implementation


def test_arguments_and_results_of_every_kind(kinds: catalog.Implementation) -> None:
    call = kinds.operations
    nan = torch.tensor([[float("nan"), -0.0]])
    m, total = call["merge_softmax_stats"]([nan, nan], [nan, nan])
    assert (m.dtype, total.dtype, m.shape) == (torch.float32, torch.float64, (1, 2))
    assert m[0, 0].isnan()
    assert m[0, 1].signbit()
    mask, both, chosen = call["find_blocks_chunked"](
        nan, 0, float("inf"), None, False, "both", True
    )
    assert (mask.tolist(), both, type(chosen).__name__) == ([float("inf")], True, "NoneType")
    assert call["segment_of"](2**40, 5, 7) == 2**40
    assert call["segment_coverage"](nan, 5, 7) == 0.1
    assert call["random_null"](5, 7, 2**64 - 1) == [1, 2, 2**64 - 1]
    names = {"query_states": torch.ones(1, 1, 2, 2), "key_states": torch.ones(1, 1, 2, 2)}
    rest = {"stride": 1, "chunk_start": 0, "chunk_end": 2, "is_causal": False}
    by_name = call["flat_group_gemm_fuse_reshape"](**names, **rest, out_dtype=torch.bfloat16)
    assert by_name.dtype == torch.bfloat16
    assert by_name.tolist() == [[1.0], [1.0]]


def test_a_storage_of_gigabytes_travels_in_parts(kinds: catalog.Implementation) -> None:
    """Of two heads a gigabyte apart, only what lies around them; writes come back all the same."""
    memory = torch.empty(2**30 + 200, dtype=torch.bfloat16)
    far = memory.as_strided((1, 2, 2, 3), (6, 2**30, 3, 1), 64)
    far.copy_(torch.arange(12.0).reshape(far.shape))
    near = torch.zeros(1, 2, 2, 3, dtype=torch.bfloat16)
    ranges = operations._ranges(far)
    assert ranges == ((0, 64 + 6 + 64), (2**30, 2**30 + 64 + 6 + 64))
    function = kinds.operations["flat_group_gemm_fuse_reshape"]
    result = function(far, near, 1, 0, 2, True, None)
    assert result.tolist() == [[5.0, 11.0], [0.0, 0.0]]
    assert far[0, 1, 1, 2] == 9


def test_the_worker_file_needs_no_other_of_this_project() -> None:
    """What it imports is in the standard library, or torch."""
    tree = ast.parse(Path(serve.__file__).read_text(encoding="utf-8"), feature_version=(3, 9))
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert modules - sys.stdlib_module_names == {"torch"}
