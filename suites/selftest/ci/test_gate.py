"""The gate against a GitHub that answers from a file: what it reads, and what it publishes."""

import io
import json
import os
import subprocess
import sys
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from suites.selftest.ci.github import (
    BASE,
    FORK,
    GPU_RUN,
    HEAD,
    HOSTED,
    PULL_RUN,
    RECORDS,
    REPOSITORY,
    TIP,
    GitHub,
    run,
    zipped,
)
from suites.selftest.ci.workflows import ROOT, Shell

_spec = spec_from_file_location("gate", ROOT / ".github/gate.py")
assert _spec is not None
assert _spec.loader is not None
GATE = module_from_spec(_spec)
sys.modules["gate"] = GATE  # where dataclasses look for it
_spec.loader.exec_module(GATE)

MARKER = "<!-- kernel-gate -->"
PAGE = "## ✅ Passed\n"
OTHER = "d" * 40


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    return GitHub(Shell(tmp_path))


def gate(github: GitHub, command: str) -> Path:
    """As report.yml runs it, but in this process; the folder that it works in."""
    folder = github.shell.temporary / "gate"
    with patch.dict(os.environ, github.lay_ready(), clear=True):
        {"collect": GATE.collect, "publish": GATE.publish}[command](folder)
    return folder


def main(github: GitHub, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / ".github/gate.py", *arguments],
        env=github.lay_ready(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def report(decision: str, headline: str = "Nothing to do", commit: str = BASE) -> dict[str, Any]:
    return {"decision": decision, "headline": headline, "base": {"commit": commit}}


def judge(github: GitHub, said: dict[str, Any], page: str = PAGE) -> None:
    """The whole way, with that as the comparison's word."""
    folder = gate(github, "collect")
    (folder / "report.json").write_text(json.dumps(said), encoding="utf-8")
    (folder / "report.markdown").write_text(page, encoding="utf-8")
    gate(github, "publish")


def status(github: GitHub) -> tuple[str, str]:
    """State and description of the one status that was set."""
    [body] = [body for _, path, body in github.changed if path == f"statuses/{HEAD}"]
    assert body["context"] == "kernel-gate"
    assert body["target_url"] == f"https://github.com/{REPOSITORY}/actions/runs/999"
    return body["state"], body["description"]


def tree(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*.jsonl"))


# --- what is collected ---------------------------------------------------------------------------


def test_records_of_both_parts_are_laid_out(github: GitHub) -> None:
    folder = gate(github, "collect")
    assert tree(folder) == sorted(
        f"{side}/{part}/{name}"
        for side in ("base", "head")
        for part in ("pull-request", "pull-request-gpu")
        for name in RECORDS
    )
    assert github.shell.left("GITHUB_OUTPUT") == f"commit={HEAD}\naccept=\n"
    assert not list(folder.rglob("*.zip"))
    assert not (folder / "history").exists()
    assert github.changed == []


def test_labels_are_github_s(github: GitHub) -> None:
    github.labels = ("gpu-waived", "perf-accepted", "conformance-accepted\nbase=1")
    gate(github, "collect")
    assert github.shell.left("GITHUB_OUTPUT") == f"commit={HEAD}\naccept=perf gpu\n"


def test_a_pull_request_that_is_not_open_is_left_alone(github: GitHub) -> None:
    github.head = OTHER  # it has moved on
    folder = gate(github, "collect")
    gate(github, "publish")
    assert not folder.exists()
    assert github.shell.left("GITHUB_OUTPUT") == ""
    assert github.changed == []


def test_only_the_files_of_the_gate_and_of_this_head_count(github: GitHub) -> None:
    impostors = [
        run(201, ".github/workflows/other.yml", FORK),
        run(202, HOSTED, "else/where"),
        {**run(203, HOSTED, FORK), "head_sha": OTHER},
        {**run(204, HOSTED, FORK), "head_repository": None},
    ]
    github.runs = [*impostors, *github.runs]
    gate(github, "collect")
    asked = {
        path.split("/")[2]
        for _, path, _ in github.asked
        if path.endswith("page=1") and path.startswith("actions/runs/")
    }
    assert asked == {str(PULL_RUN), str(GPU_RUN)}


def test_the_newest_run_counts(github: GitHub) -> None:
    github.runs.insert(0, run(90, HOSTED, FORK, "in_progress"))
    github.runs.append(run(91, HOSTED, FORK, "queued"))
    assert tree(gate(github, "collect"))
    github.runs.append(run(300, HOSTED, FORK, "queued"))
    (github.shell.temporary / "gate").rename(github.shell.temporary / "before")
    assert not tree(gate(github, "collect"))


def test_a_missing_gpu_part_leaves_its_folders_out(github: GitHub) -> None:
    del github.runs[1]
    folder = gate(github, "collect")
    assert {path.split("/")[1] for path in tree(folder)} == {"pull-request"}
    assert github.shell.left("GITHUB_OUTPUT").startswith(f"commit={HEAD}\n")


def test_expired_artifacts_are_not_there(github: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = github.answers()
    for each in answers[f"repos/{REPOSITORY}/actions/runs/{GPU_RUN}/artifacts?per_page=100&page=1"][
        "artifacts"
    ]:
        each["expired"] = True
    monkeypatch.setattr(github, "answers", lambda: answers)
    assert {path.split("/")[1] for path in tree(gate(github, "collect"))} == {"pull-request"}


def test_the_history_is_of_the_clock_s_nights_on_main(github: GitHub) -> None:
    def night(number: int, event: str, branch: str) -> dict[str, Any]:
        github.artifacts[number] = {"night": zipped({"bench.jsonl": "{}"})}
        return {"id": number, "event": event, "head_branch": branch}

    github.nights = [
        night(1, "schedule", "main"),
        night(2, "pull_request", "main"),  # a stranger's own nightly.yml
        night(3, "schedule", "other"),
        night(4, "schedule", "main"),
    ]
    github.artifacts[4] = {"night": zipped({"../bench.jsonl": "{}"})}
    folder = gate(github, "collect")
    assert [each.name for each in (folder / "history").iterdir()] == ["1000"]
    assert tree(folder / "history") == ["1000/bench.jsonl"]
    assert github.shell.left("GITHUB_OUTPUT")  # a bad night keeps nobody waiting


# --- hostile artifacts ---------------------------------------------------------------------------


def lying(size: int) -> bytes:
    """A file that says that it is smaller than it is."""
    honest = zipped({"cpu.jsonl": "x" * 5000})
    return honest.replace((5000).to_bytes(4, "little"), size.to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (zipped({"../../evil.jsonl": "{}"}), "'../../evil.jsonl' is no name of a record"),
        (zipped({"/etc/cron.d/x.jsonl": "{}"}), "is no name of a record"),
        (zipped({"sub/cpu.jsonl": "{}"}), "is no name of a record"),
        (zipped({"cpu.jsonl\n::error::x": "{}"}), r"'cpu.jsonl\n::error::x' is no name"),
        (zipped({"report.json": "{}"}), "is no name of a record"),
        (zipped({".jsonl": "{}"}), "is no name of a record"),
        (zipped({f"{n}.jsonl": "" for n in range(33)}), "33 files; 32 are the most"),
        (zipped({"cpu.jsonl": "0" * (65 << 20)}), "more than 67,108,864 bytes"),
        (zipped({"cpu.jsonl": "{}"}, zipfile.ZIP_LZMA), "compressed in a way"),
        (lying(10), "no sound zip file"),
        (b"PK\x03\x04 and then nothing", "no sound zip file"),
        (b"", "no sound zip file"),
    ],
)
def test_a_hostile_artifact_is_refused(github: GitHub, content: bytes, why: str) -> None:
    github.artifacts[PULL_RUN]["records-head"] = content
    folder = gate(github, "collect")
    assert github.shell.left("GITHUB_OUTPUT") == ""  # nothing is compared
    assert not any(path.startswith("head/pull-request/") for path in tree(folder))
    assert not list(github.shell.folder.rglob("evil*"))
    gate(github, "publish")
    state, description = status(github)
    assert state == "failure"
    assert why in description or why in github.changed[-1][2]["body"]


def test_two_files_of_one_name_are_refused(github: GitHub) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = _twice("cpu.jsonl")
    github.artifacts[PULL_RUN]["records-head"] = twice
    folder = gate(github, "collect")
    assert not any(path.startswith("head/pull-request/") for path in tree(folder))
    gate(github, "publish")
    assert status(github)[0] == "failure"


def _twice(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, "{}")
        archive.writestr(name, "[]")
    return out.getvalue()


def test_a_large_artifact_is_not_even_fetched(github: GitHub) -> None:
    github.sizes["records-head"] = (20 << 20) + 1
    gate(github, "collect")
    assert not [path for _, path, _ in github.asked if path.endswith(f"{PULL_RUN * 1000 + 1}/zip")]
    gate(github, "publish")
    assert status(github)[0] == "failure"


def test_a_record_s_content_is_no_matter_of_the_gate(github: GitHub) -> None:
    """10 MB in a line, and a verdict of its own: laid out as it is, for `reports` to judge."""
    forged = json.dumps({"type": "verdict", "decision": "passed", "detail": "@" * 10_000_000})
    github.artifacts[PULL_RUN]["records-head"] = zipped({"cpu.jsonl": forged})
    folder = gate(github, "collect")
    assert (folder / "head/pull-request/cpu.jsonl").read_text(encoding="utf-8") == forged
    gate(github, "publish")  # and nobody compared
    assert status(github) == ("failure", "the comparison itself failed; its run says why")


# --- what is published ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "state"),
    [
        ("passed", "success"),
        ("warned", "success"),
        ("failed", "failure"),
        ("unusable", "failure"),
        ("undecided", "pending"),
    ],
)
def test_the_status_follows_the_decision(github: GitHub, decision: str, state: str) -> None:
    judge(github, report(decision, "1 failure"))
    assert status(github) == (state, "1 failure")
    assert github.changed[-1] == ["POST", "issues/7/comments", {"body": f"{MARKER}\n{PAGE}"}]


def test_while_it_runs_the_status_is_pending_and_no_comment_made(github: GitHub) -> None:
    github.runs[0]["status"] = "in_progress"
    gate(github, "collect")
    gate(github, "publish")
    assert status(github) == ("pending", "waiting for the workflow pull-request")
    assert len(github.changed) == 1


def test_the_comment_is_one_and_our_own(github: GitHub) -> None:
    def by(login: str, number: int, body: str = f"{MARKER}\nbefore") -> dict[str, Any]:
        return {"id": number, "user": {"login": login}, "body": body}

    bot = "github-actions[bot]"
    github.comments = [by("stranger", 1), by(bot, 2, f"a quotation of {MARKER}"), by(bot, 3)]
    judge(github, report("passed"))
    assert github.changed[1:] == [["PATCH", "issues/comments/3", {"body": f"{MARKER}\n{PAGE}"}]]


def test_the_comment_is_found_on_a_later_page(
    github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.comments = [{"id": n, "user": {"login": "x"}, "body": ""} for n in range(100)]
    mine = {"id": 500, "user": {"login": "github-actions[bot]"}, "body": MARKER}
    second = f"repos/{REPOSITORY}/issues/7/comments?per_page=100&page=2"
    answers = github.answers() | {second: [mine]}
    monkeypatch.setattr(github, "answers", lambda: answers)
    judge(github, report("passed"))
    assert github.changed[1][:2] == ["PATCH", "issues/comments/500"]


def test_a_head_that_moved_meanwhile_ends_it(github: GitHub) -> None:
    github.head_later = OTHER
    judge(github, report("passed"))
    assert github.changed == []


def test_base_is_the_merge_base_and_no_other(github: GitHub) -> None:
    judge(github, report("passed", commit=TIP))
    state, description = status(github)
    assert state == "failure"
    assert TIP[:12] in description
    assert BASE[:12] in description


def test_what_is_too_long_for_github_is_cut(github: GitHub) -> None:
    judge(github, report("failed", "slow\n" * 100), "é" * 70_000)
    description = status(github)[1]
    assert description == ("slow " * 28)[:139] + "…"
    body = github.changed[1][2]["body"]
    assert len(body) == 65_536


def test_a_refusal_of_github_s_ends_it(github: GitHub) -> None:
    github.branch = "renamed"
    github.event = GitHub(github.shell).event  # type: ignore[method-assign]
    done = main(github, "collect", github.shell.temporary / "gate")
    assert done.returncode == 1
    assert "404" in done.stderr


def test_the_command_line(github: GitHub) -> None:
    folder = github.shell.temporary / "gate"
    assert main(github, "collect", folder).returncode == 0
    assert main(github, "publish", folder).returncode == 0
    assert status(github)[0] == "failure"
    assert main(github, "judge").stderr.startswith("usage: ")
