"""Records all the way: from artifacts through `reports` to the status, as report.yml has it."""

import ast
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from golden.record import SCHEMA, Footer, Header, Line, Verdict
from suites.selftest.ci.github import BASE, GPU_RUN, HEAD, PULL_RUN, GitHub, zipped
from suites.selftest.ci.test_gate import MARKER, gate, status
from suites.selftest.ci.workflows import ROOT, Shell, step

CPU, CUDA = "cpu (x86_64, Triton interpreted)", "cuda:0 (NVIDIA H200)"


def record(commit: str, device: str, status: str = "passed", detail: str = "") -> str:
    lines: list[Line] = [
        Header(SCHEMA, "checkout", commit, {"torch": "2.13.0"}, device, 0, ("triton",), ()),
        Verdict(
            test="suites/witness/test_segments.py::test_edges[triton]",
            implementation="triton",
            contracts=("witness.segment-map.exact",),
            status=status,  # type: ignore[arg-type, unused-ignore]
            cases=5,
            detail=detail,
        ),
        Footer({status: 1}, 5, int(status != "passed")),  # type: ignore[dict-item, unused-ignore]
    ]
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)


def test_the_group_has_what_reports_imports() -> None:
    """report.yml installs the dependency group `reports` and nothing else: no torch."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "dependency-groups"
    ]
    installed = {re.split(r"[^A-Za-z0-9_-]", each)[0].lower() for each in groups["reports"]}
    imported = {
        name.partition(".")[0].lower()
        for file in (ROOT / "reports").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in imports_of(node)
    }
    assert (
        imported - {name.lower() for name in sys.stdlib_module_names} - {"golden", "reports"}
        <= installed
    )


def imports_of(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
    return []


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    """A pull request that has passed, here and there."""
    github = GitHub(Shell(tmp_path))
    for number, device in ((PULL_RUN, CPU), (GPU_RUN, CUDA)):
        for side, commit in (("base", BASE), ("head", HEAD)):
            leave(github, number, side, record(commit, device))
    return github


def leave(github: GitHub, number: int, side: str, text: str) -> None:
    github.artifacts[number][f"records-{side}"] = zipped({"it.jsonl": text})


def published(github: GitHub) -> tuple[str, str, str]:
    """State, description and comment, once the three steps of report.yml have run."""
    shell = github.shell
    shell.program("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    gate(github, "collect")
    told = dict(line.split("=") for line in shell.left("GITHUB_OUTPUT").splitlines())
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {"COMMIT": told["commit"], "ACCEPT": told["accept"]}
    ran = shell.run(step("report.yml", "gate", "Compare"), given, extra={"PYTHONPATH": path})
    assert ran.returncode == 0, ran.stderr
    gate(github, "publish")
    [comment] = [body["body"] for _, path, body in github.changed if path.startswith("issues/")]
    assert comment.startswith(MARKER)
    assert len(comment) <= 65_536
    return *status(github), comment


def test_what_passed_everywhere_passes(github: GitHub) -> None:
    assert published(github)[0] == "success"


def test_without_the_gpu_it_is_pending_and_a_label_waives_it(github: GitHub) -> None:
    del github.runs[1]
    assert published(github)[0] == "pending"


def test_a_label_waives_the_gpu(github: GitHub) -> None:
    del github.runs[1]
    github.labels = ("gpu-waived",)
    assert published(github)[0] == "success"


def test_a_failure_fails_whatever_is_accepted(github: GitHub) -> None:
    github.labels = ("gpu-waived", "perf-accepted")
    leave(github, PULL_RUN, "head", record(HEAD, CPU, "failed", "slot 1 is not the left edge"))
    state, description, _ = published(github)
    assert state == "failure"
    assert description


@pytest.mark.parametrize(
    "text",
    [
        record("d" * 40, CPU),  # of another commit
        record(HEAD, CPU, "failed").replace('"exit_status":1', '"exit_status":0'),
        record(HEAD, CPU, "failed").replace('"statuses":{"failed":1}', '"statuses":{"passed":1}'),
        record(HEAD, CPU, "passed", "@" * 10_000_000),
        json.dumps({"decision": "passed", "exit_status": 0}) + "\n",
        "[" * 100_000 + "\n",
        "",
    ],
    ids=["commit", "exit status", "counts", "10 MB", "no record", "deep", "empty"],
)
def test_a_forged_record_never_passes(github: GitHub, text: str) -> None:
    leave(github, PULL_RUN, "head", text)
    assert published(github)[0] == "failure"


def test_a_night_is_read(github: GitHub) -> None:
    """And does no harm where it is of no use."""
    github.nights = [{"id": 5, "event": "schedule", "head_branch": "main"}]
    github.artifacts[5] = {"night": zipped({"bench.jsonl": record(BASE, CUDA)})}
    assert published(github)[0] == "success"
