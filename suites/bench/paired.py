"""Base against head: two trees, in processes that take turns on one device.

Noise lies between processes, not within one, so a process is one sample: the median of its rounds.
Pairs go base, head, head, base, and so on (ABBA), so that what drifts meets both alike.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from golden.record import Measurement, Status, Verdict
from suites import recording
from suites.bench.figures import MEDIAN, table
from suites.bench.timing import MICRO

PAIRS: Final = 8
CONFIDENCE: Final = 0.95
OURS: Final = (  # options that are for this process and not for those it starts
    "--baseline",
    "--record",
    "--benchmark-json",
    "--benchmark-save",
    "--benchmark-compare",
)

Side = Literal["base", "head"]


class BaselineError(ValueError):
    """A comparison that cannot be made: one line that says why and what to do."""


# --- the other tree ------------------------------------------------------------------------------


def commit_of(root: Path, revision: str) -> str:
    """The commit to compare with. Raises BaselineError where there can be no comparison."""
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found.returncode:
        reason = found.stderr.strip() or "no such revision; `git log --oneline` shows some"
        raise BaselineError(f"--baseline {revision}: {reason}")
    commit = found.stdout.strip()
    if _git(root, "cat-file", "-e", f"{commit}:suites/bench/conftest.py").returncode:
        raise BaselineError(
            f"--baseline {revision}: that tree has no suites/bench; choose a later revision"
        )
    if _git(root, "status", "--porcelain").stdout:
        raise BaselineError(
            "--baseline: the working tree has changes, so its figures would belong to no revision; "
            "commit or stash them first"
        )
    return commit


@contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """The tree of a commit in a folder of its own, which is gone afterwards, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="baseline-"))
    try:
        tree = folder / commit[:12]
        added = _git(root, "worktree", "add", "--detach", str(tree), commit)
        if added.returncode:
            raise BaselineError(f"--baseline: git worktree fails: {added.stderr.strip()}")
        yield tree
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _git(root, "worktree", "prune")  # forgets a tree whose folder is gone


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BaselineError(f"--baseline needs git: {error}") from error


# --- one process ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Of one benchmark in one process: the median, in seconds, and why not to believe it."""

    seconds: float
    throttled: str = ""


@dataclass(frozen=True)
class Process:
    """What one process left: samples by test, and of tests without one the reason."""

    samples: Mapping[str, Sample]
    reasons: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def time_tree(tree: Path, arguments: Sequence[str], commit: str) -> Process:
    """Run the tier in a tree. Raises BaselineError where the run itself fails."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        figures, record = Path(folder, "figures.json"), Path(folder, "record.jsonl")
        command = [sys.executable, "-m", "pytest", *arguments, f"--benchmark-json={figures}"]
        run = subprocess.run(
            [*command, f"--record={record}", "-p", "no:cacheprovider"],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            said = next((x for x in run.stdout.splitlines()[::-1] if x.strip()), "")
            said = next((x for x in run.stderr.splitlines() if x.startswith("ERROR")), said)
            raise BaselineError(
                f"--baseline: pytest in {commit[:12]} ended with exit code {run.returncode}: {said}"
            )
        return Process(_samples(figures), _reasons(record, commit))


def _samples(figures: Path) -> dict[str, Sample]:
    if not figures.is_file() or not figures.stat().st_size:
        return {}
    return {
        each["fullname"]: Sample(
            each["stats"]["median"], each["extra_info"].get("not to be believed", "")
        )
        for each in json.loads(figures.read_bytes())["benchmarks"]
    }


def _reasons(record: Path, commit: str) -> dict[str, tuple[str, str]]:
    """Status and detail of what did not pass; read loosely, as another revision wrote it."""
    if not record.is_file():
        return {}
    header, *lines = (json.loads(line) for line in record.read_text().splitlines())
    if header.get("commit") != commit:
        raise BaselineError(
            f"--baseline: a process in {commit[:12]} ran {header.get('commit') or 'no checkout'}; "
            "is another checkout on PYTHONPATH?"
        )
    return {
        line["test"]: (line["status"], line["detail"])
        for line in lines
        if "status" in line and line["status"] != "passed"
    }


# --- the statistics ------------------------------------------------------------------------------


def interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Of the centre of symmetric differences, by the signed-rank test (Hodges and Lehmann).

    It takes every centre that the test does not reject: between the averages of two differences
    that are as far from the ends as the test's critical value. Exact for few samples, whatever
    their distribution. Infinite where there are too few to reject anything.
    """
    n = len(differences)
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(differences, 2))
    cut = critical_value(n, confidence)
    if cut is None:
        return -math.inf, math.inf
    return averages[cut], averages[-1 - cut]


def critical_value(n: int, confidence: float) -> int | None:
    """The largest sum of ranks that the two-sided signed-rank test rejects; None for none."""
    ways = [1]  # of n signs, how many give each sum of ranks
    for rank in range(1, n + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    limit, below = 2**n * (1 - confidence) / 2, 0
    for total, count in enumerate(ways):
        below += count
        if below > limit:
            return total - 1 if total else None
    return None


@dataclass(frozen=True)
class Comparison:
    """Head over base of one benchmark. ``conclusion``: slower, faster, or why it is undecided."""

    test: str
    pairs: Sequence[tuple[Sample, Sample]]
    ratio: float
    low: float
    high: float
    conclusion: str


def compare(test: str, pairs: Sequence[tuple[Sample, Sample]]) -> Comparison:
    logs = [math.log(head.seconds / base.seconds) for base, head in pairs]
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(logs, 2))
    centre = (averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]) / 2
    low, high = interval(logs)
    return Comparison(
        test,
        pairs,
        math.exp(centre),
        math.exp(low),
        _exp(high),
        _conclusion(pairs, centre, low, high),
    )


def _exp(value: float) -> float:
    return math.inf if value == math.inf else math.exp(value)


def _conclusion(
    pairs: Sequence[tuple[Sample, Sample]], centre: float, low: float, high: float
) -> str:
    throttled = [each.throttled for pair in pairs for each in pair if each.throttled]
    if throttled:
        return f"undecided: throttled ({throttled[0]})"
    if math.isinf(high):
        return f"undecided: {len(pairs)} pairs are too few"
    if low <= 0 <= high:
        return "undecided: no difference to be seen"
    if high - low > abs(centre):
        return "undecided: more noise than difference"
    return "slower" if centre > 0 else "faster"


# --- all of it -----------------------------------------------------------------------------------


def run(session: pytest.Session, root: Path, revision: str) -> list[Comparison]:
    """Time both trees in turn, and report each collected benchmark as a test of this session."""
    config = session.config
    commits: dict[Side, str] = {"base": commit_of(root, revision), "head": commit_of(root, "HEAD")}
    arguments = arguments_of(config, root)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    with _terminated_like_interrupted(), worktree(root, commits["base"]) as tree:
        trees: dict[Side, Path] = {"base": tree, "head": root}
        processes: dict[Side, list[Process]] = {"base": [], "head": []}
        for pair, side in turns(PAIRS):
            started = time.monotonic()
            processes[side].append(time_tree(trees[side], arguments, commits[side]))
            if terminal is not None:
                seconds = time.monotonic() - started
                terminal.write_line(
                    f"pair {pair + 1} of {PAIRS}: {side} {commits[side][:12]}, {seconds:.0f} s"
                )
    comparisons = []
    for item in session.items:
        found = outcome(item.nodeid, processes)
        if isinstance(found, Comparison):
            comparisons.append(found)
        item.ihook.pytest_runtest_logreport(report=_report(item, found, commits))
    return comparisons


def turns(pairs: int) -> Iterator[tuple[int, Side]]:
    """Base, head, head, base, …: which pair, and whose turn it is."""
    for pair in range(pairs):
        order: tuple[Side, Side] = ("head", "base") if pair % 2 else ("base", "head")
        for side in order:
            yield pair, side


def arguments_of(config: pytest.Config, root: Path) -> list[str]:
    """This run's arguments as another tree takes them: paths below the root, without ours."""
    paths = {*config.args}
    kept, skip = [], False
    for argument in map(str, config.invocation_params.args):
        name, has_value, _ = argument.partition("=")
        if skip or name in OURS:
            skip = not skip and not has_value
        elif argument in paths:
            path, *rest = argument.split("::")
            below = os.path.relpath(config.invocation_params.dir / path, root)
            kept.append("::".join([below, *rest]))
        else:
            kept.append(argument)
    return kept


def outcome(
    test: str, processes: Mapping[Side, Sequence[Process]]
) -> Comparison | tuple[Status, str]:
    """The comparison of one test, or its status and why there is none."""
    pairs = [
        (base.samples[test], head.samples[test])
        for base, head in zip(processes["base"], processes["head"], strict=True)
        if test in base.samples and test in head.samples
    ]
    sides: tuple[Side, Side] = ("head", "base")
    for side in sides:
        for process in processes[side]:
            status, detail = process.reasons.get(test, ("", ""))
            if status and status not in ("not-run", "unsupported"):
                return "failed" if side == "head" else "not-run", f"{status} in {side}: {detail}"
    if pairs:
        return compare(test, pairs)
    reasons = [p.reasons[test][1] for side in sides for p in processes[side] if test in p.reasons]
    return "not-run", reasons[0] if reasons else "not timed in both revisions"


def _report(
    item: pytest.Item, found: Comparison | tuple[Status, str], commits: Mapping[Side, str]
) -> pytest.TestReport:
    name = getattr(item, "callspec", None)
    tested = name.params.get("implementation") if name else None
    implementation = tested.name if tested else ""
    verdict = partial(Verdict, item.nodeid, implementation, ())
    if isinstance(found, Comparison):
        properties = [recording.attach(verdict("passed", len(found.pairs), found.conclusion))]
        properties += map(recording.attach, samples_of(found, implementation, commits))
        return _test_report(item, "passed", None, properties)
    status, detail = found
    properties = [recording.attach(verdict(status, 0, detail))]
    if status == "failed":
        return _test_report(item, "failed", detail, properties)
    skipped = str(item.path), item.location[1] or 0, f"Skipped: {detail}"
    return _test_report(item, "skipped", skipped, properties)


def _test_report(
    item: pytest.Item,
    result: Literal["passed", "failed", "skipped"],
    longrepr: Any,
    properties: list[tuple[str, object]],
) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid, item.location, {}, result, longrepr, "call", user_properties=properties
    )


def samples_of(
    comparison: Comparison, implementation: str, commits: Mapping[Side, str]
) -> Iterator[Measurement]:
    """The medians of all processes, so that another reader can judge by another rule."""
    line = partial(Measurement, implementation, comparison.test)
    for number, pair in enumerate(comparison.pairs, 1):
        for side, sample in zip(("base", "head"), pair, strict=True):
            variant = f"pair {number:02d}, {side} {commits[side][:12]}"  # type: ignore[index]
            yield line(MEDIAN, variant, sample.seconds * MICRO)
            yield line("throttled", variant, float(bool(sample.throttled)))
    yield line("head over base", "", comparison.ratio)
    for variant, value in (("low", comparison.low), ("high", comparison.high)):
        if math.isfinite(value):
            yield line("head over base", variant, value)


def report(comparisons: Sequence[Comparison]) -> str:
    """A line a benchmark, as plain text."""
    rows = []
    for each in comparisons:
        base, head = (
            sorted(pair[side].seconds for pair in each.pairs)[len(each.pairs) // 2] * MICRO
            for side in (0, 1)
        )
        rows.append(
            [
                each.test.partition("::test_")[2],
                each.conclusion.partition(":")[0],
                f"{base:,.4g}",
                f"{head:,.4g}",
                f"{each.ratio:.3f}",
                f"{each.low:.3f} … {each.high:.3f}",
            ]
        )
    headings = ["benchmark", "head is", "base us", "head us", "ratio", f"{CONFIDENCE:.0%} interval"]
    reasons = Counter(each.conclusion for each in comparisons if ":" in each.conclusion)
    return "\n".join([table(headings, rows, left=2), *(f"{n} {why}" for why, n in reasons.items())])


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A SIGTERM ends the run as Ctrl-C does, so that the other tree is removed."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
