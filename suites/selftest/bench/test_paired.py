"""Two trees compared: when there is a conclusion, when there is none, and what is left behind."""

import math
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suites.bench import paired
from suites.bench.paired import (
    PAIRS,
    BaselineError,
    Comparison,
    Process,
    Sample,
    commit_of,
    compare,
    critical_value,
    interval,
    outcome,
    report,
    samples_of,
    time_tree,
    turns,
    worktree,
)
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

Pairs = list[tuple[Sample, Sample]]


def simulated(
    slowdown: float, noise: float, seed: int, count: int = PAIRS, drift: float = 0.0
) -> Pairs:
    """Medians of processes, each off by a log-normal factor, on a device that gets slower."""
    draw, pairs, turn = random.Random(seed), [], 0
    for pair in range(count):
        sides = {}
        for number, side in turns(count):
            if number == pair:
                factor = math.exp(draw.gauss(0, noise) + drift * turn)
                sides[side] = Sample(1e-4 * factor * (slowdown if side == "head" else 1))
                turn += 1
        pairs.append((sides["base"], sides["head"]))
    return pairs


# --- the statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "value"),
    # The table of the two-sided signed-rank test at 5 %, as printed in textbooks.
    [(5, None), (6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)],
)
def test_critical_values_are_those_of_the_tables(n: int, value: int | None) -> None:
    assert critical_value(n, 0.95) == value


def test_the_interval_of_a_worked_example() -> None:
    """Averages of 1 … 8 two by two: the fourth from either end."""
    low, high = interval([1, 2, 3, 4, 5, 6, 7, 8])
    assert (low, high) == (2, 7)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(1000):
        low, high = interval([draw.gauss(1, 0.3) for _ in range(PAIRS)])
        held += low <= 1 <= high
    assert 940 <= held <= 980  # 96.1 % exactly, of which 1000 draws are off by 0.6 %


def test_a_planted_slowdown_is_found() -> None:
    for seed in range(20):
        found = compare("test", simulated(1.10, 0.01, seed))
        assert found.conclusion == "slower"
        assert found.low < 1.10 * 1.02
        assert 1.07 < found.ratio < 1.13


def test_a_planted_gain_is_found() -> None:
    found = compare("test", simulated(1 / 1.10, 0.01, 0))
    assert found.conclusion == "faster"
    assert found.high < 1


def test_noise_is_no_conclusion() -> None:
    """Of a difference that is there, and drowned."""
    found = [compare("test", simulated(1.05, 0.3, seed)).conclusion for seed in range(200)]
    assert sum(each.startswith("undecided") for each in found) >= 190


def test_the_same_tree_is_seldom_told_apart() -> None:
    found = [compare("test", simulated(1, 0.05, seed)).conclusion for seed in range(200)]
    assert sum(not each.startswith("undecided") for each in found) <= 12


def test_more_noise_than_difference_is_no_conclusion() -> None:
    """Though every pair says slower."""
    pairs = [(Sample(1.0), Sample(x)) for x in (1.01, 1.02, 1.03, 1.04, 1.3, 1.4, 1.5, 1.6)]
    found = compare("test", pairs)
    assert found.low > 1
    assert found.conclusion == "undecided: more noise than difference"


def test_a_device_that_gets_slower_is_no_difference() -> None:
    """Base and head take turns so that what drifts meets both alike."""
    found = compare("test", simulated(1, 0, 0, drift=0.01))
    assert found.ratio == pytest.approx(1, abs=1e-9)
    assert found.conclusion.startswith("undecided")
    assert [side for _, side in turns(2)] == ["base", "head", "head", "base"]


def test_one_bad_process_is_no_conclusion() -> None:
    """The ratio stays what it was; that there is one is no longer sure."""
    pairs = simulated(1.10, 0.005, 0)
    pairs[3] = (pairs[3][0], Sample(pairs[3][1].seconds * 5))
    found = compare("test", pairs)
    assert found.conclusion == "undecided: more noise than difference"
    assert found.ratio == pytest.approx(1.10, abs=0.02)


def test_too_few_pairs_are_no_conclusion() -> None:
    assert (
        compare("test", simulated(2, 0, 0, count=5)).conclusion == "undecided: 5 pairs are too few"
    )


def test_a_throttled_process_is_no_conclusion() -> None:
    pairs = simulated(1.10, 0, 0)
    pairs[2] = (Sample(1e-4, "software power cap"), pairs[2][1])
    assert compare("test", pairs).conclusion == "undecided: throttled (software power cap)"


# --- the processes -------------------------------------------------------------------------------


def processes(base: Process, head: Process) -> Any:
    return {"base": [base] * PAIRS, "head": [head] * PAIRS}


def test_a_benchmark_that_fails_is_not_compared() -> None:
    good = Process({"test": Sample(1.0)})
    bad = Process({}, {"test": ("failed", "1 of 2048 elements differ")})
    assert outcome("test", processes(good, bad)) == (
        "failed",
        "failed in head: 1 of 2048 elements differ",
    )
    assert outcome("test", processes(bad, good))[0] == "not-run"  # type: ignore[index]
    assert outcome("other", processes(good, good)) == ("not-run", "not timed in both revisions")
    assert isinstance(outcome("test", processes(good, good)), Comparison)


def test_every_sample_is_kept() -> None:
    pairs = simulated(1.10, 0.01, 0)
    lines = list(samples_of(compare("test", pairs), "torch", {"base": "a" * 40, "head": "b" * 40}))
    kept = {each.variant: each.value for each in lines if each.quantity == "median us"}
    assert len(kept) == 2 * PAIRS
    assert kept["pair 03, head bbbbbbbbbbbb"] == pytest.approx(pairs[2][1].seconds * 1e6)
    ratios = {each.variant: each.value for each in lines if each.quantity == "head over base"}
    assert ratios["low"] < ratios[""] < ratios["high"]


def test_the_table_says_what_and_how_sure() -> None:
    text = report([compare("suites/bench/test_x.py::test_rows[torch]", simulated(1.1, 0.01, 0))])
    assert "rows[torch]" in text
    assert "slower" in text
    assert "…" in text
    assert max(map(len, text.splitlines())) <= 110


def test_arguments_are_handed_on_as_another_tree_takes_them(tmp_path: Path) -> None:
    root = tmp_path
    given = [f"{root}/suites/bench/test_a.py::test_b", "-k", "rows", "--baseline", "HEAD~1"]
    given += ["--record=x.jsonl", "--impl", "mine", "--benchmark-json", "y.json", "--baseline=HEAD"]
    invocation = SimpleNamespace(args=given, dir=root)
    config: Any = SimpleNamespace(args=given[:1], invocation_params=invocation)
    assert paired.arguments_of(config, root) == [
        "suites/bench/test_a.py::test_b",
        *("-k", "rows", "--impl", "mine"),
    ]


# --- the other tree ------------------------------------------------------------------------------

CONFTEST = """
import json, subprocess, pytest

def pytest_addoption(parser):
    parser.addoption("--record")

def pytest_sessionfinish(session):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    lines = [{"type": "header", "commit": commit.strip()}]
    lines += [{"test": "a", "status": "failed", "detail": "b"}, {"quantity": "c"}]
    with open(session.config.getoption("--record"), "w") as file:
        file.write("\\n".join(map(json.dumps, lines)))
"""
BENCHMARK = """
import time

def test_sleep(benchmark):
    benchmark.pedantic(time.sleep, (0.01,), rounds=3)
"""


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *settings, "-C", str(tmp_path), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    return git


@pytest.fixture
def repository(tmp_path: Path, git: Callable[..., str]) -> Path:
    """Two commits: one without the tier, and one with it."""
    git("init", "-q")
    (tmp_path / "README").write_text("")
    git("add", ".")
    git("commit", "-qm", "one")
    bench = tmp_path / "suites" / "bench"
    bench.mkdir(parents=True)
    (bench / "conftest.py").write_text(CONFTEST)
    (bench / "test_sleep.py").write_text(BENCHMARK)
    (tmp_path / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    git("add", ".")
    git("commit", "-qm", "two")
    return tmp_path


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("nonsense", "--baseline nonsense: no such revision"),
        ("HEAD~1", "--baseline HEAD~1: that tree has no suites/bench"),
        ("--all", "--baseline --all: "),
    ],
)
def test_a_revision_that_cannot_be_compared_is_one_line(
    repository: Path, revision: str, said: str
) -> None:
    with pytest.raises(BaselineError) as caught:
        commit_of(repository, revision)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tree_with_changes_belongs_to_no_revision(repository: Path) -> None:
    assert len(commit_of(repository, "HEAD")) == 40
    (repository / "README").write_text("changed")
    with pytest.raises(BaselineError, match="the working tree has changes"):
        commit_of(repository, "HEAD")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, BaselineError, OSError])
def test_the_other_tree_is_gone_afterwards(
    repository: Path, git: Callable[..., str], error: type[BaseException] | None
) -> None:
    seen: list[Path] = []

    def use() -> None:
        with worktree(repository, git("rev-parse", "HEAD")) as tree:
            seen.append(tree)
            assert (tree / "suites/bench/conftest.py").is_file()
            assert len(git("worktree", "list").splitlines()) == 2
            if error:
                raise error("stop")

    if error:
        with pytest.raises(error):
            use()
    else:
        use()
    assert not seen[0].parent.exists()
    assert len(git("worktree", "list").splitlines()) == 1


def test_a_process_is_one_sample(
    repository: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-benchmark times nothing in a worker, as this test may be in one.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    commit = git("rev-parse", "HEAD")
    found = time_tree(repository, ["suites/bench"], commit)
    (test,) = found.samples
    assert test == "suites/bench/test_sleep.py::test_sleep"
    assert 0.009 < found.samples[test].seconds < 0.5
    assert found.reasons == {"a": ("failed", "b")}


def test_a_process_of_another_tree_is_noticed(repository: Path) -> None:
    with pytest.raises(BaselineError, match="is another checkout on PYTHONPATH"):
        time_tree(repository, ["suites/bench"], "0" * 40)


def test_a_process_that_fails_is_one_line(repository: Path, git: Callable[..., str]) -> None:
    with pytest.raises(BaselineError, match="ended with exit code 4") as caught:
        time_tree(repository, ["suites/bench", "--nonsense"], git("rev-parse", "HEAD"))
    assert "\n" not in str(caught.value)


# --- all of it -----------------------------------------------------------------------------------

SESSION = """
import random
from pathlib import Path

import pytest

from suites.bench import paired
from suites.bench.paired import Process, Sample

draw = random.Random(0)
TESTS = {"cold": 1.10, "warm": 1.0}


def time_tree(tree, arguments, commit):
    samples = {}
    for how, slowdown in TESTS.items():
        name = f"test_rows[eager-{how}-scatter_topology_witnesses_-rows-1-torch]"
        test = f"suites/bench/test_witness.py::{name}"
        seconds = 1e-4 * (1 + draw.gauss(0, 0.01)) * (slowdown if commit == "head" else 1)
        samples[test] = Sample(seconds)
    return Process(samples)


class Tree:
    def __enter__(self):
        return Path("base")

    def __exit__(self, *error):
        Path("gone").touch()


paired.time_tree = time_tree
paired.worktree = lambda root, commit: Tree()
paired.commit_of = lambda root, revision: "head" if revision == "HEAD" else "base"
"""


def test_a_run_reports_each_benchmark_as_a_test(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(SESSION)
    bench = str(ROOT / "suites" / "bench")
    chosen = "test_rows and scatter and rows-1-torch"
    done = run_pytest(tmp_path, "-p", "planted", bench, "--baseline", "main", "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert done.stdout.count("pair ") >= 2 * PAIRS
    lines = [line for line in done.stdout.splitlines() if "rows[eager" in line]
    assert ["slower" in line for line in lines] == [True, False]
    assert "1 undecided: no difference to be seen" in done.stdout
    assert (tmp_path / "gone").exists()
    record: Sequence[Any] = record_of(tmp_path)
    kept = [line for line in record if getattr(line, "quantity", "") == "median us"]
    assert len(kept) == 2 * 2 * PAIRS
    assert {line.implementation for line in kept} == {"torch"}


def test_a_bad_revision_is_a_mistake_on_the_command_line(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, str(ROOT / "suites" / "bench"), "--baseline", "nonsense")
    assert done.returncode == 4
    (line,) = [line for line in done.stderr.splitlines() if "--baseline" in line]
    assert line == "ERROR: --baseline nonsense: no such revision; `git log --oneline` shows some"
