"""Whole runs of the tier, and where tools are missing."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from golden.record import Footer, Header, Measurement
from suites.compile.architectures import ARCHITECTURES
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

TIER = str(ROOT / "suites" / "compile")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_become_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and from then on they are known; whatever the environment says to Triton."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = "spills and triton_fused and witness_serve_kernel and int32-single"
    kept = []
    for options in ((), ("--accept",)):
        run = run_pytest(tmp_path, TIER, "-k", chosen, *options)
        assert run.returncode == 0, run.stdout + run.stderr
        assert " 5 passed" in run.stdout
        assert re.search(r"witness/triton_fused\n +witness_serve_kernel +\d", run.stdout)
        assert re.search(r"\n5 compiled kernels: .*ptxas \d.*, triton \d", run.stdout)
        assert "record: .conformance/record.jsonl" in run.stdout
        assert ("--accept wrote nothing" in run.stdout) == bool(options)
        files = (tmp_path / "cache" / "sparse-conformance" / "compiled").iterdir()
        kept.append({file.name: file.stat().st_mtime_ns for file in files})
    assert len(kept[0]) == 5
    assert kept[1] == kept[0]
    header, *measurements, footer = record_of(tmp_path)
    assert isinstance(header, Header)
    assert {"ptxas", "triton"} <= {*header.versions}
    assert "sm_80" in header.device
    assert "kernels.witness.triton_fused" in header.implementations
    registers = {
        (m.implementation, m.subject, m.variant): m.value
        for m in measurements
        if isinstance(m, Measurement) and m.quantity == "registers"
    }
    kernel = "kernels.witness.triton_fused", "witness_serve_kernel int32-single"
    assert {*registers} == {(*kernel, name) for name in ARCHITECTURES}
    assert min(registers.values()) > 0
    assert footer == Footer({}, 0, 0)


def test_to_collect_is_no_failure(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TIER, "--collect-only", "-q")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "compiled kernels" not in run.stdout
    assert not (tmp_path / ".conformance").exists()


def test_without_a_toolchain_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text('raise ImportError("no cuda here")\n')
    run = run_pytest(tmp_path, TIER, "-k", "cuda_fused")
    assert run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, run.stdout + run.stderr
    assert re.search(r"not-run: witness/cuda_fused: .*no cuda here.*install cuda-core", run.stdout)
    assert not (tmp_path / ".conformance").exists()
    assert not re.search(r"\d+ (passed|failed|error)", run.stdout)


def test_it_is_not_to_be_spread_over_workers(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TIER, "-n", "2")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "leave out -n" in run.stderr
