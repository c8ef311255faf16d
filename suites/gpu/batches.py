"""Samples beside one another, over and over, in one call that fills the device."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from golden.model import Operation
from suites.cases import Case, Results
from suites.gpu.samples import sample
from suites.runner import Call, Runner

PARTS = 3  # samples that differ in their values


class Batch(NamedTuple):
    """``call``: of all, along the first dimension; ``parts``, each ``copies`` times, in turn."""

    call: Call
    parts: Sequence[Case]
    copies: int

    def of(self, results: Results) -> Results:
        """Results by copy and part: ``[copies, parts, ...]``."""
        return tuple(r.reshape(self.copies, len(self.parts), -1, *r.shape[1:]) for r in results)


def batch(runner: Runner, operation: Operation, size: int) -> Batch:
    """Samples of an operation until the inputs are ``size`` bytes, or just past it."""
    parts = [sample(operation, salt) for salt in range(PARTS)]
    placed = [runner.place(part).tensors for part in parts]
    every = {name: torch.cat([each[name] for each in placed]) for name in placed[0]}
    copies = -(-size // sum(tensor.nbytes for tensor in every.values()))
    large = {name: t.repeat(copies, *[1] * (t.dim() - 1)) for name, t in every.items()}
    return Batch(runner.place(parts[0], large=large), parts, copies)
