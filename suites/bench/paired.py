"""Base against head: two trees, in processes that take turns on one device.

Noise lies between processes, not within one, so a process is one sample: the median of its rounds.
Pairs go base, head, head, base, and so on (ABBA), so that what drifts meets both alike. All
benchmarks are screened, those that `reports.speed` flags are confirmed with fresh pairs, and every
pair goes to the record.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from golden.record import Pair, Status, Verdict
from reports.model import Timing
from reports.speed import CONFIDENCE, FLOOR, PAIRS, Limit, Phase, flagged, judge, limit_of
from suites import recording
from suites.bench.figures import table
from suites.bench.timing import MICRO

OURS: Final = (  # options that are for this process and not for those it starts
    "--baseline",
    "--record",
    "--benchmark-json",
    "--benchmark-save",
    "--benchmark-compare",
)

# A history of nights can only raise a limit, so what is flagged here holds all that a report flags.
SCREEN: Final = Limit(FLOOR, 0)

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


Phases = Mapping[Phase, Mapping[Side, Sequence[Process]]]


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


# --- all of it -----------------------------------------------------------------------------------


def run(session: pytest.Session, root: Path, revision: str, device: str) -> list[Timing]:
    """Time both trees in turn, and report each collected benchmark as a test of this session."""
    commits: dict[Side, str] = {"base": commit_of(root, revision), "head": commit_of(root, "HEAD")}
    with _terminated_like_interrupted(), worktree(root, commits["base"]) as tree:
        trees: dict[Side, Path] = {"base": tree, "head": root}
        phases = _screen_and_confirm(session, root, trees, commits)
    timings = []
    for item in session.items:
        found = outcome(item.nodeid, _implementation(item), commits, phases)
        timing = None
        if isinstance(found, list):
            timing = judge(found, device, limit_of(()))
            timings.append(timing)
        item.ihook.pytest_runtest_logreport(report=_report(item, found, timing))
    return timings


def _screen_and_confirm(
    session: pytest.Session, root: Path, trees: Mapping[Side, Path], commits: Mapping[Side, str]
) -> Phases:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    say = terminal.write_line if terminal is not None else print
    arguments = arguments_of(session.config, root)
    screen = _take_turns("screen", trees, commits, arguments, say)
    chosen = []
    for item in session.items:
        found = outcome(item.nodeid, _implementation(item), commits, {"screen": screen})
        if isinstance(found, list) and flagged(found, SCREEN):
            chosen.append(item.nodeid)
    say(f"{len(chosen)} of {len(session.items)} benchmarks to confirm")
    if not chosen:
        return {"screen": screen}
    arguments = arguments_of(session.config, root, chosen)
    fresh = _take_turns("confirmation", trees, commits, arguments, say)
    return {"screen": screen, "confirmation": fresh}


def _take_turns(
    phase: Phase,
    trees: Mapping[Side, Path],
    commits: Mapping[Side, str],
    arguments: Sequence[str],
    say: Callable[[str], object],
) -> dict[Side, list[Process]]:
    processes: dict[Side, list[Process]] = {"base": [], "head": []}
    pairs = PAIRS[phase]
    for pair, side in turns(pairs):
        started = time.monotonic()
        processes[side].append(time_tree(trees[side], arguments, commits[side]))
        seconds = time.monotonic() - started
        say(f"{phase}, pair {pair + 1} of {pairs}: {side} {commits[side][:12]}, {seconds:.0f} s")
    return processes


def turns(pairs: int) -> Iterator[tuple[int, Side]]:
    """Base, head, head, base, …: which pair, and whose turn it is."""
    for pair in range(pairs):
        order: tuple[Side, Side] = ("head", "base") if pair % 2 else ("base", "head")
        for side in order:
            yield pair, side


def arguments_of(config: pytest.Config, root: Path, tests: Sequence[str] = ()) -> list[str]:
    """This run's arguments as another tree takes them: paths below the root, without ours.

    ``tests``: node ids in the place of the paths.
    """
    paths = {*config.args}
    kept, skip = [], False
    for argument in map(str, config.invocation_params.args):
        name, has_value, _ = argument.partition("=")
        if skip or name in OURS:
            skip = not skip and not has_value
        elif argument not in paths:
            kept.append(argument)
        elif not tests:
            path, *rest = argument.split("::")
            below = os.path.relpath(config.invocation_params.dir / path, root)
            kept.append("::".join([below, *rest]))
    return [*kept, *tests]


def outcome(
    test: str, implementation: str, commits: Mapping[Side, str], phases: Phases
) -> list[Pair] | tuple[Status, str]:
    """The pairs of one test, or its status and why there are none."""
    sides: tuple[Side, Side] = ("head", "base")
    by_side = [
        (side, process.reasons[test])
        for side in sides
        for processes in phases.values()
        for process in processes[side]
        if test in process.reasons
    ]
    for side, (status, detail) in by_side:
        if status not in ("not-run", "unsupported"):
            return "failed" if side == "head" else "not-run", f"{status} in {side}: {detail}"
    pairs = [
        Pair(
            test,
            implementation,
            phase,
            number,
            commits["base"],
            commits["head"],
            base.samples[test].seconds * MICRO,
            head.samples[test].seconds * MICRO,
            base.samples[test].throttled or head.samples[test].throttled,
        )
        for phase, processes in phases.items()
        for number, (base, head) in enumerate(
            zip(processes["base"], processes["head"], strict=True), 1
        )
        if test in base.samples and test in head.samples
    ]
    if pairs:
        return pairs
    return "not-run", by_side[0][1][1] if by_side else "not timed in both revisions"


def _implementation(item: pytest.Item) -> str:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return parameters["implementation"].name if "implementation" in parameters else ""


def _report(
    item: pytest.Item, found: list[Pair] | tuple[Status, str], timing: Timing | None
) -> pytest.TestReport:
    verdict = partial(Verdict, item.nodeid, _implementation(item), ())
    if isinstance(found, list):
        assert timing is not None
        detail = f"{timing.verdict}: {timing.reason}" if timing.reason else timing.verdict
        properties = [recording.attach(verdict("passed", len(found), detail))]
        properties += map(recording.attach, found)
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


def report(timings: Sequence[Timing]) -> str:
    """A line a benchmark, as plain text."""
    rows = [
        [
            each.test.partition("::test_")[2],
            each.verdict,
            f"{each.base_us:,.4g}",
            f"{each.head_us:,.4g}",
            f"{each.ratio:.3f}",
            "" if each.low is None else f"{each.low:.3f} … {each.high:.3f}",
        ]
        for each in timings
    ]
    interval = f"{CONFIDENCE:.0%} interval"
    headings = ["benchmark", "head is", "base us", "head us", "ratio", interval]
    reasons = Counter(each.reason for each in timings if each.reason)
    limit = 100 * limit_of(()).value
    return "\n".join(
        [
            table(headings, rows, left=2),
            *(f"{count} inconclusive: {reason}" for reason, count in reasons.items()),
            f"limit {limit:.0f} %, as without a history of base against base",
        ]
    )


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
