"""Tensors past 2^31 elements, and the few rows of them that the oracle judges.

``wrap`` is where offsets of 32 bits would begin again; the tests of the checks have it lower.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from golden.model import Operation, Value
from suites.cases import NORMALISE, ONE_PASS, SCORES, STATS, Case, real, to_golden

# Rows one after the other; slot by slot of all rows; few rows, far apart.
Arrangement = Literal["dense", "transposed", "apart"]

SENTINEL: Final = -77_777  # in the gaps between rows; no row holds it
PART: Final = 2**26  # elements made or looked at together, to hold little beside the giant


# --- the witness family --------------------------------------------------------------------------


class Rows(NamedTuple):
    """``learned``, int32 ``[rows, topk]``, a view of ``memory``; ``lengths``, int64 ``[rows]``."""

    memory: Tensor
    learned: Tensor
    lengths: Tensor
    wrap: int

    @property
    def telling(self) -> list[int]:
        """The first row, the last, and the ones where the wrap is and beside it."""
        count, topk = self.learned.shape
        strides = self.learned.stride()
        wraps = self.wrap // strides[0] if strides[0] >= topk else 0
        wanted = {0, 1, wraps - 1, wraps, wraps + 1, count - 2, count - 1}
        return sorted(row for row in wanted if 0 <= row < count)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Where parts of the rows begin and end."""
        count, topk = self.learned.shape
        step = max(PART // topk, 1)
        yield from ((first, min(first + step, count)) for first in range(0, count, step))

    def original(self, first: int, end: int) -> Tensor:
        """What the rows from ``first`` to ``end`` held at the beginning, int32."""
        row = torch.arange(first, end, device=self.learned.device)[:, None]
        slot = torch.arange(self.learned.shape[1], device=self.learned.device)
        scrambled = (row * 2_654_435_761 + slot * 40_503 + row * slot) % 1_000_003
        inside = scrambled % (self.lengths[first:end, None].clamp(min=0) // 3 + 1)
        kind = scrambled % 5
        return torch.where(kind < 3, inside, torch.where(kind == 3, -1, scrambled * 2000)).int()


def rows_past(wrap: int, topk: int, arrangement: Arrangement, device: torch.device) -> Rows:
    """Learned rows the last of which lie past ``wrap`` elements."""
    count, extent = wrap // topk + 5, topk
    if arrangement == "apart":
        extent = wrap // 4 + 3
        count = 7
    memory = torch.full(((count - 1) * extent + topk,), SENTINEL, dtype=torch.int32, device=device)
    if arrangement == "transposed":
        learned = memory.view(topk, count).T
    else:
        learned = memory.as_strided((count, topk), (extent, 1))
    number = torch.arange(count, device=device)
    lengths = torch.tensor([0, 1, 33, 500, 4096, 131072, 2**31 - 1], device=device)[number % 7]
    rows = Rows(memory, learned, lengths, wrap)
    for first, end in rows.parts():
        learned[first:end] = rows.original(first, end)
    return rows


# --- XAttention ----------------------------------------------------------------------------------

BLOCK: Final = 16
STRIDE: Final = 2
OPERATIONS: Final[tuple[Operation, ...]] = (SCORES, STATS, NORMALISE, ONE_PASS)


class Scores(NamedTuple):
    """An operation on ``tensors`` of whose scores there are more than the wrap.

    ``inputs``: everything else. Nothing is causal, so that every row reads all of its keys.
    """

    operation: Operation
    tensors: Mapping[str, Tensor]
    inputs: Mapping[str, Value]
    rows: int
    columns: int
    wrap: int

    @property
    def telling(self) -> list[int]:
        """The first block of rows, the one where the wrap is, and the last."""
        return sorted({0, self.wrap // self.columns // BLOCK, self.rows // BLOCK - 1})

    def case(self, block: int) -> Case:
        """A call with one block of the rows, at its place; of scores with its first row alone."""
        first = block * BLOCK
        end = first + (1 if self.operation == SCORES else BLOCK)
        inputs = dict(self.inputs)
        for name, tensor in self.tensors.items():
            if name == "query_states":
                tensor = tensor[:, :, first * STRIDE : end * STRIDE]
            elif name != "key_states":
                tensor = tensor[:, :, first:end]
            inputs[name] = to_golden(tensor)
        if self.operation != STATS:
            inputs["chunk_start"] = first
        if self.operation in (ONE_PASS, SCORES):
            inputs["chunk_end"] = end
        return Case(self.operation, inputs)

    def rows_of_result(self, block: int) -> slice:
        """Where the result of ``case(block)`` is in the result of all."""
        if self.operation in (NORMALISE, ONE_PASS):
            return slice(block, block + 1)
        return slice(block * BLOCK, block * BLOCK + (1 if self.operation == SCORES else BLOCK))


def scores_past(operation: Operation, wrap: int, columns: int, device: torch.device) -> Scores:
    """Scores of fp16, more than ``wrap`` of them, of ``columns`` keys."""
    rows = wrap // columns + 2 * BLOCK
    inputs: dict[str, Value] = {"is_causal": False}
    if operation == SCORES:
        states = {"query_states": rows, "key_states": columns}
        tensors = {
            name: _halves(length * STRIDE * 8, device).reshape(1, 1, length * STRIDE, 8)
            for name, length in states.items()
        }
        inputs |= {"stride": STRIDE, "chunk_start": 0, "chunk_end": rows}
        return Scores(operation, tensors, inputs, rows, columns, wrap)
    tensors = {"attn_weights_slice": _halves(rows * columns, device).reshape(1, 1, rows, columns)}
    inputs |= {"reshaped_block_size": BLOCK, "segment_size": BLOCK, "scale": real(0.5)}
    if operation != STATS:
        inputs |= {"chunk_start": 0, "real_q_len": rows}
    if operation == ONE_PASS:
        inputs["chunk_end"] = rows
    if operation == NORMALISE:
        row = torch.arange(rows, device=device).reshape(1, 1, rows)
        tensors["m_global"] = 2 + row.float() % 3
        tensors["l_global"] = columns + row.float() % 5
    return Scores(operation, tensors, inputs, rows, columns, wrap)


def _halves(count: int, device: torch.device) -> Tensor:
    """fp16, multiples of 1/256 from -2 to 2, from their number."""
    values = torch.empty(count, dtype=torch.float16, device=device)
    for first in range(0, count, PART):
        number = torch.arange(first, min(first + PART, count), device=device)
        values[first : first + PART] = (number * 40_503 + number // 1021) % 1025 / 256 - 2
    return values
