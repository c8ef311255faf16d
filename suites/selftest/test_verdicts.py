"""What becomes of a test: its status in the matrix, the record, and pytest's exit code."""

import subprocess
from pathlib import Path

import pytest

from golden.record import Footer, Header, Verdict
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

TESTS = """
import itertools, os, signal
import pytest, torch
from hypothesis import given, strategies as st
from suites.verdicts import Nonconformance
from golden.model import Tensor
from suites.cases import APPLY, MERGE, Case, to_golden
from suites.contracts import contract

CASE = Case(APPLY, {
    "learned_indices": Tensor("int32", (1, 1), (0,)), "context_lens": Tensor("int32", (1,), (1,)),
    "learned_keep": 0, "num_segments": 1, "max_replacements": 1})

@contract("witness.merge.prefix")
def test_passes(implementation):
    implementation.judge(CASE)

@contract("witness.merge.budget")
def test_judges_nothing(implementation):
    pass

@contract("witness.merge.width")
def test_errs(implementation):
    raise RuntimeError("the suite is broken")

@contract("witness.merge.tail")
@pytest.mark.timeout(0.5)
def test_hangs(implementation):
    while True:
        pass

@contract("witness.merge.distinct")
def test_is_skipped(implementation):
    pytest.skip("no such device")

calls = itertools.count()

@contract("witness.set.complete")
@given(n=st.integers(0, 9))
def test_wavers(implementation, n):
    implementation.judge(CASE)
    if next(calls) == 3:
        raise Nonconformance("this once", CASE)

@contract("witness.merge.ascending")
@given(n=st.integers(0, 9))
def test_is_refused(implementation, n):
    implementation._leave("these tensors are too wide for it")

@contract("witness.merge.ascending")
@given(n=st.integers(0, 9))
def test_is_refused_or_crashes(implementation, n):
    if n:
        raise Nonconformance("no kernel image", CASE, status="crashed")
    implementation._leave("these tensors are too wide for it")

@contract("witness.merge.ascending")
@given(n=st.integers(0, 9))
def test_is_refused_or_errs(implementation, n):
    if n:
        raise RuntimeError("the suite is broken")
    implementation._leave("these tensors are too wide for it")

THIRDS = to_golden(torch.full((1, 1, 3000), 1 / 3))
LARGE = Case(MERGE, {"m_chunks": (THIRDS,), "l_chunks": (THIRDS,)})

@contract("witness.merge.ascending")
@given(case=st.just(LARGE))
def test_is_large(implementation, case):
    raise Nonconformance("as large as it is", case)

@contract("witness.set.disjoint")
def test_dies(implementation):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        os.kill(os.getpid(), signal.SIGSEGV)
    implementation.judge(CASE)
"""


def run(folder: Path, *arguments: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(tests, encoding="utf-8")
    ini = "[pytest]\nfilterwarnings = error\n"
    (folder / "pytest.ini").write_text(ini, encoding="utf-8")
    return run_pytest(folder, "-p", "suites.plugin", "--impl", "torch", *arguments)


def verdicts_of(folder: Path) -> dict[str, Verdict]:
    """By the name of the test."""
    return {
        line.test.partition("::")[2].partition("[")[0]: line
        for line in record_of(folder)
        if isinstance(line, Verdict)
    }


def test_each_end_of_a_test_has_its_status(tmp_path: Path) -> None:
    result = run(tmp_path, "-n", "1")
    assert result.returncode == 1, result.stdout + result.stderr
    verdicts = verdicts_of(tmp_path)
    assert {name: verdict.status for name, verdict in verdicts.items()} == {
        "test_passes": "passed",
        "test_judges_nothing": "harness-error",
        "test_errs": "harness-error",
        "test_hangs": "timed-out",
        "test_is_skipped": "not-run",
        "test_wavers": "failed",
        "test_is_large": "failed",
        "test_is_refused": "unsupported",
        "test_is_refused_or_crashes": "crashed",
        "test_is_refused_or_errs": "harness-error",
        "test_dies": "crashed",
    }
    assert verdicts["test_wavers"].detail == "this once"
    assert verdicts["test_judges_nothing"].detail == "the test passed without judging a case"
    assert verdicts["test_is_skipped"].detail == "no such device"
    assert verdicts["test_dies"].implementation == "torch"
    assert "crashed: test_some.py::test_dies[torch]" in result.stdout
    header, *_, footer = record_of(tmp_path)
    assert isinstance(header, Header)
    assert isinstance(footer, Footer)
    assert footer.statuses == {
        "crashed": 2,
        "failed": 2,
        "harness-error": 3,
        "not-run": 1,
        "passed": 1,
        "timed-out": 1,
        "unsupported": 1,
    }
    assert footer.exit_status == 1


def test_an_unknown_contract_is_a_usage_error(tmp_path: Path) -> None:
    result = run(tmp_path, tests=TESTS.replace("witness.merge.prefix", "witness.merge.prefx"))
    assert result.returncode == 4
    assert (
        "ERROR: test_some.py::test_passes[torch]: no contract 'witness.merge.prefx'; "
        "add it to golden/contracts.toml"
    ) in result.stdout + result.stderr


def test_a_run_that_was_cut_short_has_no_footer(tmp_path: Path) -> None:
    interrupted = TESTS + "\ndef test_interrupts(implementation):\n    os._exit(3)\n"
    run(tmp_path)
    assert isinstance(record_of(tmp_path)[-1], Footer)
    run(tmp_path, "-k", "passes or interrupts", tests=interrupted)
    (header,) = record_of(tmp_path)
    assert isinstance(header, Header)


@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "2")], ids=["alone", "two workers"])
def test_a_seed_gives_the_same_record_whatever_the_workers(
    tmp_path: Path, workers: tuple[str, str]
) -> None:
    module = str(ROOT / "suites" / "witness" / "test_indices.py")
    for name, arguments in (("one", ("-n", "1")), ("other", workers)):
        folder = tmp_path / name
        folder.mkdir()
        result = run(folder, *arguments, "--seed", "3", module, "-k", "torch", tests="")
        assert result.returncode == 0, result.stdout
    one, other = (record_of(tmp_path / name)[1:] for name in ("one", "other"))
    assert one == other
