"""Which change is which finding, and what gates."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from golden.record import Line, Measurement, Verdict
from reports.comparing import compare, show
from reports.model import Report
from reports.sections import sections
from suites.selftest.reports.records import (
    BASE,
    EDGE,
    GPU,
    PREFIX,
    SUMS,
    compiled,
    failing,
    header,
    mutants,
    verdicts,
    write,
    write_lines,
)

Change = Callable[[Verdict], Verdict | None]


def report(
    folder: Path,
    base: Sequence[Line],
    head: Sequence[Line],
    status: int | None = None,
    **options: Any,
) -> Report:
    return compare(
        write(folder / "base.jsonl", header(BASE), base),
        write(folder / "head.jsonl", header(), head, status),
        **options,
    )


def changed(change: Change) -> list[Verdict]:
    """The verdicts with those of Triton on one contract changed, or left out."""
    found = [
        change(line) if line.contracts == (EDGE,) and line.implementation == "triton" else line
        for line in verdicts()
    ]
    return [line for line in found if line is not None]


def becomes(status: str, detail: str = "", cases: int = 40) -> Change:
    def change(line: Verdict) -> Verdict:
        return msgspec.structs.replace(line, status=status, detail=detail, cases=cases)

    return change


PASSES: Final = changed(lambda line: line)
FAILS: Final = changed(failing)
FINDINGS: Final = {  # base, head, the finding, whether it gates
    "failed": (PASSES, FAILS, "failed", True),
    "crashed": (PASSES, changed(becomes("crashed")), "failed", True),
    "a new test fails": (changed(lambda line: None), FAILS, "failed", True),
    "deviates fails": (changed(becomes("deviates")), FAILS, "failed", True),
    "fixed": (FAILS, PASSES, "fixed", False),
    "known": (FAILS, FAILS, "known", False),
    "changed": (FAILS, changed(lambda x: failing(x, "otherwise")), "changed", False),
    "stale": (PASSES, changed(becomes("stale-deviation")), "stale-deviation", True),
    "still stale": (
        changed(becomes("stale-deviation")),
        changed(becomes("stale-deviation")),
        "stale-deviation",
        True,
    ),
    "unsupported": (PASSES, changed(becomes("unsupported", cases=0)), "unsupported", True),
    "gone": (PASSES, changed(lambda line: None), "gone", True),
    "gone with its failure": (FAILS, changed(lambda line: None), "gone", True),
    "not run": (PASSES, changed(becomes("not-run", "no compiler", 0)), "not-run", False),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_each_change_is_a_finding(name: str, tmp_path: Path) -> None:
    base, head, finding, gates = FINDINGS[name]
    found = report(tmp_path, base, head)
    (line,) = found.conformance
    assert (line.finding, line.gates) == (finding, gates)
    assert line.contract == ("" if finding == "not-run" else EDGE)
    assert (line.implementation, line.device, line.tests) == ("triton", "cpu", 1)
    assert found.exit_status == (1 if gates else 5 if finding == "not-run" else 0)
    assert found.decision != "passed" or finding == "fixed"


@pytest.mark.parametrize("status", ["passed", "deviates", "unsupported", "not-run"])
def test_what_is_as_on_base_is_no_finding(status: str, tmp_path: Path) -> None:
    same = changed(becomes(status, cases=40 * (status == "passed")))
    assert report(tmp_path, same, same).conformance == ()


def test_no_label_accepts_a_failure(tmp_path: Path) -> None:
    found = report(tmp_path, PASSES, FAILS, accepted=["perf", "gpu"])
    assert found.exit_status == 1
    assert "no label accepts it" in found.next


def test_a_failure_shows_the_smallest_case_and_how_to_run_it(tmp_path: Path) -> None:
    larger = failing(msgspec.structs.replace(FAILS[1], test="suites/a.py::test_b[triton]"))
    larger = msgspec.structs.replace(larger, shown=larger.shown * 2)
    (line,) = report(tmp_path, PASSES, [larger, *FAILS]).conformance
    assert line.test == FAILS[1].test
    assert line.tests == 2
    assert line.shown == FAILS[1].shown
    assert line.rerun == FAILS[1].rerun


@pytest.mark.parametrize(
    ("rerun", "given"),
    [
        ("python -m pytest --replay c.json --impl toml:mine.toml", "toml:mine.toml"),
        ("python -m pytest --replay c.json", "triton"),
        ("python -m pytest --replay c.json --impl x; rm -rf .", "triton"),
    ],
)
def test_an_implementation_is_named_as_it_was_given(rerun: str, given: str, tmp_path: Path) -> None:
    broken = [msgspec.structs.replace(line, rerun=line.rerun and rerun) for line in FAILS]
    (conformance, *_) = sections(report(tmp_path, PASSES, broken))
    command, *alone = conformance.failures[0].commands
    assert command.endswith(f" --seed=0 --impl={given}")
    assert len(alone) == (";" not in rerun)


def test_one_side_by_itself(tmp_path: Path) -> None:
    passing = show(write(tmp_path / "a.jsonl", header(), PASSES))
    assert (passing.headline, passing.exit_status) == ("No failure in 240 cases", 0)
    failing_ = show(write(tmp_path / "b.jsonl", header(), FAILS))
    assert failing_.headline == "Action needed: 1 contract fails (triton)"
    assert failing_.exit_status == 1


# --- what is missing -----------------------------------------------------------------------------


def test_nothing_measured_is_not_green(tmp_path: Path) -> None:
    absent = verdicts("not-run", detail="no device")
    found = show(write(tmp_path / "a.jsonl", header(), absent, 5))
    assert found.headline == "Nothing was measured: no device"
    assert found.exit_status == 5
    oracle = [msgspec.structs.replace(line, implementation="oracle") for line in PASSES]
    assert show(write(tmp_path / "b.jsonl", header(), oracle)).exit_status == 5


def test_an_implementation_that_was_not_run_is_in_the_first_line(tmp_path: Path) -> None:
    half = [
        line
        if line.implementation == "torch"
        else msgspec.structs.replace(line, status="not-run", cases=0, detail="no compiler")
        for line in PASSES
    ]
    found = report(tmp_path, half, half)
    assert found.headline == "No regression in 120 cases, but triton was not run on cpu"
    assert (found.decision, found.exit_status) == ("warned", 0)


def test_a_device_that_has_to_be_measured(tmp_path: Path) -> None:
    found = report(tmp_path, PASSES, PASSES, required=["cuda"])
    assert found.headline == "Not decided: nothing was run on cuda"
    assert found.exit_status == 5
    assert "`gpu-waived`" in found.next
    waived = report(tmp_path, PASSES, PASSES, required=["cuda"], accepted=["gpu"])
    assert waived.headline == ("No regression in 240 cases, but nothing was run on cuda (accepted)")
    assert (waived.decision, waived.exit_status) == ("warned", 0)
    on_gpu = write(tmp_path / "gpu.jsonl", header(BASE, GPU), PASSES)
    measured = write(tmp_path / "gpu-head.jsonl", header(device=GPU), PASSES)
    assert compare(on_gpu, measured, required=["cuda"]).decision == "passed"


def test_head_has_to_be_asked_for_what_base_was(tmp_path: Path) -> None:
    base = write(tmp_path / "a.jsonl", header(BASE), PASSES)
    only = [line for line in PASSES if line.implementation == "torch"]
    head = write(tmp_path / "b.jsonl", header(implementations=("torch",)), only)
    found = compare(base, head)
    assert found.headline == "Not decided: head was not asked for triton on cpu, and base was"
    assert found.exit_status == 5


def test_the_commit_of_head_is_checked(tmp_path: Path) -> None:
    found = report(tmp_path, PASSES, PASSES, commit="c" * 40)
    assert found.exit_status == 2
    assert f"of commit {'b' * 40}, not {'c' * 40}" in found.headline
    assert report(tmp_path, PASSES, PASSES, commit="b" * 40).exit_status == 0


def test_a_side_is_one_commit(tmp_path: Path) -> None:
    for name, commit in (("a", BASE), ("b", "b" * 40)):
        write(tmp_path / "base" / f"{name}.jsonl", header(commit), PASSES)
    found = compare(tmp_path / "base", write(tmp_path / "head.jsonl", header(), PASSES))
    assert found.exit_status == 2
    assert "BASE: records of several commits, aaaaaaaaaaaa, bbbbbbbbbbbb" in found.headline


def test_pytest_failed_and_no_verdict_says_why(tmp_path: Path) -> None:
    found = report(tmp_path, PASSES, PASSES, 1)
    assert found.headline.startswith("Action needed: tests fail that are about no implementation (")
    assert found.exit_status == 1


@pytest.mark.parametrize(("status", "words"), [(2, "was interrupted"), (3, "an error of pytest")])
def test_a_run_that_did_not_end_well_is_not_complete(
    status: int, words: str, tmp_path: Path
) -> None:
    found = report(tmp_path, PASSES, PASSES, status)
    assert found.exit_status == 5
    assert words in found.headline


def test_a_truncated_base_makes_no_failure_of_it(tmp_path: Path) -> None:
    base = write_lines(tmp_path / "base.jsonl", [header(BASE), *PASSES[:2]])
    found = compare(base, write(tmp_path / "head.jsonl", header(), PASSES))
    assert found.exit_status == 5
    assert "the run of base was cut short" in found.headline


# --- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "risen"), [(0.25, 0), (0.29, 0), (0.31, 2), (0.1, 0)])
def test_a_rise_of_the_error_is_a_warning(ratio: float, risen: int, tmp_path: Path) -> None:
    head = [
        msgspec.structs.replace(line, error_ratio=line.error_ratio and ratio) for line in PASSES
    ]
    found = report(tmp_path, PASSES, head)
    assert [line.contract for line in found.accuracy] == [SUMS, SUMS]
    assert sum(line.risen for line in found.accuracy) == risen
    assert found.decision == ("warned" if risen else "passed")
    assert found.exit_status == 0


# --- figures -------------------------------------------------------------------------------------

FIGURES: Final = {  # registers and spills of base and head; gates, warns, exit status
    "same": ((40, 0), (40, 0), None, 0),
    "a spill": ((40, 0), (255, 4), (True, True), 1),
    "more of a spill": ((255, 4), (255, 8), (False, True), 0),
    "no spill any more": ((255, 4), (40, 0), (False, False), 0),
    "more registers": ((40, 0), (48, 0), (False, True), 0),
    "fewer registers": ((48, 0), (40, 0), (False, False), 0),
}


@pytest.mark.parametrize("name", FIGURES)
def test_compiled_figures_are_exact(name: str, tmp_path: Path) -> None:
    before, after, expected, exit_status = FIGURES[name]
    found = report(tmp_path, compiled(*before), compiled(*after))
    assert found.exit_status == exit_status
    assert [(each.gates, each.warns) for each in found.resources] == (
        [] if expected is None else [expected]
    )
    if exit_status:
        accepted = report(tmp_path, compiled(*before), compiled(*after), accepted=["perf"])
        assert (accepted.decision, accepted.exit_status) == ("warned", 0)
        assert "(accepted)" in accepted.headline


def test_figures_of_two_compilers_are_not_compared(tmp_path: Path) -> None:
    base = write(tmp_path / "a.jsonl", header(BASE), compiled(40, 0))
    other = header(versions=header().versions | {"ptxas": "13.0"})
    found = compare(base, write(tmp_path / "b.jsonl", other, compiled(255, 9)))
    assert found.resources == ()
    (line,) = found.undecided
    assert line.metric == "compiled figures"
    assert "base was compiled by triton 3.7.1, ptxas ?" in line.reason
    assert "head by triton 3.7.1, ptxas 13.0" in line.reason


@pytest.mark.parametrize(
    ("before", "after", "gates"),
    [
        (10, 12, None),  # 2 MiB
        (10, 12.1, True),
        (1000, 1010, None),  # 1 %
        (1000, 1010.1, True),
        (1000, 900, False),
    ],
)
def test_a_peak_may_grow_by_a_little(
    before: float, after: float, gates: bool | None, tmp_path: Path
) -> None:
    base, head = (
        [Measurement("torch", "estimate S 1024", "peak MiB", "estimate", value)]
        for value in (before, after)
    )
    found = report(tmp_path, base, head)
    assert [each.gates for each in found.memory] == ([] if gates is None else [gates])
    assert found.exit_status == (1 if gates else 0)


def test_mutants_that_survive_are_named(tmp_path: Path) -> None:
    found = report(tmp_path, [*PASSES, *mutants()], [*PASSES, *mutants("mask-dropped")])
    (line,) = found.kills
    assert (line.base_killed, line.base_of, line.killed, line.of) == (3, 3, 2, 3)
    assert line.survivors == ("mask-dropped",)
    assert found.headline == "No regression in 240 cases, but 1 mutant survives"
    assert found.exit_status == 0


def test_findings_come_in_the_order_of_the_page_and_of_the_contracts(tmp_path: Path) -> None:
    head = [
        failing(line)
        if line.contracts in ((SUMS,), (EDGE,)) and line.implementation == "torch"
        else msgspec.structs.replace(line, status="unsupported", cases=0)
        if line.contracts == (PREFIX,)
        else line
        for line in PASSES
    ]
    found = [(line.finding, line.contract) for line in report(tmp_path, PASSES, head).conformance]
    assert found == [
        ("failed", EDGE),
        ("failed", SUMS),
        ("unsupported", PREFIX),
        ("unsupported", PREFIX),
    ]
