"""The scripts of the workflows and of the action, run as far as a machine without GitHub can."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from suites.selftest.ci.workflows import (
    ROOT,
    Shell,
    Step,
    load,
    step,
    steps,
    tool,
)

HEAD, BASE = "a" * 40, "b" * 40


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def parting(shell: Shell) -> tuple[str, str, str]:
    """A checkout whose head left main before its tip: the merge base, the tip, the head."""
    at, commits = shell.workspace, list[str]()
    git(at, "init", "--initial-branch=main")
    for branch in ("main", "main", "topic"):
        if branch == "topic":
            git(at, "checkout", "--quiet", "-b", branch, commits[0])
        git(at, "commit", "--quiet", "--allow-empty", "--message", f"on {branch}")
        commits.append(git(at, "rev-parse", "HEAD"))
    return commits[0], commits[1], commits[2]


# --- base and head -------------------------------------------------------------------------------


def test_base_is_where_head_left_main(shell: Shell, parting: tuple[str, str, str]) -> None:
    base, tip, _ = parting
    assert (
        shell.run(
            step("pull-request.yml", "record", "Go to the merge base"), {"BASE": tip}
        ).returncode
        == 0
    )
    assert git(shell.workspace, "rev-parse", "HEAD") == base


def test_base_lies_beside_head_on_the_gpu_s_machine(
    shell: Shell, parting: tuple[str, str, str]
) -> None:
    base, tip, head = parting
    assert (
        shell.run(step("gpu.yml", "measure", "Lay out the merge base"), {"TIP": tip}).returncode
        == 0
    )
    assert git(shell.workspace, "rev-parse", "HEAD") == head
    assert git(shell.temporary / "base", "rev-parse", "HEAD") == base
    assert shell.left("GITHUB_ENV") == f"BASE={base}\n"
    assert git(shell.workspace, "status", "--porcelain") == ""


def test_histories_without_a_common_commit_end_it(shell: Shell) -> None:
    git(shell.workspace, "init")
    git(shell.workspace, "commit", "--quiet", "--allow-empty", "--message", "alone")
    run = shell.run(step("gpu.yml", "measure", "Lay out the merge base"), {"TIP": "1" * 40})
    assert run.returncode != 0
    assert shell.calls == []


# --- tox -----------------------------------------------------------------------------------------


def of_tox() -> list[Step]:
    return [each for each in steps(ROOT) if "-m tox" in each.script and each.job != "suite"]


@pytest.mark.parametrize("it", of_tox(), ids=str)
def test_records_go_where_they_are_uploaded_from(shell: Shell, it: Step) -> None:
    """And not into the checkout, which would no longer be what the commit has."""
    values = {"TIER": "cpu", "SEED": "7"}
    given = {name: values[name] for name in it.node.get("env", {})}
    step_of_base = "working-directory" in it.node
    environment = {"BASE": BASE} if "$BASE" in it.script else {}
    run = shell.run(it, given, extra=environment)
    assert run.returncode == 0, run.stderr
    [call] = shell.calls
    assert "tox" in call.arguments
    [record] = [each for each in call.arguments if each.startswith("--record=")]
    uploads = [
        each.node["with"]["path"].replace("${{ runner.temp }}", str(shell.temporary))
        for each in steps(ROOT)
        if (each.file, each.job) == (it.file, it.job) and "upload-artifact" in each.uses
    ]
    assert str(Path(record.removeprefix("--record=")).parent) in uploads
    assert ("base-records" in record) == step_of_base
    assert ("--baseline" in call.arguments) == ("bench" in call.arguments)
    if "SEED" in given:
        assert call.arguments[call.arguments.index("--seed") + 1] == "7"


@pytest.mark.parametrize("toolchain", ["pinned", "triton-3.6.0"])
def test_a_toolchain_takes_the_place_of_what_is_pinned(shell: Shell, toolchain: str) -> None:
    shutil.copy(ROOT / "constraints.txt", shell.workspace)
    shutil.copytree(ROOT / ".github/toolchains", shell.workspace / ".github/toolchains")
    choose = step("pull-request.yml", "suite", "Choose the versions")
    assert shell.run(choose, {"TOOLCHAIN": toolchain}).returncode == 0

    def pins(file: Path) -> dict[str, str]:
        lines = [each for each in file.read_text(encoding="utf-8").splitlines() if "==" in each]
        pinned = dict(each.split("==") for each in lines)
        assert len(pinned) == len(lines)  # pip takes both of two, and finds no version
        return pinned

    ours, other = pins(ROOT / "constraints.txt"), {}
    if toolchain != "pinned":
        other = pins(ROOT / f".github/toolchains/{toolchain}.txt")
        assert other["triton"] != ours["triton"]
        assert other.keys() <= ours.keys()
    merged = shell.temporary / "constraints.txt"
    assert pins(merged) == ours | other
    assert shell.left("GITHUB_ENV") == f"TOX_OVERRIDE=testenv.constraints={merged}\n"


@pytest.mark.skipif(not tool("tox"), reason="tox is missing, as in an environment of tox")
def test_tox_takes_the_toolchain(tmp_path: Path) -> None:
    chosen = ["config", "-e", "cpu", "-k", "constraints", "--workdir", str(tmp_path)]
    run = subprocess.run(
        [str(tool("tox")), *chosen],
        cwd=ROOT,
        env=Shell(tmp_path).environment() | {"TOX_OVERRIDE": "testenv.constraints=/those.txt"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "constraints = /those.txt" in run.stdout, run.stderr


# --- what closes a pull request's run ------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "passes"),
    [
        (["success", "success"], True),
        (["success", "failure"], False),
        (["cancelled", "success"], False),
        (["skipped", "skipped"], False),
    ],
)
@pytest.mark.skipif(not tool("jq"), reason="jq is missing; GitHub's machines have it")
def test_all_jobs_have_to_pass(shell: Shell, results: list[str], passes: bool) -> None:
    run = shell.run(
        step("pull-request.yml", "done", "All jobs have passed"),
        {"RESULTS": json.dumps(results, indent=2)},
    )
    assert (run.returncode == 0) == passes


@pytest.mark.parametrize("accept", ["", "--accept=perf"])
@pytest.mark.parametrize("code", [0, 1, 5])
def test_the_comparison_decides_its_job(shell: Shell, accept: str, code: int) -> None:
    shell.plan["reports compare"] = ({"--output": "the page"}, code)
    compare = step("pull-request.yml", "compare", "Compare")
    assert shell.run(compare, {"COMMIT": HEAD, "ACCEPT": accept}).returncode == code
    assert shell.left("GITHUB_STEP_SUMMARY") == "the page"
    [call] = shell.calls
    at = str(shell.temporary)
    assert call.arguments[:5] == ("-m", "reports", "compare", f"{at}/base", f"{at}/head")
    assert call.arguments[call.arguments.index("--commit") + 1] == HEAD
    assert (accept in call.arguments) == bool(accept)
    assert "" not in call.arguments


def test_compared_is_what_was_downloaded() -> None:
    folders = {
        each.node["with"]["name"]: each.node["with"]["path"]
        for each in steps(ROOT)
        if "download-artifact" in each.uses
    }
    assert folders == {f"records-{s}": f"${{{{ runner.temp }}}}/{s}" for s in ("base", "head")}


# --- the gate ------------------------------------------------------------------------------------

COMPARE = ("report.yml", "gate", "Compare")


@pytest.mark.parametrize("accept", ["", "perf", "perf gpu"])
@pytest.mark.parametrize(("code", "nights"), [(0, True), (1, False), (2, True), (5, False)])
def test_the_gate_s_comparison_leaves_its_word(
    shell: Shell, accept: str, code: int, nights: bool
) -> None:
    gate = shell.temporary / "gate"
    shell.plan = {
        f"--format {name}": ({"--output": text}, code)
        for name, text in {"json": "{}", "markdown": "the page\n"}.items()
    }
    (gate / "history" if nights else gate).mkdir(parents=True)
    history = f" --history {gate}/history" if nights else ""
    run = shell.run(step(*COMPARE), {"COMMIT": HEAD, "ACCEPT": accept})
    assert run.returncode == 0, run.stderr
    assert shell.left("GITHUB_STEP_SUMMARY") == "the page\n"
    assert (gate / "report.json").read_text(encoding="utf-8") == "{}"
    assert (gate / "report.markdown").exists()
    for call in shell.calls:
        said = " ".join(call.arguments)
        assert f"compare {gate}/base {gate}/head{history} --require cuda" in said
        assert f"--commit {HEAD}" in said
        assert re.findall(r"--accept (\w+)", said) == accept.split()


def test_a_comparison_that_crashes_is_seen(shell: Shell) -> None:
    (shell.temporary / "gate").mkdir()
    shell.plan["reports compare"] = ({}, 1)
    assert shell.run(step(*COMPARE), {"COMMIT": HEAD, "ACCEPT": ""}).returncode != 0


# --- the action ----------------------------------------------------------------------------------

GATE = ("action.yml", "action", "action")


def act(
    shell: Shell, implementation: str = "my_kernels", **given: str
) -> subprocess.CompletedProcess[str]:
    inputs = {"IMPLEMENTATION": implementation, "DEVICE": "cpu", "ARGUMENTS": "", "BASE": ""}
    there = {"GITHUB_ACTION_PATH": str(ROOT)}
    return shell.run(step(*GATE), inputs | given, extra=there)


def reports(shell: Shell, decision: str, code: int, pytest_ends: int = 0) -> None:
    """What the suite and the report of it leave."""
    page = {"--output": json.dumps({"decision": decision})}
    shell.plan = {
        "-m reports": (page, code),
        "-m tox -e": ({"--record": "{}\n"}, pytest_ends),
    }


def outputs(shell: Shell) -> dict[str, str]:
    return dict(line.split("=", 1) for line in shell.left("GITHUB_OUTPUT").splitlines())


@pytest.mark.parametrize(
    ("decision", "code", "pytest_ends"),
    [("passed", 0, 0), ("passed", 0, 1), ("failed", 1, 1), ("undecided", 5, 5)],
)
def test_the_action_ends_as_its_report_does(
    shell: Shell, decision: str, code: int, pytest_ends: int
) -> None:
    reports(shell, decision, code, pytest_ends)
    run = act(shell)
    assert run.returncode == code, run.stderr
    found = outputs(shell)
    assert found.keys() == load(ROOT / "action.yml")["outputs"].keys()
    assert found["decision"] == decision
    assert Path(found["record"]).read_text(encoding="utf-8") == "{}\n"
    assert Path(found["page"]).exists()
    assert decision in shell.left("GITHUB_STEP_SUMMARY")
    suite = shell.calls[1]
    assert suite.arguments[:6] == ("-m", "tox", "-e", "cpu", "--", "--impl")
    assert suite.arguments[6:] == ("my_kernels", f"--record={found['record']}")
    assert (suite.path, suite.folder) == (str(shell.workspace), ROOT)
    assert [call.path for call in shell.calls if "reports" in call.arguments] == ["", ""]
    assert all("show" in call.arguments for call in shell.calls[2:])


def test_the_action_s_inputs(shell: Shell) -> None:
    (shell.workspace / "my kernels.toml").touch()
    (shell.workspace / "base").mkdir()
    reports(shell, "passed", 0)
    run = act(shell, "toml:my kernels.toml", DEVICE="cuda", ARGUMENTS="-k  topology *", BASE="base")
    assert run.returncode == 0, run.stderr
    suite, *pages = shell.calls[1:]
    assert suite.arguments[2:7] == (
        "-e",
        "gpu",
        "--",
        "--impl",
        f"toml:{shell.workspace}/my kernels.toml",
    )
    assert suite.arguments[-3:] == ("-k", "topology", "*")
    record = outputs(shell)["record"]
    for page in pages:
        assert f"compare {shell.workspace}/base {record}" in " ".join(page.arguments)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"DEVICE": "tpu"}, "device: tpu is neither cpu nor cuda"),
        ({"BASE": "no.jsonl"}, "base: there is no record"),
        ({"implementation": "toml:no.toml"}, "implementation: there is no file"),
    ],
)
def test_a_mistake_in_the_action_s_inputs_is_one_line(
    shell: Shell, given: dict[str, str], said: str
) -> None:
    run = act(shell, **given)
    assert run.returncode == 2
    assert run.stdout.startswith(f"::error::{said}")
    assert run.stdout.count("\n") == 1
    assert shell.calls == []


def test_no_record_and_no_report_are_failures(shell: Shell) -> None:
    shell.plan = {"-m tox -e": ({}, 4)}
    run = act(shell)
    assert (run.returncode, "no record: pytest ended with exit code 4" in run.stdout) == (2, True)
    shell.plan = {"-m reports": ({}, 1), "-m tox -e": ({"--record": "{}"}, 0)}
    run = act(shell)
    assert (run.returncode, "no report came of" in run.stdout) == (2, True)


def test_two_uses_in_a_job_keep_both_records(shell: Shell) -> None:
    reports(shell, "passed", 0)
    act(shell)
    act(shell)
    records = [line for line in shell.left("GITHUB_OUTPUT").splitlines() if "record=" in line]
    assert len(set(records)) == 2
