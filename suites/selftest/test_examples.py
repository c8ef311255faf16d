"""The examples do what their READMEs say, by the commands that stand there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suites.selftest.whole_runs import ROOT

CHECKOUT = ("conftest.py", "pyproject.toml", "golden", "oracles", "kernels", "suites", "examples")

# The exit codes of the commands of each README, in their order.
EXIT_CODES = {"python": [0], "base_two": [0], "wrong": [1, 1, 0]}


def blocks(example: str) -> list[tuple[str, str]]:
    """Each block of a README that is a command or output, with its language."""
    text = (ROOT / "examples" / example / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```(sh|)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def comparable(line: str) -> str:
    """A line of output; of the matrix without figures, which depend on hypothesis's version."""
    if not line.startswith((" witness.", " xattention.")):
        return line.rstrip()
    return re.sub(r" [\d.,]+", "", " ".join(line.split()))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in CHECKOUT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", EXIT_CODES)
def test_an_example_does_what_its_readme_says(example: str, checkout: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    codes, said = [], ""
    for language, text in blocks(example):
        if language == "sh":
            command = re.sub(r"(^| )python ", rf"\1{sys.executable} ", text.strip())
            run = subprocess.run(
                ["sh", "-c", command],
                cwd=checkout,
                env=environment,
                capture_output=True,
                text=True,
            )
            codes.append(run.returncode)
            said = run.stdout + run.stderr
        else:
            lines = {comparable(line) for line in said.splitlines()}
            missing = [line for line in text.splitlines() if comparable(line) not in lines]
            assert not missing, f"{missing} in none of:\n{said}"
    assert codes == EXIT_CODES[example], said


def test_every_example_is_run() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    assert folders >= EXIT_CODES.keys()
    assert all(any(language == "sh" for language, _ in blocks(name)) for name in EXIT_CODES)
