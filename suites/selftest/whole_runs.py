"""Whole runs of pytest, for what they alone show: exit codes, terminal output, the record."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from golden.record import Line

ROOT = Path(__file__).parent.parent.parent


def run_pytest(
    folder: Path, *arguments: str, path: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder of the user's; modules can be imported from there, and ``path``."""
    # What a job or another run has set is not for this one; under CI, pytest prints more.
    ours = ("PYTEST", "GITHUB", "CI")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment.pop("FORCE_COLOR", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.pathsep.join(map(str, [folder, ROOT, *path]))},
        capture_output=True,
        text=True,
        timeout=280,
    )


def record_of(folder: Path) -> list[Line]:
    """The record that a run in that folder left."""
    lines = (folder / ".conformance" / "record.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Line) for line in lines]
