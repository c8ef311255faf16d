"""A case: an operation and its inputs. Golden vectors, strategies and replays all make these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from golden.model import Layout, Operation, Tensor, Value
from oracles import witness

INDICES: Final = "topology_witness_indices"
APPLY: Final = "apply_topology_witnesses"
SERVE: Final = "scatter_topology_witnesses_"

# The operations that work on rows, and the input that holds the learned rows.
ROWS: Final[Mapping[Operation, str]] = {
    INDICES: "learned_indices",
    APPLY: "learned_indices",
    SERVE: "topk_indices",
}


@dataclass(frozen=True)
class Specification:
    """What the harness has to know of an operation beyond its signature in `kernels.api`."""

    oracle: Callable[..., Any]
    dtype: torch.dtype  # of the result; a Python int counts as int64, a float as float64
    in_place: str | None = None  # the input that holds the result after the call
    bound: Callable[..., float] | None = None  # on the error of a float result; None: exact


SPECIFICATIONS: Final[Mapping[Operation, Specification]] = {
    INDICES: Specification(witness.topology_witness_indices, torch.int32),
    APPLY: Specification(witness.apply_topology_witnesses, torch.int32),
    SERVE: Specification(witness.scatter_topology_witnesses_, torch.int32, in_place="topk_indices"),
    "segment_of": Specification(witness.segment_of, torch.int64),
    "random_null": Specification(witness.random_null, torch.int32),
    "locality_null": Specification(witness.locality_null, torch.int32),
    "segment_coverage": Specification(witness.segment_coverage, torch.float64),
    "attention_mass_recall": Specification(
        witness.attention_mass_recall, torch.float64, bound=witness.attention_mass_recall_bound
    ),
}


@dataclass(frozen=True)
class Case:
    """An operation and its inputs by parameter name."""

    operation: Operation
    inputs: Mapping[str, Value]

    @property
    def specification(self) -> Specification:
        return SPECIFICATIONS[self.operation]

    def expected(self) -> torch.Tensor:
        """The oracle's result. Raises ValueError where the specification refuses the call."""
        return self.result(self.specification.oracle(**self.inputs))

    def result(self, value: Any) -> torch.Tensor:
        """What an oracle or an implementation returned, as a tensor."""
        if isinstance(value, torch.Tensor):
            return value
        result = torch.tensor(value, dtype=self.specification.dtype)
        if self.operation not in ROWS:
            return result
        rows, topk = self.tensor(ROWS[self.operation]).shape
        width = self.number("num_segments") if self.operation == INDICES else topk
        return result.reshape(rows, width)

    def bound(self) -> torch.Tensor | None:
        """The error that an honest implementation's result may have; None where it is exact."""
        bound = self.specification.bound
        return None if bound is None else torch.tensor(bound(**self.inputs), dtype=torch.float64)

    @property
    def passes_through(self) -> bool:
        """Whether the specification lets the call end before any kernel runs."""
        learned = ROWS.get(self.operation)
        if learned is None:
            return True
        rows, topk = self.tensor(learned).shape
        return (
            rows == 0
            or self.inputs["num_segments"] == 0
            or self.inputs.get("max_replacements") == 0
            or self.inputs.get("learned_keep") == topk
        )

    def tensor(self, name: str) -> Tensor:
        value = self.inputs[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"{self.operation}: {name} is not a tensor")
        return value

    def integers(self, name: str) -> list[int]:
        """The values of an integer tensor, in row-major order."""
        return [int(value) for value in self.tensor(name).data]

    def number(self, name: str) -> int:
        value = self.inputs[name]
        if not isinstance(value, int):
            raise TypeError(f"{self.operation}: {name} is not an integer")
        return value

    def __repr__(self) -> str:
        parts = [
            f"{name}={f'{v.dtype}{list(v.shape)}' if isinstance(v, Tensor) else v}"
            for name, v in self.inputs.items()
        ]
        return f"{self.operation}({', '.join(parts)})"


def to_torch(tensor: Tensor) -> torch.Tensor:
    """The tensor's values on the CPU, contiguous; floats from their bits."""
    dtype = getattr(torch, tensor.dtype)
    if not dtype.is_floating_point:
        return torch.tensor(tensor.data, dtype=dtype).reshape(tensor.shape)
    width = dtype.itemsize
    patterns = np.array([int(bits, 16) for bits in tensor.bits], dtype=f"<u{width}")
    signed = torch.from_numpy(patterns.view(f"<i{width}"))
    return signed.view(dtype).reshape(tensor.shape)


def to_golden(values: torch.Tensor, layout: Layout = "contiguous") -> Tensor:
    """The inverse of `to_torch`."""
    values = values.detach().cpu().contiguous()
    name: Any = str(values.dtype).removeprefix("torch.")
    flat = values.flatten()
    if not values.dtype.is_floating_point:
        return Tensor(name, tuple(values.shape), tuple(flat.tolist()), layout=layout)
    width = values.dtype.itemsize
    signed = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[width]).numpy()
    bits = tuple(f"{pattern:0{2 * width}x}" for pattern in signed.view(f"<u{width}").tolist())
    data: Any = tuple(x if np.isfinite(x) else str(x) for x in flat.tolist())
    return Tensor(name, tuple(values.shape), data, bits, layout)
