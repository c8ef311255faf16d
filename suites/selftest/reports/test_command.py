"""``python -m reports``: formats, exit statuses, and what a wrong command line says."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from reports.__main__ import FORMATS, main
from reports.model import Report
from suites.selftest.reports.test_pages import SCENARIOS
from suites.selftest.whole_runs import ROOT


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_format_has_the_same_verdict(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", *map(str, SCENARIOS[scenario][0](tmp_path))]
    if (history := tmp_path / "history").exists():
        command += ["--history", str(history)]
    pages = {}
    for name in FORMATS:
        assert main([*command, "--format", name]) == SCENARIOS[scenario][1]
        pages[name] = capsys.readouterr().out
    report = msgspec.json.decode(pages["json"], type=Report)
    assert report.exit_status == SCENARIOS[scenario][1]
    assert report.decision.upper() in pages["terminal"]
    assert pages["html"].startswith("<!doctype html>")


def test_a_page_in_a_file_and_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, head = SCENARIOS["good"][0](tmp_path)
    page = tmp_path / "page.html"
    assert main(["show", str(head), "--format", "html", "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"html page: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    missing = tmp_path / "missing" / "page.html"
    assert main(["show", str(head), "--output", str(missing)]) == 2
    assert capsys.readouterr().err.startswith(f"{missing}: No such file or directory")


def test_what_is_not_there_is_one_line_and_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: no such file or folder; run it again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: command"),
        (["show"], "required: RECORD"),
        (["compare", "a"], "required: HEAD"),
        (["show", "a", "--format", "pdf"], "invalid choice: 'pdf'"),
        (["compare", "a", "b", "--accept", "conformance"], "invalid choice: 'conformance'"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_as_a_module_from_anywhere(tmp_path: Path) -> None:
    """No colour in a log, and the exit status of the verdict."""
    base, head = SCENARIOS["wrong kernel"][0](tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "reports", "compare", str(base), str(head)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    assert run.stdout.startswith("FAILED: Action needed: 1 contract fails (triton)")
    assert "\x1b" not in run.stdout
    assert "Traceback" not in run.stderr
