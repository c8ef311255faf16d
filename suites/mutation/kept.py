"""Outcomes that are kept: a mutant that was tested is not tested again until something changes.

An outcome is known by the mutated text, by the rest of what runs with it, and by all that judges:
golden files, oracles, the suites of the main job and of the sanitizer, the versions of the tools.
"""

import os
import platform
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from suites.mutation.engine import ROOT, Depth, Outcome
from suites.mutation.mutants import FILES, Mutant
from suites.recording import TOOLS

# What no verdict of the main job follows from, and in it what decides which tests run.
ASIDE: Final = [("suites", each) for each in ("selftest", "bench", "compile", "gpu", "mutation")]
RUNS: Final = [("mutation", "engine.py"), ("mutation", "install.py")]
SHARED: Final = ("refusals", "triton_selection", "triton_tiles")  # by several implementations


def find(mutant: Mutant, depth: Depth) -> Outcome | None:
    try:
        return msgspec.json.decode(_path(mutant, depth).read_bytes(), type=Outcome)
    except (OSError, msgspec.DecodeError):
        return None


def keep(mutant: Mutant, depth: Depth, outcome: Outcome) -> None:
    path = _path(mutant, depth)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(outcome))


def _path(mutant: Mutant, depth: Depth) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parts = [mutant.implementation, *sorted(mutant.operations), mutant.file, mutant.text]
    known = "\0".join([_surroundings(mutant.implementation), *parts, depth])
    key = sha256(known.encode()).hexdigest()[:32]
    return Path(home) / "sparse-conformance" / "mutants" / f"{key}.json"


@cache
def _surroundings(implementation: str) -> str:
    """All that an outcome follows from but the mutated file itself, which is hashed as it was."""
    digest = sha256(platform.python_version().encode())
    for tool in TOOLS:
        digest.update(metadata.version(tool).encode())
    others = {file for name, files in FILES.items() if name != implementation for file in files}
    shared = {file for file in others if Path(file).stem in SHARED}
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        if name.removeprefix("kernels/") not in others - shared:
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    """The files of the checkout, but those that are beside the point."""
    for folder in ("golden", "kernels", "oracles", "suites"):
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            judges = parts[:2] not in ASIDE or parts[1:] in RUNS
            if judges and path.is_file() and "__pycache__" not in parts:
                yield path
    yield ROOT / "pyproject.toml"
    yield ROOT / "conftest.py"
