"""Whether a timed call did the work: all of it by the torch reference, and in places by the oracle.

The reference runs on the same device and is no judge: two honest implementations round differently.
It finds the place where a result is farthest from it, and the oracle judges that place and one more
at random, each as a case of its own that is small enough for plain Python. So a wrong result ends
like any other failure: with a table, and a vector that shows it.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from oracles.bounds import Dot
from oracles.selection import UNIT
from suites.cases import (
    ESTIMATE,
    MERGE,
    NORMALISE,
    ONE_PASS,
    ROWS,
    SCORES,
    SELECT,
    SPECIFICATIONS,
    STATS,
    Case,
    Results,
    real,
    to_golden,
)
from suites.runner import Runner
from suites.verdicts import Nonconformance

Place = tuple[int, ...]  # of a row or of a block, in a result
Inputs = dict[str, Any]
Cut = Callable[[Mapping[str, Any], Results, Place], tuple[Inputs, Results]]

AFFORDABLE: Final = 2**22  # products that plain Python works out in a few seconds
TINY: Final = 1e-30


# --- one place of a call, as a call of its own ---------------------------------------------------


def _cut_row(name: str) -> Cut:
    def cut(inputs: Mapping[str, Any], results: Results, place: Place) -> tuple[Inputs, Results]:
        row = slice(place[0], place[0] + 1)
        rows = {key: inputs[key][row] for key in (name, "context_lens")}
        return {**inputs, **rows}, tuple(each[row] for each in results)

    return cut


def _cut_score(inputs: Mapping[str, Any], results: Results, place: Place) -> tuple[Inputs, Results]:
    batch, head, i, j = place
    stride = inputs["stride"]
    parts = {
        "query_states": _part(inputs["query_states"], batch, head, i * stride, stride),
        "key_states": _part(inputs["key_states"], batch, head, j * stride, stride),
        "chunk_start": 0,
        "chunk_end": 1,
    }
    return {**inputs, **parts}, (results[0][batch, head, i, j].view(1, 1, 1, 1),)


def _cut_statistics(
    inputs: Mapping[str, Any], results: Results, place: Place
) -> tuple[Inputs, Results]:
    batch, head, i = place[:3]
    parts = {
        "attn_weights_slice": _part(inputs["attn_weights_slice"], batch, head, i, 1),
        "chunk_start": inputs["chunk_start"] + i,
    }
    return {**inputs, **parts}, tuple(_part(each, batch, head, i, 1) for each in results)


def _cut_merge(inputs: Mapping[str, Any], results: Results, place: Place) -> tuple[Inputs, Results]:
    batch, head, i = place[:3]
    parts = {
        name: tuple(_part(each, batch, head, i, 1) for each in inputs[name])
        for name in ("m_chunks", "l_chunks")
    }
    return parts, tuple(_part(each, batch, head, i, 1) for each in results)


def _cut_block(inputs: Mapping[str, Any], results: Results, place: Place) -> tuple[Inputs, Results]:
    """A block of queries and of keys, by statistics that came in."""
    batch, head, row, column = place
    block = inputs["reshaped_block_size"]
    first, left = row * block, column * block
    scores = _part(inputs["attn_weights_slice"], batch, head, first, block)
    parts = {
        "attn_weights_slice": scores[..., left : left + block],
        "m_global": _part(inputs["m_global"], batch, head, first, block),
        "l_global": _part(inputs["l_global"], batch, head, first, block),
        "chunk_start": inputs["chunk_start"] + first,
        "kv_offset": inputs["kv_offset"] + left,
    }
    return {**inputs, **parts}, (results[0][batch, head, row, column].view(1, 1, 1, 1),)


def _cut_block_row(
    inputs: Mapping[str, Any], results: Results, place: Place
) -> tuple[Inputs, Results]:
    """A block of queries and all keys, which its softmax is over."""
    batch, head, row = place[:3]
    block = inputs["reshaped_block_size"]
    start = inputs["chunk_start"] + row * block
    parts = {
        "attn_weights_slice": _part(inputs["attn_weights_slice"], batch, head, row * block, block),
        "chunk_start": start,
        "chunk_end": start + block,
    }
    return {**inputs, **parts}, (_part(results[0], batch, head, row, 1),)


def _cut_selection(
    inputs: Mapping[str, Any], results: Results, place: Place
) -> tuple[Inputs, Results]:
    batch, head, row = place[:3]
    parts = {
        "input_tensor": _part(inputs["input_tensor"], batch, head, row, 1),
        "current_index": inputs["current_index"] + row,
    }
    return {**inputs, **parts}, (_part(results[0], batch, head, row, 1),)


def _cut_estimate(
    inputs: Mapping[str, Any], results: Results, place: Place
) -> tuple[Inputs, Results]:
    """A block of queries, and the keys up to its end: no other is visible."""
    batch, head, row = place[:3]
    block = inputs["block_size"]
    parts = {
        "query_states": _part(inputs["query_states"], batch, head, row * block, block),
        "key_states": _part(inputs["key_states"], batch, head, 0, (row + 1) * block),
    }
    seen = (_part(each, batch, head, row, 1)[..., : row + 1] for each in results)
    return {**inputs, **parts}, tuple(seen)


def _part(tensor: Tensor, batch: int, head: int, start: int, count: int) -> Tensor:
    return tensor[batch : batch + 1, head : head + 1, start : start + count]


CUTS: Final[Mapping[str, Cut]] = {
    **{operation: _cut_row(name) for operation, name in ROWS.items()},
    SCORES: _cut_score,
    STATS: _cut_statistics,
    MERGE: _cut_merge,
    NORMALISE: _cut_block,
    ONE_PASS: _cut_block_row,
    SELECT: _cut_selection,
    ESTIMATE: _cut_estimate,
}


def case_of(operation: str, inputs: Mapping[str, Any]) -> Case:
    """Arguments by name as a case; only for tensors that are small."""
    named = {name: _value(value) for name, value in inputs.items() if value is not None}
    return Case(operation, named)  # type: ignore[arg-type]


def _value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return to_golden(value)
    if isinstance(value, tuple | list):
        return tuple(map(_value, value))
    return real(value) if isinstance(value, float) else value


# --- where to look -------------------------------------------------------------------------------


def discrepancy(result: Tensor, reference: Tensor) -> Tensor:
    """How far apart, in relation to the reference, element by element; NaN by itself is infinite.

    Integers and masks differ or do not: infinite or 0.
    """
    if not result.dtype.is_floating_point:
        return (result != reference).double() * TINY**-1
    apart = (result.float() - reference.float()).abs() / (reference.float().abs() + TINY)
    same = (result == reference) | (result.isnan() & reference.isnan())
    return apart.nan_to_num(math.inf, math.inf).where(~same, 0)


def farthest(result: Tensor, reference: Tensor) -> tuple[float, Place]:
    """The largest discrepancy, and where: the first element that has it."""
    if torch.equal(result, reference):
        return 0.0, (0,) * result.dim()
    apart = discrepancy(result, reference)
    index = int(apart.argmax())
    place = torch.unravel_index(torch.tensor(index), result.shape)
    return float(apart.flatten()[index]), tuple(int(each) for each in place)


@dataclass(frozen=True)
class Kept:
    """One place of a call, and what was computed there."""

    inputs: Inputs
    results: Results


@dataclass
class Verification:
    """Of the timed calls of one benchmark.

    ``inputs``: argument lists that no call has written to, and ``references`` the results of the
    torch reference on them. ``check`` comes after each call and is quick; ``judge``, at the end,
    asks the oracle.
    """

    runner: Runner
    operation: str
    inputs: Sequence[Mapping[str, Any]]
    references: Sequence[Results]
    seed: int = 0
    checked: int = 0
    worst: float = -1.0
    kept: dict[str, Kept] = field(default_factory=dict)

    def check(self, which: int, results: Results) -> None:
        """Compare the results of a call on the ``which``-th arguments with the reference.

        Raises Nonconformance for what needs no oracle.
        """
        self.checked += 1
        references = self.references[which]
        for name, result, reference in zip(
            SPECIFICATIONS[self.operation].results,  # type: ignore[index]
            results,
            references,
            strict=True,
        ):
            if (result.dtype, result.shape) != (reference.dtype, reference.shape):
                self._fail(
                    which,
                    f"{name} is {result.dtype} {list(result.shape)}, "
                    f"not {reference.dtype} {list(reference.shape)}",
                )
        if self.operation == ESTIMATE:
            results, references = self._check_far_rows(which, results, references)
        for result, reference in zip(results, references, strict=True):
            apart, place = farthest(result, reference)
            if apart > self.worst:
                self.worst = apart
                self._keep("farthest", which, results, place)
        draw = random.Random(self.seed + self.checked)
        anywhere = tuple(draw.randrange(size) for size in results[0].shape)
        self._keep("random", which, results, anywhere)

    def _keep(self, why: str, which: int, results: Results, place: Place) -> None:
        inputs, found = CUTS[self.operation](self.inputs[which], results, place)
        self.kept[why] = Kept(inputs, tuple(each.to("cpu", copy=True) for each in found))

    def judge(self) -> None:
        """Raises Nonconformance where the oracle's bounds do not excuse what was kept."""
        dot = self.runner.implementation.dot
        for kept in self.kept.values():
            case = case_of(self.operation, kept.inputs)
            self.runner.require_close(case, case.expected(), kept.results, case.bounds(dot))
        self.runner.cases += self.checked

    def _fail(self, which: int, statement: str) -> NoReturn:
        """With the first place of the call for a case, as the whole is too large for one."""
        inputs, _ = CUTS[self.operation](
            self.inputs[which], self.references[which], (0,) * self.references[which][0].dim()
        )
        raise Nonconformance(
            f"of the call that was timed, whose first place this is: {statement}",
            case_of(self.operation, inputs),
        )

    def _check_far_rows(
        self, which: int, results: Results, references: Results
    ) -> tuple[Results, Results]:
        """Rows of blocks that are too long for the oracle; those that are not are returned.

        Sums may be as far from the reference's as two honest ones. Of a mask, blocks that are
        mandatory or in the future are certain.
        """
        inputs = self.inputs[which]
        near = affordable_rows(inputs)
        sums, mask = (each[:, :, near:] for each in results)
        expected, expected_mask = (each[:, :, near:] for each in references)
        if sums.numel():
            apart, _ = farthest(sums, expected)
            allowed = honest_difference(inputs, self.runner.implementation.dot)
            if apart > allowed:
                self._fail(which, f"sums are off by {apart:.2g}, honest ones by {allowed:.2g}")
            rows, columns = torch.meshgrid(
                torch.arange(near, results[0].shape[2], device=mask.device),
                torch.arange(mask.shape[3], device=mask.device),
                indexing="ij",
            )
            certain = (columns == 0) | (columns >= rows)
            if ((mask != expected_mask) & certain).any():
                self._fail(which, "the mask lacks a mandatory block, or has one of the future")
        return tuple(each[:, :, :near] for each in results), tuple(
            each[:, :, :near] for each in references
        )


# --- estimates that are too long for the oracle --------------------------------------------------


def affordable_rows(inputs: Mapping[str, Any]) -> int:
    """How many rows of blocks, from the first, the oracle can work out one of; one at least."""
    tokens, head_dim = map(int, inputs["query_states"].shape[2:])
    block, stride = int(inputs["block_size"]), int(inputs["stride"])
    first = (block // stride) ** 2 * stride * head_dim  # products of the first row's one block
    return min(max(AFFORDABLE // first, 1), -(-tokens // block))


def honest_difference(inputs: Mapping[str, Any], dot: Dot) -> float:
    """How far apart two honest block sums of an estimate can be, in relation to the sum.

    From the slips of `oracles.bounds`, with the largest logit that the norms of queries and keys
    allow for each, and every key of the row for a new maximum: coarse, and enough to tell a sum
    from none.
    """
    queries, keys = inputs["query_states"], inputs["key_states"]
    head_dim, products = queries.shape[3], inputs["stride"] * queries.shape[3]
    norms = [float(each.float().norm(dim=-1).max()) for each in (queries, keys)]
    largest = norms[0] * norms[1] / math.sqrt(head_dim)
    stored = torch.finfo(queries.dtype).eps / 2
    factors = 2.0**-9 if dot == "tf32" and queries.dtype == torch.float32 else UNIT
    positions = inputs["block_size"] // inputs["stride"]
    of_logit = largest * (3 * products * UNIT + factors + stored)
    slip = of_logit + UNIT * (19 * largest + 4 + 5 * keys.shape[2] // inputs["stride"])
    return 2 * math.expm1(2 * slip + UNIT * (5 + positions**2) + stored)
