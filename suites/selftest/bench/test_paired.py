"""Two trees compared: who is timed when, what is confirmed, and what is left behind."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from golden.record import Line, Pair, Verdict
from reports.model import Timing
from reports.speed import PAIRS, Phase
from suites.bench import paired
from suites.bench.paired import (
    BaselineError,
    Process,
    Sample,
    commit_of,
    outcome,
    report,
    time_tree,
    turns,
    worktree,
)
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

# --- the processes -------------------------------------------------------------------------------

COMMITS: dict[paired.Side, str] = {"base": "a" * 40, "head": "b" * 40}


def test_base_and_head_take_turns() -> None:
    """So that what drifts meets both alike."""
    assert [side for _, side in turns(2)] == ["base", "head", "head", "base"]
    assert [pair for pair, _ in turns(3)] == [0, 0, 1, 1, 2, 2]


def outcome_of(test: str, base: Process, head: Process, phase: Phase = "screen") -> Any:
    phases: paired.Phases = {phase: {"base": [base] * 2, "head": [head] * 2}}
    return outcome(test, "torch", COMMITS, phases)


def test_every_pair_is_kept() -> None:
    slow = Process({"test": Sample(2e-6, "power cap")})
    pairs = outcome_of("test", Process({"test": Sample(1e-6)}), slow, "confirmation")
    assert pairs == [
        Pair("test", "torch", "confirmation", n, "a" * 40, "b" * 40, 1.0, 2.0, "power cap")
        for n in (1, 2)
    ]


def test_a_benchmark_that_fails_is_not_compared() -> None:
    good = Process({"test": Sample(1.0)})
    bad = Process({}, {"test": ("failed", "1 of 2048 elements differ")})
    left_out = Process({}, {"test": ("not-run", "no device")})
    lacking = Process({}, {"test": ("unsupported", "no such operation")})
    assert outcome_of("test", good, bad) == ("failed", "failed in head: 1 of 2048 elements differ")
    assert outcome_of("test", bad, good)[0] == "not-run"
    assert outcome_of("test", good, left_out) == ("not-run", "no device")
    assert outcome_of("test", good, lacking) == ("not-run", "no such operation")
    assert outcome_of("other", good, good) == ("not-run", "not timed in both revisions")


def test_a_benchmark_that_fails_at_its_confirmation_has_failed() -> None:
    good = Process({"test": Sample(1.0)})
    bad = Process({}, {"test": ("crashed", "the device was lost")})
    phases: paired.Phases = {
        "screen": {"base": [good], "head": [good]},
        "confirmation": {"base": [good], "head": [bad]},
    }
    found = outcome("test", "torch", COMMITS, phases)
    assert found == ("failed", "crashed in head: the device was lost")


def test_the_table_says_what_and_how_sure() -> None:
    slower = Timing(
        *("suites/bench/test_x.py::test_rows[torch]", "torch", "cpu", 100.0, 110.0, 1.1, 1.08),
        *(1.12, 0.1, 0, 12, "slower", "", False),
    )
    few = ("suites/bench/test_x.py::test_few[torch]", "torch", "cpu", 0.0, 0.0, 0.0, None, None)
    undecided = Timing(*few, 0.1, 0, 0, "inconclusive", "0 pairs of the screen", False)
    text = report([slower, undecided, undecided])
    (line,) = [line for line in text.splitlines() if "rows[torch]" in line]
    cells = ["100", "110", "1.100", "1.080", "…", "1.120"]
    assert line.split() == ["rows[torch]", "slower", *cells]
    assert "2 inconclusive: 0 pairs of the screen" in text
    assert "None" not in text
    assert "limit 10 %" in text
    assert max(map(len, text.splitlines())) <= 110


def test_arguments_are_handed_on_as_another_tree_takes_them(tmp_path: Path) -> None:
    root = tmp_path
    given = [f"{root}/suites/bench/test_a.py::test_b", "-k", "rows", "--baseline", "HEAD~1"]
    given += ["--record=x.jsonl", "--impl", "mine", "--benchmark-json", "y.json", "--baseline=HEAD"]
    invocation = SimpleNamespace(args=given, dir=root)
    config: Any = SimpleNamespace(args=given[:1], invocation_params=invocation)
    options = ["-k", "rows", "--impl", "mine"]
    assert paired.arguments_of(config, root) == ["suites/bench/test_a.py::test_b", *options]
    assert paired.arguments_of(config, root, ["a.py::b[c]"]) == [*options, "a.py::b[c]"]


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

from suites.bench import paired
from suites.bench.paired import Process, Sample

draw = random.Random(0)
TESTS = {"cold": SLOWDOWN, "warm": 1.0}
started = []


def time_tree(tree, arguments, commit):
    samples = {}
    chosen = [argument for argument in arguments if "::" in argument]
    started.append(f"{tree} {chosen}")
    for how, slowdown in TESTS.items():
        name = f"test_rows[eager-{how}-scatter_topology_witnesses_-rows-1-torch]"
        test = f"suites/bench/test_witness.py::{name}"
        seconds = 1e-4 * (1 + draw.gauss(0, 0.001)) * (slowdown if commit == "head" else 1)
        if test in chosen or not chosen:
            samples[test] = Sample(seconds)
    return Process(samples)


class Tree:
    def __enter__(self):
        return Path("base")

    def __exit__(self, *error):
        Path("gone").write_text("\\n".join(started))


paired.time_tree = time_tree
paired.worktree = lambda root, commit: Tree()
paired.commit_of = lambda root, revision: "head" if revision == "HEAD" else "base"
"""


def compared(folder: Path, revision: str, slowdown: float = 1.25) -> tuple[str, list[Line]]:
    """What two benchmarks print and record of that revision and of a head with one slowdown."""
    (folder / "planted.py").write_text(SESSION.replace("SLOWDOWN", str(slowdown)))
    bench = str(ROOT / "suites" / "bench")
    chosen = "test_rows and scatter and rows-1-torch"
    done = run_pytest(folder, "-p", "planted", bench, "--baseline", revision, "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    return done.stdout, record_of(folder)


def test_what_is_flagged_is_confirmed_with_fresh_pairs(tmp_path: Path) -> None:
    printed, record = compared(tmp_path, "main")
    lines = [line.split() for line in printed.splitlines() if "rows[eager" in line]
    assert [line[1] for line in lines] == ["slower", "same"]
    assert "1 of 2 benchmarks to confirm" in printed
    assert printed.count("screen, pair ") == 2 * PAIRS["screen"]
    assert printed.count("confirmation, pair ") == 2 * PAIRS["confirmation"]
    of: dict[tuple[bool, str], list[int]] = {}
    for pair in record:
        if isinstance(pair, Pair):
            assert (pair.implementation, pair.base, pair.head) == ("torch", "base", "head")
            of.setdefault(("cold" in pair.test, pair.phase), []).append(pair.number)
    assert of == {
        (True, "screen"): [*range(1, 9)],
        (True, "confirmation"): [*range(1, 13)],
        (False, "screen"): [*range(1, 9)],
    }
    verdicts = [line for line in record if isinstance(line, Verdict)]
    assert [(verdict.cases, verdict.detail) for verdict in verdicts] == [
        (20, "slower"),
        (8, "same"),
    ]


def test_only_what_is_flagged_is_timed_again(tmp_path: Path) -> None:
    """By the lowest limit that a history may set, not by the one of this run."""
    compared(tmp_path, "main", slowdown=1.05)
    started = (tmp_path / "gone").read_text().splitlines()
    screen, confirmation = started[: 2 * PAIRS["screen"]], started[2 * PAIRS["screen"] :]
    assert {each.partition(" ")[2] for each in screen} == {"[]"}
    assert len(confirmation) == 2 * PAIRS["confirmation"]
    assert all(each.count("::") == 1 and "cold" in each for each in confirmation)
    for phase in (screen, confirmation):
        base = [each.startswith("base ") for each in phase]
        assert base == [True, False, False, True] * (len(phase) // 4)


def test_a_night_of_history_is_base_against_base(tmp_path: Path) -> None:
    """The same commit twice: nothing to confirm, and pairs that say so."""
    printed, record = compared(tmp_path, "HEAD")
    assert "0 of 2 benchmarks to confirm" in printed
    assert "confirmation, pair" not in printed
    assert {(p.base, p.head, p.phase) for p in record if isinstance(p, Pair)} == {
        ("head", "head", "screen")
    }


def test_a_bad_revision_is_a_mistake_on_the_command_line(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, str(ROOT / "suites" / "bench"), "--baseline", "nonsense")
    assert done.returncode == 4
    (line,) = [line for line in done.stderr.splitlines() if "--baseline" in line]
    assert line == "ERROR: --baseline nonsense: no such revision; `git log --oneline` shows some"
