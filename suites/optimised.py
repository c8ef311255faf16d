"""Cases in a Python that runs with -O, where no assert is carried out (R-X17)."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from unittest.mock import patch

import pytest
import torch

from kernels import catalog
from suites.cases import Case, Results
from suites.runner import Runner
from suites.verdicts import Nonconformance
from suites.watch.patching import mend_interpreter

Outcome = Results | str  # what a call gave, or what became of it instead


def outcomes(runner: Runner, cases: Sequence[Case]) -> list[Outcome]:
    """What becomes of each case with the implementation of a runner, loaded anew under -O.

    The interpreter is another process, with the import path, the environment and the device of
    this one.
    """
    given = runner.implementation.given
    with (
        patch.dict(os.environ, PYTHONOPTIMIZE="1"),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        try:
            return process.submit(_outcomes, given, str(runner.device), cases).result()
        except BrokenProcessPool as error:
            raise Nonconformance(
                "a Python that runs with -O died of these cases", cases[0], status="crashed"
            ) from error


def _outcomes(name: str, device: str, cases: Sequence[Case]) -> list[Outcome]:
    if __debug__:
        raise RuntimeError("this interpreter does not run with -O")
    if torch.device(device).type == "cpu":
        mend_interpreter()
    runner = Runner(catalog.load(name), torch.device(device))
    return [outcome(runner, case) for case in cases]


def outcome(runner: Runner, case: Case) -> Outcome:
    """What becomes of a case in this interpreter."""
    try:
        return runner.call(case) if runner.accepts(case) else "the call is refused"
    except (Nonconformance, pytest.skip.Exception) as left:
        return str(left)
