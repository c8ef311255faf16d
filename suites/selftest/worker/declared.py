"""Implementations that a TOML file declares, for the tests; their workers end with the test."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kernels import catalog
from suites.cases import INDICES, Case, to_golden
from suites.runner import Runner

HOSTILE = Path(__file__).with_name("hostile.py")
CPU = torch.device("cpu")


def toml(**keys: Any) -> str:
    """The text of a file with these keys; JSON's scalars and lists are TOML's."""
    plain = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in keys.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, table in tables.items():
        lines += [f"[{key}]", *(f"{each} = {json.dumps(value)}" for each, value in table.items())]
    return "\n".join(lines) + "\n"


def declare(folder: Path, **keys: Any) -> str:
    """Write the file; what to give to ``--impl``."""
    file = folder / f"{keys['name']}.toml"
    file.write_text(toml(**keys), encoding="utf-8")
    return f"toml:{file}"


def hostile(folder: Path, sin: str, **keys: Any) -> str:
    """The worker of `hostile.py` that has one sin, declared."""
    command = [sys.executable, "-S", str(HOSTILE), sin, str(folder)]  # by which it is known
    return declare(folder, name=sin, command=command, **keys)


@contextmanager
def running(argument: str, logs: Path | None = None) -> Iterator[Runner]:
    """A runner of a declared implementation, until its worker is ended."""
    implementation = catalog.load(argument, logs=logs)
    assert implementation.worker is not None
    try:
        yield Runner(implementation, CPU)
    finally:
        implementation.worker.close()


def indices(segments: int, *rows: list[int], length: int = 16) -> Case:
    """A case of the witness indices: learned rows, all of one length."""
    learned = torch.tensor(rows or [[20, -1], [3, 5]], dtype=torch.int32)
    lengths = torch.full((len(learned),), length, dtype=torch.int32)
    inputs: Any = {"context_lens": to_golden(lengths), "learned_indices": to_golden(learned)}
    return Case(INDICES, inputs | {"num_segments": segments})
