"""The plug-in as its users meet it: modules of their own, bad input, failures, the record."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
import torch

from golden import files
from golden.record import Footer, Header, Verdict
from kernels import catalog
from suites import outcomes, plugin, session
from suites.runner import ORACLE
from suites.selftest.test_closure import COLLECTOR
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

USAGE = 4

HONEST = '''
"""A user's own module: the specification's names, and nothing else of this project."""
import torch


def witnesses(context_lens, learned, segments, round_up):
    lengths = context_lens.long()
    out = torch.full((learned.shape[0], segments), -1, dtype=torch.int32)
    for row, (length, entries) in enumerate(zip(lengths.tolist(), learned.tolist())):
        count = min(segments, max(length, 0))
        marked = {min(x * min(segments, max(length, 1)) // max(length, 1), segments - 1)
                  for x in entries if x >= 0}
        for s in range(count):
            if s not in marked:
                out[row, s] = (s * length + (count - 1 if round_up else 0)) // count
    return out


def check(learned, context_lens):
    if learned.dtype != torch.int32 or learned.ndim != 2:
        raise ValueError("learned rows must be 2-D int32")
    if context_lens.shape != learned.shape[:1]:
        raise ValueError("context_lens must have one length a row")


def topology_witness_indices(context_lens, learned_indices, num_segments):
    check(learned_indices, context_lens)
    if num_segments < 1:
        raise ValueError("num_segments must be positive")
    return witnesses(context_lens, learned_indices, num_segments, ROUND_UP)


def apply_topology_witnesses(
    learned_indices, context_lens, learned_keep, num_segments, max_replacements
):
    check(learned_indices, context_lens)
    topk = learned_indices.shape[1]
    if not (1 <= num_segments <= 64 and 0 <= learned_keep <= topk and max_replacements >= 0):
        raise ValueError("an argument is out of range")
    merged = learned_indices.clone()
    for row, slots in enumerate(witnesses(context_lens, learned_indices, num_segments, ROUND_UP)):
        new = slots[slots >= 0][: min(max_replacements, topk - learned_keep)]
        merged[row, learned_keep : learned_keep + len(new)] = new
    return merged


def scatter_topology_witnesses_(topk_indices, context_lens, num_segments):
    check(topk_indices, context_lens)
    if not 0 <= num_segments <= 64:
        raise ValueError("num_segments is out of range")
    if num_segments:
        keep = max(topk_indices.shape[1] - num_segments, 0)
        topk_indices.copy_(apply_topology_witnesses(
            topk_indices, context_lens, keep, num_segments, num_segments))


ROUND_UP = True
'''
FLOORED = HONEST.replace("ROUND_UP = True", "ROUND_UP = False")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs pytest on the suite from a folder of the user's, with the user's modules."""

    def pytest_(*arguments: str, **modules: str) -> subprocess.CompletedProcess[str]:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return run_pytest(tmp_path, *arguments)

    return pytest_


def suite(*names: str) -> list[str]:
    return [str(ROOT / "suites" / name) for name in names]


NOTES = """
from pathlib import Path

from hypothesis import given, settings, strategies as st


@given(x=st.integers(0, 10**9))
@settings(max_examples=300)
def test_notes(x):
    with Path("drawn").open("a") as file:
        print(x, file=file)
"""


def test_the_cases_of_a_seed_do_not_hang_on_what_is_loaded(run: Run, tmp_path: Path) -> None:
    """Nor, so, on the implementation, on others beside it, or on which tests are run."""
    (tmp_path / "test_notes.py").write_text(NOTES)
    drawn = []
    for names in ([], ["beside"]):
        chosen = [f"--impl={name}" for name in ("mine", *names)]
        result = run(
            *chosen,
            *suite("test_golden.py"),
            "test_notes.py",
            "-k",
            "notes",
            mine=HONEST,
            beside=f"ANY = {[*range(10**6, 10**6 + 500)]}\n" + HONEST,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        drawn.append((tmp_path / "drawn").read_text())
        (tmp_path / "drawn").unlink()
    assert len(set(drawn[0].split())) > 200
    assert drawn[0] == drawn[1]


def test_an_honest_module_passes_and_the_record_says_so(run: Run, tmp_path: Path) -> None:
    result = run("--impl", "mine", "--seed", "7", *suite("test_golden.py"), mine=HONEST)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"witness\.edge\.lands-in-segment +passed \d+ +passed \d+", result.stdout)
    schema = json.loads((ROOT / "golden" / "schema" / "record.json").read_text())
    for line in record_of(tmp_path):
        jsonschema.validate(json.loads(msgspec.json.encode(line)), schema)
    header, *body, footer = record_of(tmp_path)
    assert isinstance(header, Header)
    assert (header.seed, header.implementations) == (7, ("mine",))
    assert isinstance(footer, Footer)
    verdicts = [line for line in body if isinstance(line, Verdict)]
    assert footer.statuses == {"passed": len(verdicts)}
    assert footer.cases == sum(verdict.cases for verdict in verdicts)
    assert all(verdict.cases > 0 for verdict in verdicts)


def test_edges_rounded_down_are_caught_and_the_counterexample_can_be_read(
    run: Run, tmp_path: Path
) -> None:
    edges = "first_token or appears_twice"
    result = run(
        "--impl", "floored", "-k", edges, *suite("witness/test_indices.py"), floored=FLOORED
    )
    assert result.returncode == 1
    failed = {
        contract
        for verdict in record_of(tmp_path)
        if isinstance(verdict, Verdict) and verdict.status == "failed"
        for contract in verdict.contracts
    }
    assert "witness.edge.lands-in-segment" in failed
    assert "witness.set.distinct" not in failed
    assert "Traceback" not in result.stdout
    # The smallest context in which rounding down and up differ has three tokens and two segments.
    assert "the witness in slot 1 is not the left edge of segment 1" in result.stdout
    assert re.search(r"L 3 +S 2 +S_eff 2", result.stdout)
    assert re.search(r"1 +\[2, 3\) +2 +1", result.stdout)

    commands = re.findall(r"rerun: python -m pytest (.*)", result.stdout)
    kept = {
        (line.shown, line.rerun)
        for line in record_of(tmp_path)
        if isinstance(line, Verdict) and line.rerun
    }
    assert {f"python -m pytest {command}" for command in commands} == {rerun for _, rerun in kept}
    assert all(shown in result.stdout for shown, _ in kept)
    again = run(*commands[0].split())
    assert again.returncode == 1, again.stderr
    assert "test_replay[floored-counterexample" in again.stdout
    assert (
        run(*commands[0].replace("--impl floored", "--impl mine").split(), mine=HONEST).returncode
        == 0
    )


def test_an_operation_that_is_missing_is_unsupported_and_seen(run: Run, tmp_path: Path) -> None:
    partial = HONEST.replace("def scatter_topology_witnesses_(", "def something_else(")
    result = run("--impl", "partial", *suite("test_golden.py"), partial=partial)
    assert result.returncode == 0
    assert re.search(r"witness\.disabled\.off-switch +passed \d+ +unsupported", result.stdout)
    assert re.search(r"witness\.set\.disjoint +passed \d+ +passed \d+", result.stdout)


def test_where_nothing_was_measured_the_run_is_not_green(run: Run) -> None:
    partial = HONEST.replace("def scatter_topology_witnesses_(", "def something_else(")
    result = run(
        "--impl",
        "partial",
        "-k",
        "zero_segments",
        *suite("witness/test_serving.py"),
        partial=partial,
    )
    assert result.returncode == 5


def test_a_device_that_is_missing_is_not_run(run: Run) -> None:
    result = run(
        "--device", "cuda", "--impl", "torch", "-k", "torch", *suite("witness/test_recorded.py")
    )
    assert result.returncode == 5
    assert "not-run" in result.stdout


SEGMENT_OF = """{"schema": 1, "operation": "segment_of", "notes": {"why": {"reason": "edited"}},
"vectors": [{"id": "edited", "contracts": ["witness.segment-map.exact"], "notes": ["why"],
"inputs": {"token": 5, "context_len": 16, "num_segments": 4}, "expected": 1}]}"""
EXPECTED = '"expected": {"dtype": "int32", "shape": [2], "data": [1]}'

USAGE_ERRORS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "an unknown name": (
        ["--impl", "nonesuch"],
        {},
        "ERROR: --impl nonesuch: no built-in implementation and no importable module of that name; "
        "use one of torch, triton, cuda, triton_streaming, or a module on the import path",
    ),
    "a module that fails to import": (
        ["--impl", "failing"],
        {"failing": "raise RuntimeError('no luck\\ntoday')"},
        "ERROR: --impl failing: its import fails with RuntimeError: no luck today; "
        "`python -c 'import failing'` shows where",
    ),
    "another signature": (
        ["--impl", "other"],
        {"other": "def topology_witness_indices(learned_indices, context_lens, num_segments): ..."},
        "ERROR: --impl other: topology_witness_indices(learned_indices, context_lens, "
        "num_segments) has another signature; the specification's is "
        "topology_witness_indices(context_lens, learned_indices, num_segments)",
    ),
    "no such device": (
        ["--device", "gpu0"],
        {},
        "ERROR: --device gpu0: not a torch device; use cpu, cuda or cuda:N",
    ),
    "a replay that is not there": (
        ["--replay", "other.json"],
        {},
        "ERROR: other.json: cannot be read, No such file or directory; restore it or write it",
    ),
    "a replay that is no vector file": (
        ["--replay", "vectors.py"],
        {"vectors": "[]"},
        "ERROR: vectors.py: Expected `object`, got `array`; "
        "compare with golden/schema/counterexample.json",
    ),
    "a replay that lacks an input": (
        ["--replay", "vectors.py"],
        {"vectors": SEGMENT_OF.replace(', "num_segments": 4', "")},
        "ERROR: vectors.py: `edited` has no input `num_segments`; add it",
    ),
    "a replay of another tensor than its shape": (
        ["--replay", "vectors.py"],
        {"vectors": SEGMENT_OF.replace('"expected": 1', EXPECTED)},
        "ERROR: vectors.py: 1 values for 2 elements in `edited`, at `$.vectors[0].expected`",
    ),
}


@pytest.mark.parametrize("mistake", USAGE_ERRORS)
def test_bad_input_is_one_line_and_a_usage_error(run: Run, mistake: str) -> None:
    arguments, modules, message = USAGE_ERRORS[mistake]
    result = run(str(ROOT / "suites" / "test_replay.py"), *arguments, **modules)
    assert result.returncode == USAGE
    said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    assert len(said) == 1, said
    assert said[0].startswith(message)


def test_a_golden_file_with_a_wrong_type_is_a_usage_error(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("conftest.py", "pyproject.toml"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [
            "cp",
            "-r",
            *(str(ROOT / n) for n in ("golden", "kernels", "oracles", "suites")),
            str(checkout),
        ],
        check=True,
    )
    vectors = checkout / "golden" / "witness" / "segment_of.json"
    vectors.write_text(vectors.read_text().replace('"schema": 1', '"schema": "one"'))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=120,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
    )
    assert result.returncode == USAGE
    said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    assert len(said) == 1, said
    assert said[0].startswith("ERROR: golden/witness/segment_of.json: ")
    assert said[0].endswith("compare with golden/schema/vectors.json")


# --- who is asked for what -----------------------------------------------------------------------

SELECT, MERGE, ESTIMATE = "find_blocks_chunked", "merge_softmax_stats", "xattn_estimate"
WITNESS, MEASURE = "topology_witness_indices", "segment_of"


def implementation(name: str, *operations: str) -> catalog.Implementation:
    return catalog.Implementation(name, {operation: lambda: None for operation in operations})


PARTIAL = implementation("triton_streaming", ESTIMATE)  # a built-in one
OWN = implementation("mine", SELECT)
MEASURES = implementation("mine", MEASURE)
KERNEL = implementation("mine", WITNESS)

# Who is tested, what else is, what a test calls, and whether it is collected.
ASKED: dict[str, tuple[catalog.Implementation, list[catalog.Implementation], set[str], bool]] = {
    "a built-in one for what it has": (PARTIAL, [], {ESTIMATE}, True),
    "a built-in one for what it lacks": (PARTIAL, [], {SELECT}, False),
    "a built-in one for part of what a test calls": (PARTIAL, [], {SELECT, ESTIMATE}, False),
    "a user's for what it has": (OWN, [], {SELECT}, True),
    "a user's for another operation of the kernels": (OWN, [], {MERGE}, True),
    "a user's for what it has and another": (OWN, [], {SELECT, ESTIMATE}, True),
    "a user's for another family": (OWN, [], {WITNESS}, False),
    "a user's for measures": (OWN, [], {MEASURE}, False),
    "a user's measures for kernels": (MEASURES, [], {WITNESS}, False),
    "a user's measures for another": (MEASURES, [], {"random_null"}, True),
    "the oracle for what another has": (ORACLE, [PARTIAL], {ESTIMATE}, True),
    "the oracle for another operation of the family": (ORACLE, [PARTIAL], {MERGE}, True),
    "the oracle for a family that nobody has": (ORACLE, [PARTIAL], {WITNESS, MEASURE}, False),
    "the oracle for a family that one has": (ORACLE, [PARTIAL, MEASURES], {WITNESS}, True),
    "the oracle for measures where kernels are": (ORACLE, [KERNEL], {MEASURE}, True),
    "anyone for a test that calls nothing": (PARTIAL, [], set(), True),
}


def item(parameters: dict[str, Any], called: set[str]) -> Any:
    marks = [pytest.mark.operations(*called).mark] if called else []
    return SimpleNamespace(
        callspec=SimpleNamespace(params=parameters),
        iter_markers=lambda name: [mark for mark in marks if mark.name == name],
    )


@pytest.mark.parametrize("who", ASKED)
def test_who_is_asked(who: str) -> None:
    tested, others, called, asked = ASKED[who]
    implementations = [each for each in (tested, *others) if each is not ORACLE]
    state = session.State(implementations, torch.device("cpu"), 0, files.load_contracts(), None)
    assert plugin._asked(item({"implementation_or_oracle": tested}, called), state) is asked


def test_a_test_that_is_about_no_implementation_is_always_collected() -> None:
    state = session.State([], torch.device("cpu"), 0, files.load_contracts(), None)
    assert plugin._asked(item({}, {SELECT}), state)


def test_what_a_test_calls() -> None:
    """A parameter says so, a case, the file that is replayed; else the marker."""
    case = SimpleNamespace(operation=MERGE)
    assert session.operations_of(item({"case": case}, set())) == {MERGE}
    assert session.operations_of(item({"operation": SELECT}, set())) == {SELECT}
    assert session.operations_of(item({"replayed": (ESTIMATE, None)}, set())) == {ESTIMATE}
    assert session.operations_of(item({}, {SELECT, MERGE})) == {SELECT, MERGE}
    assert session.operations_of(item({}, set())) == set()


# --- on a GPU ------------------------------------------------------------------------------------

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # so that these tests are the same on a machine with a GPU


def collected(tmp_path: Path, *arguments: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The contracts of each test that a run in the checkout selects, and what it calls."""
    (tmp_path / "collector.py").write_text(COLLECTOR, encoding="utf-8")
    out = tmp_path / "collected.json"
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "collector", *arguments],
        cwd=ROOT,
        env=HIDDEN | {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "COLLECTED": str(out)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    contracts, called = json.loads(out.read_text())
    return contracts, called


def of_gpu(tests: Iterable[str]) -> set[str]:
    return {test for test in tests if test.startswith("suites/gpu/")}


def test_m_gpu_selects_the_main_job_and_what_only_a_gpu_can_show(tmp_path: Path) -> None:
    main_job, _ = collected(tmp_path)
    on_gpu, called = collected(tmp_path, "-m", "gpu")
    assert not of_gpu(main_job)
    assert {*on_gpu} - of_gpu(on_gpu) == {*main_job}
    files_of_gpu = {Path(test.partition("::")[0]).name for test in of_gpu(on_gpu)}
    assert files_of_gpu == {file.name for file in (ROOT / "suites" / "gpu").glob("test_*.py")}
    assert files.load_contracts().keys() == {id_ for ids in on_gpu.values() for id_ in ids}
    for test in of_gpu(on_gpu):
        assert called[test], test
        for id_ in on_gpu[test]:
            assert {*called[test]} <= {*files.load_contracts()[id_].operations}, test
    assert of_gpu(collected(tmp_path, "--device", "cuda")[0]) == set()
    assert collected(tmp_path, "-m", "not gpu")[0] == main_job


def test_a_marker_expression_that_selects_gpu() -> None:
    assert all(map(plugin._selects_gpu, ["gpu", "gpu and not slow", "(gpu)", "slow or gpu"]))
    assert not any(map(plugin._selects_gpu, ["", "not gpu", "slow and not gpu", "gpus"]))


def test_without_a_device_no_test_of_the_gpu_tier_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    record = tmp_path / ".conformance" / "record.jsonl"
    result = run_pytest(ROOT, "-m", "gpu", "-q", f"--record={record}")
    assert result.returncode == 5, result.stdout + result.stderr
    header, *verdicts, footer = record_of(tmp_path)
    assert isinstance(header, Header)
    assert header.device == "cuda"
    assert isinstance(footer, Footer)
    assert footer == Footer({"not-run": len(verdicts)}, 0, 5)
    assert of_gpu(verdict.test for verdict in verdicts if isinstance(verdict, Verdict))
    reasons = {verdict.detail for verdict in verdicts if isinstance(verdict, Verdict)}
    assert reasons == {"no device cuda on this machine; choose another --device"}


def test_on_a_cpu_no_test_of_the_gpu_tier_is_run(run: Run, tmp_path: Path) -> None:
    result = run("--impl", "torch", *suite("gpu"))
    assert result.returncode == 5
    *verdicts, _ = record_of(tmp_path)[1:]
    reasons = {verdict.detail for verdict in verdicts if isinstance(verdict, Verdict)}
    assert reasons == {"no device is chosen, but cpu; choose --device cuda, as -m gpu does"}


@pytest.mark.parametrize(
    ("worker", "visible", "count", "pinned"),
    [
        ("", None, 4, None),
        ("gw0", None, 4, "0,1,2,3"),
        ("gw1", None, 4, "1,2,3,0"),
        ("gw6", None, 4, "2,3,0,1"),
        ("gw1", None, 1, None),
        ("gw1", None, 0, None),
        ("gw1", "3,5", 0, "5,3"),
        ("gw1", "GPU-8a,GPU-2c", 0, "GPU-2c,GPU-8a"),
        ("gw1", "7", 0, "7"),
        ("gw1", "", 0, ""),
    ],
)
def test_each_worker_has_its_device(
    worker: str,
    visible: str | None,
    count: int,
    pinned: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    plugin._pin(worker)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == pinned


def test_a_device_that_is_named_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    options = {"markexpr": "", "--device": "cuda:3", "--impl": ["nonesuch"]}
    config: Any = SimpleNamespace(
        getoption=options.get,
        addinivalue_line=lambda *_: None,
        invocation_params=SimpleNamespace(dir=Path()),
    )
    with pytest.raises(pytest.UsageError, match="nonesuch"):
        plugin.pytest_configure(config)
    assert current == [torch.device("cuda", 3)]


LOST = """
import pytest, torch
from golden.model import Tensor
from suites import outcomes
from suites.cases import APPLY, Case
from suites.contracts import contract

outcomes._lost = lambda device: device == torch.device("cpu")
CASE = Case(APPLY, {
    "learned_indices": Tensor("int32", (1, 1), (0,)), "context_lens": Tensor("int32", (1,), (1,)),
    "learned_keep": 0, "num_segments": 1, "max_replacements": 1})

@contract("witness.merge.prefix")
@pytest.mark.parametrize("n", range(4))
def test_dies(implementation, n):
    implementation.judge(CASE)
    assert n != 1
"""


def test_a_device_that_is_lost_ends_the_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "test_lost.py").write_text(LOST, encoding="utf-8")
    result = run("-p", "suites.plugin", "--impl", "torch", "test_lost.py")
    assert result.returncode == 1
    assert "cpu is lost to this process, and further tests would show that alone" in result.stdout
    *verdicts, footer = record_of(tmp_path)[1:]
    assert [v.status for v in verdicts if isinstance(v, Verdict)] == ["passed", "harness-error"]
    assert isinstance(footer, Footer)
    assert footer.exit_status == 1


def test_whether_a_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert not outcomes._lost(cuda)  # nobody has asked it for anything
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert outcomes._lost(cuda)
    assert not outcomes._lost(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert not outcomes._lost(cuda)


def test_pytest_timeout_may_be_missing(run: Run) -> None:
    result = run("-p", "no:timeout", "--impl", "torch", "-k", "zero_segments", *suite("witness"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert run("-p", "no:timeout", "--impl", "torch", *suite("gpu")).returncode == 5


SEEN_AT_IMPORT = f"import os\nVISIBLE = os.environ['CUDA_VISIBLE_DEVICES']\n{HONEST}"
LOOKS = """
import os, pathlib, time
import pytest
import seen

@pytest.mark.parametrize("n", range(6))
def test_looks(n):
    time.sleep(0.2)
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"] + ".txt").write_text(seen.VISIBLE)
"""


@pytest.mark.parametrize(
    ("device", "first", "second"), [("cuda", "3,5", "5,3"), ("cuda:1", "3,5", "3,5")]
)
def test_a_worker_is_pinned_before_an_implementation_is_imported(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    first: str,
    second: str,
) -> None:
    """A device that is named is everyone's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    (tmp_path / "test_looks.py").write_text(LOOKS, encoding="utf-8")
    arguments = ["-p", "suites.plugin", "-n", "2", "--device", device, "--impl", "seen"]
    result = run(*arguments, "test_looks.py", seen=SEEN_AT_IMPORT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "gw0.txt").read_text() == first
    assert (tmp_path / "gw1.txt").read_text() == second
