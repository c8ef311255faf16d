"""Workers that misbehave: each has the verdict that it deserves, and the run goes on after it."""

import os
import re
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.record import Verdict
from kernels import catalog
from suites.cases import Case
from suites.runner import FAULTS, Runner
from suites.selftest.whole_runs import record_of, run_pytest
from suites.selftest.worker.declared import CPU, HOSTILE, hostile, indices, running
from suites.selftest.worker.hostile import UNLUCKY
from suites.verdicts import Nonconformance

# What becomes of the unlucky call: the status of its verdict, and what is said of it.
ENDS = {
    "segv": ("crashed", r"the worker was killed by SIGSEGV before it answered"),
    "abort": ("crashed", r"the worker was killed by SIGABRT"),
    "exits": ("crashed", r"the worker exited with 3 before"),
    "partial": (
        "crashed",
        r"the worker exited with 0 before the last 5 of the \d+ bytes of its buffers came",
    ),
    "silent": ("crashed", r"the worker closed its stdout before"),
    "raises": ("crashed", r"the call raised Overflow: too many$"),
    "hang": ("timed-out", r"the worker was stopped after 0\.3 seconds, before it answered"),
    "stall": ("timed-out", r"before the last 5 of the \d+ bytes of its buffers came"),
    "garbage": ("failed", r"it wrote b'load' to stdout where a frame begins with b'SCW1'"),
    "no_json": ("failed", r"its reply is no message, JSON is malformed"),
    "no_message": ("failed", r"its reply is no message, Invalid value 'tree'"),
    "no_dtype": ("failed", r"its reply is no message, Invalid enum value 'int31'"),
    "huge": ("failed", r"announces 2 bytes of JSON and 1099511627776 of buffers; at most"),
    "short": ("failed", r"its reply has \d+ bytes of buffers where it needs 4398046512"),
    "previous": ("failed", r"it answered call 2 when asked for call 3"),
    "shape": ("failed", r"shape|13|14"),
    "dtype": ("failed", r"float32"),
    "guard": ("failed", r"wrote outside context_lens: 1 element outside the view changed"),
    "input": ("failed", r"the call changed its input context_lens"),
}
OF_THE_CALL = ("raises", "shape", "dtype", "guard", "input")  # the worker itself does as it should


@pytest.mark.parametrize("sin", ENDS)
def test_a_worker_that_misbehaves_costs_one_verdict(sin: str, tmp_path: Path) -> None:
    status, statement = ENDS[sin]
    with running(hostile(tmp_path, sin, time_limit=0.3 if status == "timed-out" else 20)) as runner:
        runner.judge(indices(4))
        before = children()
        with pytest.raises(Nonconformance) as verdict:
            runner.judge(indices(UNLUCKY))
        assert verdict.value.status == status
        assert re.search(statement, str(verdict.value)), str(verdict.value)
        assert "\n" not in str(verdict.value)
        if sin not in OF_THE_CALL:
            assert str(verdict.value).endswith(f"its log ends: a worker that sins by {sin}")
            assert not still_running(str(tmp_path))  # nor any child of what was lost
            assert children() == set()
        runner.judge(indices(5))
        assert (children() == before) is (sin in OF_THE_CALL)
    assert children() == set()


def test_an_honest_worker_is_not_started_again(tmp_path: Path) -> None:
    with running(hostile(tmp_path, "none")) as runner:
        before = children()
        runner.judge(indices(UNLUCKY))
        assert len(before) == 1
        assert children() == before


def children() -> set[int]:
    """The processes that descend from this one, zombies too, beside those of pytest-xdist."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


# --- at its start --------------------------------------------------------------------------------

UNUSABLE = {
    "exits_at_start": "the worker exited with 1 before it answered; "
    "its log ends: a worker that sins by exits_at_start | no licence",
    "version": "it speaks version 2 of the protocol, not 1",
    "unknown_operation": "the worker speaks of 'softmax'; there are topology_witness_indices, ",
}


@pytest.mark.parametrize("sin", UNUSABLE)
def test_a_worker_that_cannot_begin_is_one_line(sin: str, tmp_path: Path) -> None:
    argument = hostile(tmp_path, sin)
    with pytest.raises(catalog.CatalogError) as error:
        catalog.load(argument)
    assert str(error.value).startswith(f"--impl {argument}: {UNUSABLE[sin]}")
    assert "\n" not in str(error.value)
    assert children() == set()


def test_one_that_does_not_begin_again_has_crashed(tmp_path: Path) -> None:
    program = tmp_path / "worker"
    program.write_text(f"#!/bin/sh\nexec python3 -S {HOSTILE} segv\n", encoding="utf-8")
    program.chmod(0o755)
    file = tmp_path / "again.toml"
    file.write_text('name = "again"\ncommand = ["./worker"]\n', encoding="utf-8")
    with running(f"toml:{file}") as runner:
        program.write_text("#!/bin/sh\necho no more >&2\nexit 7\n", encoding="utf-8")
        statements = []
        for segments in (UNLUCKY, 4):
            with pytest.raises(Nonconformance) as verdict:
                runner.judge(indices(segments))
            assert verdict.value.status == "crashed"
            statements.append(str(verdict.value))
        assert "SIGSEGV" in statements[0]
        assert "exited with 7 before" in statements[1]
        assert statements[1].endswith("; its log ends: no more")


# --- again and again -----------------------------------------------------------------------------


def end(runner: Runner, case: Case) -> str:
    """The status of a call."""
    try:
        runner.judge(case)
    except Nonconformance as verdict:
        return verdict.status
    except pytest.skip.Exception as skipped:
        return "not-run" if "lost its worker 3 times in a row" in str(skipped) else str(skipped)
    except hypothesis.errors.UnsatisfiedAssumption:
        return "left out"
    return "passed"


def test_after_three_crashes_in_a_row_the_operation_is_not_run(tmp_path: Path) -> None:
    """A call that is answered ends the row. Each call is that of a test of its own."""
    with running(hostile(tmp_path, "segv")) as runner:
        calls = [UNLUCKY, UNLUCKY, 4, UNLUCKY, UNLUCKY, UNLUCKY, 4, UNLUCKY]
        ends = [end(Runner(runner.implementation, CPU), indices(each)) for each in calls]
        assert ends == [*["crashed"] * 2, "passed", *["crashed"] * 3, "not-run", "not-run"]
        assert children() == set()  # nothing was started for it


def test_after_five_crashes_a_test_makes_no_new_call(tmp_path: Path) -> None:
    """What it has called already ends as it did, without a call."""
    with running(hostile(tmp_path, "segv")) as runner:

        @hypothesis.settings(max_examples=1, database=None, deadline=None)
        @given(st.just(runner))
        def in_one_test(runner: Runner) -> None:
            for length in range(16, 16 + FAULTS):
                assert end(runner, indices(4)) == "passed"
                assert end(runner, indices(UNLUCKY, length=length)) == "crashed"
            assert end(runner, indices(4)) == "left out"
            assert end(runner, indices(UNLUCKY, length=16)) == "crashed"
            assert children() == set()

        in_one_test()
        assert end(Runner(runner.implementation, CPU), indices(4)) == "passed"


def test_a_search_for_a_smaller_case_ends_with_one_that_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is made of an operation that is given up, and none of those counts as a failure."""
    starts: list[int] = []
    with running(hostile(tmp_path, "segv")) as runner:
        worker = runner.implementation.worker
        assert worker is not None
        start = worker._start

        def counted() -> object:
            starts.append(1)
            return start()

        monkeypatch.setattr(worker, "_start", counted)

        @hypothesis.settings(max_examples=200, database=None, deadline=None)
        @given(st.integers(1, 2000))
        def judge(length: int) -> None:
            runner.judge(indices(UNLUCKY if length > 500 else 4, length=length))

        with pytest.raises(Nonconformance) as verdict:
            judge()
        assert verdict.value.status == "crashed"
        assert verdict.value.case.number("num_segments") == UNLUCKY
        assert 2 <= len(starts) <= FAULTS


SOME_CALLS = """
import pytest

from suites.contracts import contract
from suites.selftest.worker.declared import indices
from suites.selftest.worker.hostile import UNLUCKY


@contract("witness.edge.lands-in-segment")
@pytest.mark.parametrize("segments", [4, 5, UNLUCKY, 6, 7, 8])
def test_a_call(implementation, segments):
    implementation.judge(indices(segments))
"""


def test_a_run_goes_on_after_a_crash_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has the status, the command that runs the case again does, the log is kept."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    argument = hostile(tmp_path, "segv")
    (tmp_path / "test_some.py").write_text(SOME_CALLS, encoding="utf-8")
    result = run_pytest(
        tmp_path, "-p", "suites.plugin", "-n", "2", "--impl", argument, "test_some.py"
    )
    assert result.returncode == 1, result.stdout + result.stderr
    statuses = [line.status for line in record_of(tmp_path) if isinstance(line, Verdict)]
    assert sorted(statuses) == ["crashed", *["passed"] * 5]
    assert "SIGSEGV" in result.stdout
    command = re.findall(r"rerun: python -m pytest (.*)", result.stdout)[0].split()
    assert f"--impl {argument}" in " ".join(command)
    again = run_pytest(tmp_path, *command)
    assert again.returncode == 1
    assert "SIGSEGV" in again.stdout
    logs = [*(tmp_path / ".conformance" / "workers").rglob("*.log")]
    assert logs
    assert all("sins by segv" in log.read_text() for log in logs)
    assert not still_running(str(tmp_path))
    assert not [*temporary.glob("tmp*")]  # torch and pytest keep folders of other names


def still_running(argument: str) -> list[str]:
    """The command lines of processes that mention an argument, once what was killed has gone."""
    until = time.monotonic() + 5
    while (found := mentioning(argument)) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def mentioning(argument: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if argument in command:
            found.append(command)
    return found


SEVERAL_CALLS = """
from hypothesis import given
from hypothesis import strategies as st

from suites.contracts import contract
from suites.selftest.worker.declared import indices
from suites.selftest.worker.hostile import UNLUCKY


@contract("witness.edge.lands-in-segment")
@given(length=st.integers(1, 2000))
def test_two_calls(implementation, length):
    implementation.judge(indices(4, length=length))
    implementation.judge(indices(UNLUCKY, length=length))
"""


def test_where_a_test_makes_several_calls_the_last_that_was_lost_is_shown(tmp_path: Path) -> None:
    """The first of them is not made again, and that is nobody's mistake."""
    (tmp_path / "test_several.py").write_text(SEVERAL_CALLS, encoding="utf-8")
    arguments = ["-p", "suites.plugin", "--impl", hostile(tmp_path, "segv"), "test_several.py"]
    result = run_pytest(tmp_path, *arguments)
    assert result.returncode == 1
    (verdict,) = (line for line in record_of(tmp_path) if isinstance(line, Verdict))
    assert verdict.status == "crashed", result.stdout
    assert "SIGSEGV" in verdict.shown
    assert verdict.rerun
