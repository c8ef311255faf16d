"""The witness policy for the honest variants: by a function that keeps the marks of one row."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.witness import torch_reference

Marks = Callable[[list[int]], Container[object]]


@dataclass(frozen=True)
class Rows:
    """Row by row in Python's integers. ``marks``: how to keep which segments have tokens."""

    marks: Marks

    def operations(self) -> dict[str, Callable[..., Any]]:
        """The operations of the family, by name."""
        return {
            operation.__name__: operation
            for operation in (
                self.topology_witness_indices,
                self.apply_topology_witnesses,
                self.scatter_topology_witnesses_,
            )
        }

    def topology_witness_indices(
        self, context_lens: Tensor, learned_indices: Tensor, num_segments: int
    ) -> Tensor:
        _refuse(learned_indices, context_lens, num_segments, most=num_segments)
        rows = zip(learned_indices.tolist(), context_lens.tolist(), strict=True)
        slots = [self._slots(row, length, num_segments) for row, length in rows]
        return torch.tensor(slots, dtype=torch.int32).reshape(len(slots), num_segments)

    def apply_topology_witnesses(
        self,
        learned_indices: Tensor,
        context_lens: Tensor,
        learned_keep: int,
        num_segments: int,
        max_replacements: int,
    ) -> Tensor:
        _refuse(learned_indices, context_lens, num_segments)
        count, topk = learned_indices.shape
        if not 0 <= learned_keep <= topk:
            raise ValueError(f"learned_keep {learned_keep} is outside [0, {topk}]")
        if max_replacements < 0:
            raise ValueError(f"max_replacements {max_replacements} is negative")
        merged = []
        for row, length in zip(learned_indices.tolist(), context_lens.tolist(), strict=True):
            found = [x for x in self._slots(row, length, num_segments) if x >= 0]
            found = found[: min(max_replacements, topk - learned_keep)]
            merged.append(row[:learned_keep] + found + row[learned_keep + len(found) :])
        return torch.tensor(merged, dtype=torch.int32).reshape(count, topk)

    def scatter_topology_witnesses_(
        self, topk_indices: Tensor, context_lens: Tensor, num_segments: int
    ) -> None:
        _refuse(topk_indices, context_lens, num_segments, least=0)
        if num_segments:
            keep = max(topk_indices.shape[1] - num_segments, 0)
            merge = (topk_indices, context_lens, keep, num_segments, num_segments)
            topk_indices.copy_(self.apply_topology_witnesses(*merge))

    def _slots(self, row: list[int], length: int, segments: int) -> list[int]:
        context = max(length, 1)
        effective = min(segments, context)
        marked = self.marks([min(x * effective // context, segments - 1) for x in row if x >= 0])
        present = effective if length > 0 else 0
        edges = [(s * length + effective - 1) // effective for s in range(present)]
        slots = [-1 if s in marked else edge for s, edge in enumerate(edges)]
        return slots + [-1] * (segments - present)


def _refuse(
    learned: Tensor, lengths: Tensor, segments: int, least: int = 1, most: int = 64
) -> None:
    torch_reference._refuse("the learned entries", learned, lengths)
    if not least <= segments <= max(most, least):
        raise ValueError(f"num_segments {segments} is outside [{least}, {most}]")
