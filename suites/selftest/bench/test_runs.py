"""Whole runs of the tier on the simulated device: exit codes, what is printed, the record."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from golden.record import Measurement, Verdict
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

HONEST = """
from kernels.witness import torch_reference as reference
from suites.selftest.bench.fake import DEVICE


def scatter_topology_witnesses_(topk_indices, context_lens, num_segments):
    DEVICE.spend({seconds})
    reference.scatter_topology_witnesses_(topk_indices, context_lens, num_segments)
    {spoil}
"""


def run(
    folder: Path,
    *arguments: str,
    seconds: float = 1e-4,
    spoil: str = "",
    chosen: str = "test_rows and rows-32 and mine",
    monkeypatch: pytest.MonkeyPatch,
    **device: object,
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("FAKE_DEVICE", json.dumps(device))
    text = HONEST.format(seconds=seconds, spoil=spoil)
    (folder / "mine.py").write_text(text, encoding="utf-8")
    bench = str(ROOT / "suites" / "bench")
    return run_pytest(
        folder,
        *("-p", "suites.selftest.bench.fake", bench, "--impl", "mine", "-k", chosen, *arguments),
    )


def verdicts(folder: Path) -> list[Verdict]:
    return [line for line in record_of(folder) if isinstance(line, Verdict)]


def figures(folder: Path) -> dict[tuple[str, str], float]:
    """By quantity and how it was timed, of the implementation."""
    return {
        (line.quantity, line.variant): line.value
        for line in record_of(folder)
        if isinstance(line, Measurement) and line.implementation == "mine"
    }


def test_figures_reach_the_table_the_record_and_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path, "--benchmark-json=out.json", monkeypatch=monkeypatch)
    assert done.returncode == 0, done.stdout
    # SERVE is what the module has; the two others of its group are unsupported, and said so.
    found = figures(tmp_path)
    assert found["median us", "warm replay"] == pytest.approx(100)
    assert found["median us", "cold eager"] == pytest.approx(308)
    assert found["launch us", "cold replay"] == pytest.approx(8)
    assert found["throttled", "cold replay"] == 0
    assert found["floor us", "cold replay"] < 300
    copying = 2 * 32 * 2048 * 4 / 4e12 * 3
    assert found["ratio to copying", "cold replay"] == pytest.approx(300e-6 / copying)
    lines = done.stdout.splitlines()
    (line,) = [line for line in lines if " mine " in line and "cold replay" in line]
    assert line.split()[:6] == ["rows", "32", "mine", "cold", "replay", "300"]
    table = lines[lines.index(next(x for x in lines if "= benchmarks =" in x)) :]
    assert max(map(len, table)) <= 120
    assert "= conformance =" not in done.stdout
    benchmarks = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert {each["params"]["implementation"] for each in benchmarks} == {"mine"}
    assert {each["group"] for each in benchmarks} == {"scatter_topology_witnesses_ rows 32"}
    statuses = {(each.status, each.cases > 0) for each in verdicts(tmp_path)}
    assert statuses == {("passed", True), ("unsupported", False)}


def test_an_impossible_time_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(tmp_path, "--benchmark-json=out.json", seconds=1e-9, monkeypatch=monkeypatch)
    assert done.returncode == 1
    assert "is impossible: at its published peak NVIDIA H200 needs" in done.stdout
    failed = {each.test: each.detail for each in verdicts(tmp_path) if each.status == "failed"}
    assert [re.findall(r"\[(\w+-\w+)-", test)[0] for test in failed] == [
        "replay-cold",
        "replay-warm",
    ]
    assert ("median us", "cold replay") not in figures(tmp_path)
    assert ("median us", "cold eager") in figures(tmp_path)
    timed = [each["name"] for each in json.loads((tmp_path / "out.json").read_text())["benchmarks"]]
    assert not [name for name in timed if "replay-cold" in name]


def test_a_wrong_result_is_explained_and_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path, spoil="topk_indices[-1, -1] += 1", monkeypatch=monkeypatch)
    assert done.returncode == 1
    assert "scatter_topology_witnesses_ of mine: 1 of 2048 elements differ" in done.stdout
    (rerun, *_) = re.findall(r"--replay (\S+\.json) --impl mine", done.stdout)
    assert not figures(tmp_path)
    assert {each.status for each in verdicts(tmp_path)} == {"failed", "unsupported"}
    again = run_pytest(
        tmp_path, str(ROOT / "suites/test_replay.py"), "--replay", rerun, "--impl", "mine"
    )
    assert again.returncode == 1
    assert "1 of 2048 elements differ" in again.stdout


def test_a_throttled_clock_is_told_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = ("hardware thermal slowdown",)
    done = run(tmp_path, throttled=reasons, monkeypatch=monkeypatch)
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if "mine" in line and " eager" in line]
    assert len(lines) == 2
    assert all(line.endswith("throttled") for line in lines)
    assert "so the figure is not to be believed" in done.stdout
    assert figures(tmp_path)["throttled", "warm eager"] == 1
    assert "clocks 1980 MHz, hardware thermal slowdown" in done.stdout


def test_a_missing_device_is_not_run(tmp_path: Path) -> None:
    bench = str(ROOT / "suites" / "bench")
    done = run_pytest(tmp_path, bench, "--device", "cuda:7", "-k", "rows-32 and torch")
    assert done.returncode == 5
    assert "no device cuda:7 on this machine" in done.stdout
    assert {each.status for each in verdicts(tmp_path)} == {"not-run"}
    assert not [line for line in record_of(tmp_path) if isinstance(line, Measurement)]


def test_a_device_that_is_lost_ends_the_run_without_a_green_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second benchmark: the first keeps its figures, and nothing after it is tried."""
    done = run(tmp_path, lost_after=40, monkeypatch=monkeypatch)
    assert done.returncode == 1
    by_test = [(each.status, each.detail) for each in record_in_order(done, tmp_path)]
    (crashed,) = [i for i, (status, _) in enumerate(by_test) if status == "crashed"]
    assert "the device was lost: CUDA error: device lost" in by_test[crashed][1]
    assert {status for status, _ in by_test[:crashed]} == {"passed"}
    rest = by_test[crashed + 1 :]
    assert rest
    assert {status for status, _ in rest} == {"not-run"}
    assert all("the device was lost in" in detail for _, detail in rest)
    assert len([key for key in figures(tmp_path) if key[0] == "median us"]) == crashed


def record_in_order(done: subprocess.CompletedProcess[str], folder: Path) -> list[Verdict]:
    """The verdicts in the order in which tests were run: that of their progress line."""
    found = verdicts(folder)
    order = ["eager-cold", "eager-warm", "replay-cold", "replay-warm"]
    of = [each for each in found if "scatter" in each.test]
    return sorted(of, key=lambda each: next(i for i, o in enumerate(order) if o in each.test))


def test_side_by_side_is_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, str(ROOT / "suites" / "bench"), "-n", "2")
    assert done.returncode == 4
    assert "benchmarks must not run side by side; leave out -n" in done.stderr


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path, str(ROOT / "suites" / "bench"), "-k", "test_rows and rows-1- and scatter"
    )
    assert done.returncode == 0, done.stdout
    assert "benchmarks: no GPU, one thread of" in done.stdout
    assert "small sizes" in done.stdout
    assert {each.implementation for each in verdicts(tmp_path)} == {"torch"}
