"""Workflows as data: their jobs, steps and scripts, and a shell to run a script in."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[3]
WORKFLOWS: Final = Path(".github/workflows")
ACTION: Final = Path("action.yml")

Node = Any


@cache
def load(file: Path) -> dict[str, Node]:
    """A workflow or an action; the key ``on``, which YAML 1.1 reads as a truth value, by name."""
    read = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in read.items()}


def workflows(root: Path) -> dict[str, dict[str, Node]]:
    """Every workflow, by the name of its file."""
    return {file.name: load(file) for file in sorted((root / WORKFLOWS).glob("*.yml"))}


@dataclass(frozen=True)
class Step:
    """One step, and where it is: ``pull-request.yml, record: Go to the merge base``."""

    file: str
    job: str
    number: int
    node: Mapping[str, Node]

    def __str__(self) -> str:
        what = self.node.get("name") or self.node.get("run") or self.node["uses"]
        return f"{self.file}, {self.job}: {str(what).splitlines()[0]}"

    @property
    def script(self) -> str:
        return str(self.node.get("run", ""))

    @property
    def uses(self) -> str:
        return str(self.node.get("uses", ""))


def steps(root: Path) -> Iterator[Step]:
    """Of every job of every workflow, and of the action."""
    for file, workflow in workflows(root).items():
        for name, job in workflow["jobs"].items():
            for number, node in enumerate(job.get("steps", [])):
                yield Step(file, name, number, node)
    for number, node in enumerate(load(root / ACTION)["runs"]["steps"]):
        yield Step(ACTION.name, "action", number, node)


def step(file: str, job: str, name: str) -> Step:
    """The step of that name, or with that in its script."""
    for each in steps(ROOT):
        named = name == each.node.get("name") or name in each.script
        if (each.file, each.job) == (file, job) and named:
            return each
    raise LookupError(f"{file}, {job} has no step {name}")


# --- a shell to run one in -----------------------------------------------------------------------

# Stands for Python: writes down how it was called and does what the test has laid ready.
PYTHON: Final = """#!{python} -IS
import json, os, pathlib, sys
given = sys.argv[1:]
if given[:1] == ["-c"]:
    os.execv(sys.executable, [sys.executable, *given])
told = pathlib.Path({told!r})
plan = json.loads((told / "plan.json").read_text())
with (told / "calls.jsonl").open("a") as log:
    print(json.dumps([given, os.environ.get("PYTHONPATH", ""), os.getcwd()]), file=log)
for part, (files, code) in plan.items():
    if part in " ".join(given):
        for name, text in files.items():
            joined = [each for each in given if each.startswith(name + "=")]
            at = joined[0].partition("=")[2] if joined else given[given.index(name) + 1]
            at = pathlib.Path(at)
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)
        sys.exit(code)
"""


@dataclass(frozen=True)
class Call:
    """One call of Python: its arguments, PYTHONPATH, and where."""

    arguments: tuple[str, ...]
    path: str
    folder: Path


class Shell:
    """Runs the script of a step as the runner does, on a machine where Python is only written down.

    ``plan``: for a call whose arguments contain this text, the files that it leaves, by the option
    that names them, and its exit code.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace, self.temporary = folder / "workspace", folder / "temporary"
        self.bin = folder / "bin"
        for each in (self.workspace, self.temporary, self.bin):
            each.mkdir()
        self.plan: dict[str, tuple[dict[str, str], int]] = {}
        self.program("python", PYTHON.format(python=sys.executable, told=str(folder)))

    def program(self, name: str, text: str) -> None:
        file = self.bin / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def environment(self) -> dict[str, str]:
        files = {name: str(self.folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_ENV")}
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        return kept | {
            "PATH": os.pathsep.join([str(self.bin), os.environ["PATH"]]),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_STEP_SUMMARY": str(self.folder / "GITHUB_STEP_SUMMARY"),
            "RUNNER_TEMP": str(self.temporary),
            **files,
        }

    def run(
        self, it: Step, given: Mapping[str, str], extra: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        """``given``: the values of the step's own variables, which have to be just these.

        ``extra``: variables that the runner, or a step before it, has set.
        """
        assert set(it.node.get("env", {})) - {"GH_TOKEN"} == set(given), it
        shell = ["bash", "-e"]
        if it.node.get("shell") == "bash":
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
        file = self.folder / "script"
        file.write_text(it.script, encoding="utf-8")
        (self.folder / "plan.json").write_text(json.dumps(self.plan), encoding="utf-8")
        return subprocess.run(
            [*shell, str(file)],
            cwd=self.workspace,
            env={**self.environment(), **given, **extra},
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def calls(self) -> list[Call]:
        log = self.folder / "calls.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [Call(tuple(a), path, Path(at)) for a, path, at in map(json.loads, lines)]

    def left(self, name: str) -> str:
        """What the script has put into GITHUB_OUTPUT and the like."""
        file = self.folder / name
        return file.read_text(encoding="utf-8") if file.exists() else ""


def tool(name: str) -> str | None:
    """A program of the environment that runs the tests, or of the machine."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return shutil.which(name, path=beside)
