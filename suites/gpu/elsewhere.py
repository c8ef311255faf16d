"""Calls made by a process of its own: with Triton interpreted, or under a program that watches.

``python -m suites.gpu.elsewhere IMPL DEVICE RESULTS < cases`` makes each call once, over memory
that is not poisoned. Cases and results are msgpack; in place of a result there may be the reason
why there is none.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest
import torch

from golden.model import Operation, Tensor, Value
from kernels import catalog
from suites.cases import Case, Results, to_golden, to_torch
from suites.runner import Runner
from suites.watch.patching import mend_interpreter

ROOT: Final = Path(__file__).parents[2]
TIMEOUT: Final = 1200  # seconds


class Inputs(msgspec.Struct, frozen=True):
    """A case as data."""

    operation: Operation
    inputs: dict[str, Value]


class Reason(msgspec.Struct, frozen=True):
    """Why a case has no results. ``failed``: because the call is wrong, not because it is left."""

    text: str
    failed: bool


Outcome = tuple[Tensor, ...] | Reason


@dataclass(frozen=True)
class Left:
    """What a process leaves: its exit status, what it printed, and what became of each case."""

    status: int
    said: str
    written: bytes

    def outcomes(self) -> list[Results | Reason]:
        """By case: results, or why there are none. Raises RuntimeError when the process failed."""
        if self.status:
            last = (self.said.strip().splitlines() or ["nothing"])[-1]
            raise RuntimeError(f"calls in another process ended with {self.status}: {last}")
        return [
            outcome if isinstance(outcome, Reason) else tuple(map(to_torch, outcome))
            for outcome in msgspec.msgpack.decode(self.written, type=list[Outcome])
        ]


def call_elsewhere(
    implementation: str,
    device: torch.device,
    cases: Sequence[Case],
    *,
    under: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Left:
    """Make the calls. ``under``: a command, to which the command of the process is added."""
    paths = [str(ROOT), *filter(None, sys.path)]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        process = subprocess.run(
            [*under, sys.executable, "-m", __name__, implementation, str(device), str(results)],
            input=msgspec.msgpack.encode([Inputs(c.operation, dict(c.inputs)) for c in cases]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | dict(environment or {}),
            timeout=TIMEOUT,
            check=False,
        )
        written = results.read_bytes() if results.exists() else b""
    return Left(process.returncode, process.stdout.decode(errors="replace"), written)


def _main(implementation: str, device: torch.device, results_file: Path) -> None:
    if device.type == "cpu":
        mend_interpreter()
    runner = Runner(catalog.load(implementation), device)
    outcomes: list[Outcome] = []
    for each in msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[Inputs]):
        try:
            results = runner.place(Case(each.operation, each.inputs))()
            outcomes.append(tuple(to_golden(result) for result in results))
        except pytest.skip.Exception as left:
            outcomes.append(Reason(str(left), failed=False))
        except Exception as error:  # to read results is to wait for the device, which may be lost
            outcomes.append(Reason(" ".join(str(error).split()), failed=True))
    results_file.write_bytes(msgspec.msgpack.encode(outcomes))


if __name__ == "__main__":
    _main(sys.argv[1], torch.device(sys.argv[2]), Path(sys.argv[3]))
