"""What is run, in which order, and what becomes of a mutant; whole runs of the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import msgspec
import pytest

from golden.record import Footer, Header, Line
from golden.record import Mutant as MutantLine
from kernels.cuda import ToolchainMissing, host
from suites.mutation import engine, equivalent, kept, summary
from suites.mutation.__main__ import main, report
from suites.mutation.engine import Engine, Outcome
from suites.mutation.equivalent import Equivalent
from suites.mutation.mutants import mutants

ROOT = Path(__file__).parents[3]
MUTANT = next(m for m in mutants() if m.file == "witness/torch_reference.py")


# --- which tests ---------------------------------------------------------------------------------


def item(
    name: str,
    path: str,
    implementation: str,
    *operations: str,
    contracts: Sequence[str] = (),
    generates: bool = False,
) -> pytest.Item:
    """What the engine looks at of a collected test."""

    def marks(kind: str) -> list[SimpleNamespace]:
        known = {"operations": operations, "contract": contracts}
        if generates:
            known["hypothesis"] = ()
        return [SimpleNamespace(args=known[kind])] if kind in known else []

    found = Collected()
    found.name, found.nodeid, found.path = (
        f"{name}[{implementation}]",
        f"{path}::{name}",
        Path(path),
    )
    found.callspec = SimpleNamespace(
        params={"implementation": SimpleNamespace(name=implementation)}
    )
    found.iter_markers = marks
    return cast(pytest.Item, found)


class Collected:
    """As pytest's items are: known by identity."""

    name: str
    nodeid: str
    path: Path
    callspec: SimpleNamespace
    iter_markers: Callable[[str], list[SimpleNamespace]]


def test_vectors_come_first_and_then_an_example_of_each_test() -> None:
    (operation,) = sorted(MUTANT.operations)[:1]
    second, first = (item("test_b", "witness/test_a.py", "torch", operation) for _ in range(2))
    other = item("test_c", "witness/test_a.py", "torch", operation)
    vector = item("test_vector", "test_golden.py", "torch", operation)
    found = list(engine.candidates(MUTANT, [first, second, other, vector]))
    assert found == [vector, first, other, second]


def test_what_generates_many_cases_waits_for_the_sanitizer_and_that_for_the_rest() -> None:
    mutant = next(m for m in mutants() if m.file == "witness/cuda_fused.cu")
    (operation,) = sorted(mutant.operations)[:1]
    many = item("test_b", "witness/test_a.py", "cuda", operation, generates=True)
    sanitized = item("test_c", "sanitize/test_a.py", "cuda", operation)
    first, second = (item("test_d", "witness/test_a.py", "cuda", operation) for _ in range(2))
    found = list(engine.candidates(mutant, [many, sanitized, first, second]))
    assert found == [first, sanitized, many, second]


def test_a_glance_is_at_vectors_and_at_one_example_of_each_test() -> None:
    (operation,) = sorted(MUTANT.operations)[:1]
    first, second = (item("test_b", "witness/test_a.py", "torch", operation) for _ in range(2))
    vectors = [item("test_vector", "test_golden.py", "torch", operation) for _ in range(2)]
    found = [*engine.candidates(MUTANT, [first, second, *vectors], glance=True)]
    assert found == [*vectors, first]


@pytest.mark.parametrize(
    "left",
    [
        item("test_b", "witness/test_a.py", "triton", *MUTANT.operations),
        item("test_b", "witness/test_a.py", "torch", "merge_softmax_stats"),
        item("test_b", "sanitize/test_a.py", "torch", *MUTANT.operations),
        item(engine.ELSEWHERE, "witness/test_a.py", "torch", *MUTANT.operations),
    ],
)
def test_tests_that_cannot_tell_are_left_out(left: pytest.Item) -> None:
    assert list(engine.candidates(MUTANT, [left])) == []


# --- what becomes of a mutant --------------------------------------------------------------------

TESTS = [
    item(f"test_{n}", "a.py", "torch", "segment_of", contracts=[f"contract-{n}"]) for n in range(3)
]
PASSED, FAILED = engine._Report(False, 4, "", 1.0), engine._Report(True, 2, "wrong", 2.5)


def outcome(
    *reports: engine._Report,
    exitcode: int = 0,
    stillborn: str | None = None,
    depth: engine.Depth = "failure",
) -> Outcome:
    process = cast(Any, SimpleNamespace(exitcode=exitcode))
    child = engine._Child(MUTANT, TESTS, process, cast(Any, None), list(reports), stillborn, depth)
    return engine._outcome(child)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            outcome(PASSED, FAILED),
            Outcome("killed", ("contract-1",), 6, 2.5, "a.py::test_1", "wrong"),
        ),
        (outcome(PASSED, PASSED, PASSED), Outcome("survived", (), 12, 1.0)),
        (
            outcome(PASSED, exitcode=-signal.SIGXCPU),
            Outcome("timed-out", ("contract-1",), 5, 61.0, "a.py::test_1", "60 s"),
        ),
        (
            outcome(PASSED, exitcode=-signal.SIGSEGV),
            Outcome(
                "killed", ("contract-1",), 5, 1.0, "a.py::test_1", "the process ended with -11"
            ),
        ),
        (outcome(stillborn="no such name"), Outcome("stillborn", why="no such name")),
    ],
    ids=["killed", "survived", "timed-out", "crashed", "stillborn"],
)
def test_an_outcome_is_what_a_child_has_told(found: Outcome, expected: Outcome) -> None:
    assert found == expected


def test_what_else_failed_is_told_of_a_run_of_all_tests() -> None:
    found = outcome(PASSED, FAILED, FAILED, depth="all")
    assert (found.contracts, found.cases) == (("contract-1",), 6)
    assert found.kills == {"segment_of": (("contract-1",), ("contract-2",))}
    assert outcome(PASSED, FAILED, FAILED, exitcode=-6, depth="all").kills == {}
    assert outcome(PASSED, FAILED).kills == {}


def test_a_process_that_ends_by_itself_says_nothing_of_its_mutant() -> None:
    with pytest.raises(RuntimeError, match=r"a\.py::test_1 ended the process"):
        outcome(PASSED, exitcode=1)


def test_a_suite_that_fails_without_a_mutant_says_nothing_of_mutants() -> None:
    under_test = Engine([MUTANT], 1, lambda _: "failure")

    def protocol(item: object, nextitem: object) -> None:
        failed = SimpleNamespace(user_properties=[], failed=True, longrepr="wrong")
        under_test.pytest_runtest_logreport(cast(Any, failed))

    vector = cast(Any, item("test_vector", "test_golden.py", "torch"))
    vector.config = SimpleNamespace(hook=SimpleNamespace(pytest_runtest_protocol=protocol))
    with pytest.raises(pytest.UsageError, match="fails without any mutant, wrong; mend"):
        under_test._smoke([vector])


# --- what is said of it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "listed", "status", "says"),
    [
        ("killed", False, 0, "1 mutants, 0 more that do not compile"),
        ("timed-out", False, 0, f"timed-out: {MUTANT.name} (torch)\n  {MUTANT.diff[0]}"),
        ("survived", False, 1, f"survived: {MUTANT.name} (torch)\n  {MUTANT.diff[0]}"),
        ("survived", True, 0, "1 mutants, 0 more that do not compile"),
        ("killed", True, 1, f"equivalent: {MUTANT.name}: it was killed"),
        ("stillborn", False, 0, "0 mutants, 1 more that do not compile"),
    ],
)
def test_a_survivor_and_a_stale_equivalent_are_failures(
    kind: Any,
    listed: bool,
    status: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = {MUTANT.name: Equivalent(MUTANT.name, MUTANT.diff, "a reason")} if listed else {}
    contracts = ("witness.merge.budget",) if kind == "killed" else ()
    outcomes = {MUTANT: Outcome(kind, contracts, 3, 0.5)}
    assert report(outcomes, [MUTANT], entries, ["x"]) == status
    assert says in capsys.readouterr().out


def test_what_is_out_of_reach_is_not_called_equivalent() -> None:
    outcomes = {MUTANT: Outcome("survived")}
    for needs, expected in (("", "equivalent"), ("a GPU", "out-of-reach")):
        entries = {MUTANT.name: Equivalent(MUTANT.name, MUTANT.diff, "a reason", needs)}
        (line,) = summary.lines(outcomes, entries)
        assert line.outcome == expected


def test_a_contract_that_nothing_closes_fails_a_matrix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    outcomes = {MUTANT: Outcome("killed", ("witness.merge.budget",), 3, 0.5)}
    assert report(outcomes, [MUTANT], {}, ["x"], closed=True) == 1
    assert "closure: xattention.merge.any-number: no mutant shows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "listed", "depth"),
    [([], False, "failure"), (["--matrix"], False, "all"), (["--matrix"], True, "glance")],
)
def test_how_deep_a_mutant_is_looked_at(
    arguments: list[str],
    listed: bool,
    depth: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def find(_: object, depth: str) -> Outcome:
        asked.append(depth)
        return Outcome("survived")

    monkeypatch.setattr(kept, "find", find)
    entries = {MUTANT.name: Equivalent(MUTANT.name, MUTANT.diff, "a reason")} if listed else {}
    monkeypatch.setattr(equivalent, "load", lambda: entries)
    main([MUTANT.name, *arguments])
    assert asked == [depth]


# --- the command ---------------------------------------------------------------------------------


def mutation(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "suites.mutation", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_sample_is_killed_recorded_and_kept(tmp_path: Path) -> None:
    """The files of the checkout are what they were."""
    sample = ("--sample", "12", "--impl", "torch", "--impl", "triton")
    kernels = {
        path: path.read_bytes() for path in (ROOT / "kernels").rglob("*.*") if path.is_file()
    }
    found = mutation(tmp_path, *sample)
    assert found.returncode == 0, found.stdout + found.stderr
    assert {path: path.read_bytes() for path in kernels} == kernels

    lines = (tmp_path / ".conformance" / "mutants.jsonl").read_bytes().splitlines()
    schema = json.loads((ROOT / "golden" / "schema" / "record.json").read_text())
    for line in lines:
        jsonschema.validate(json.loads(line), schema)
    header, *body, footer = (msgspec.json.decode(line, type=Line) for line in lines)
    assert isinstance(header, Header)
    assert isinstance(footer, Footer)
    assert all(isinstance(line, MutantLine) and line.contracts for line in body)
    assert len(body) == 12
    assert (footer.statuses, footer.cases, footer.exit_status) == ({}, 0, 0)

    again = mutation(tmp_path, *sample, "-j", "1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1/" in found.stdout
    assert "1/" not in again.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--impl", "none"], "argument --impl: invalid choice: 'none'"),
        (["--sample", "0"], "--sample 0: give a number of at least 1"),
        (["-j", "-1"], "-j -1: give a number of at least 1"),
        (["nothing"], "no mutant has such a name; --list shows them all"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_without_a_compiler_no_mutant_of_cuda_is_called_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(host, "compiler", lambda: without())
    with pytest.raises(SystemExit):
        main(["witness/cuda_fused.cu:*"])
    assert "no g++; install it" in capsys.readouterr().err


def without() -> None:
    raise ToolchainMissing("no g++; install it")


def test_a_list_shows_what_a_mutant_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", MUTANT.name]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [f"{MUTANT.name} (torch)", *(f"  {line}" for line in MUTANT.diff)]
