"""A case: an operation and its inputs. Golden vectors, strategies and replays all make these."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

import msgspec
import numpy as np
import torch

from golden.model import Layout, Operation, Tensor, Value
from oracles import bounds, selection, witness, xattention
from oracles.bounds import Dot

# What a call gives, and how far each element of it may be from the oracle's (None: by nothing).
Results = tuple[torch.Tensor, ...]
Bounds = tuple[torch.Tensor | None, ...]

INDICES: Final = "topology_witness_indices"
APPLY: Final = "apply_topology_witnesses"
SERVE: Final = "scatter_topology_witnesses_"

# The operations that work on rows, and the input that holds the learned rows.
ROWS: Final[Mapping[Operation, str]] = {
    INDICES: "learned_indices",
    APPLY: "learned_indices",
    SERVE: "topk_indices",
}

SCORES: Final = "flat_group_gemm_fuse_reshape"
ONE_PASS: Final = "softmax_fuse_block_sum"
STATS: Final = "softmax_compute_partial_stats"
MERGE: Final = "merge_softmax_stats"
NORMALISE: Final = "softmax_normalize_and_block_sum"
SELECT: Final = "find_blocks_chunked"
ESTIMATE: Final = "xattn_estimate"


@dataclass(frozen=True)
class Specification:
    """What the harness has to know of an operation beyond its signature in `kernels.api`."""

    oracle: Callable[..., Any]
    dtype: torch.dtype | None = None  # of what the oracle returns as plain numbers
    results: tuple[str, ...] = ("result",)
    in_place: str | None = None  # the input that holds the result after the call
    bounds: Callable[..., Any] | None = None  # of the oracle's parameters; None: exact
    dot: bool = False  # whether the bounds depend on how a product of two fp32 is computed
    plain: bool = False  # whether a call may return numbers instead of tensors


SPECIFICATIONS: Final[Mapping[Operation, Specification]] = {
    INDICES: Specification(witness.topology_witness_indices, torch.int32),
    APPLY: Specification(witness.apply_topology_witnesses, torch.int32),
    SERVE: Specification(witness.scatter_topology_witnesses_, torch.int32, in_place="topk_indices"),
    "segment_of": Specification(witness.segment_of, torch.int64, plain=True),
    "random_null": Specification(witness.random_null, torch.int32, plain=True),
    "locality_null": Specification(witness.locality_null, torch.int32, plain=True),
    "segment_coverage": Specification(witness.segment_coverage, torch.float64, plain=True),
    "attention_mass_recall": Specification(
        witness.attention_mass_recall,
        torch.float64,
        bounds=witness.attention_mass_recall_bound,
        plain=True,
    ),
    SCORES: Specification(
        xattention.flat_group_gemm_fuse_reshape,
        results=("scores",),
        bounds=bounds.flat_group_gemm_fuse_reshape,
        dot=True,
    ),
    ONE_PASS: Specification(
        xattention.softmax_fuse_block_sum,
        results=("block_sums",),
        bounds=bounds.softmax_fuse_block_sum,
    ),
    STATS: Specification(
        xattention.softmax_compute_partial_stats,
        results=("m", "l"),
        bounds=bounds.softmax_compute_partial_stats,
    ),
    MERGE: Specification(
        xattention.merge_softmax_stats, results=("m", "l"), bounds=bounds.merge_softmax_stats
    ),
    NORMALISE: Specification(
        xattention.softmax_normalize_and_block_sum,
        results=("block_sums",),
        bounds=bounds.softmax_normalize_and_block_sum,
    ),
    SELECT: Specification(
        selection.find_blocks_chunked, results=("mask",), bounds=bounds.find_blocks_chunked
    ),
    ESTIMATE: Specification(
        xattention.xattn_estimate,
        results=("block_sums", "mask"),
        bounds=bounds.xattn_estimate,
        dot=True,
    ),
}

# Arguments of XAttention that have to fit others: where they do not, a refusal may name any.
FIT: Final[Mapping[str, tuple[str, ...]]] = {
    "query_states": ("key_states", "stride", "block_size"),
    "key_states": ("query_states", "stride", "block_size"),
    "block_size": ("stride",),
    "chunk_size": ("block_size",),
    "chunk_end": ("chunk_start",),
    "attn_weights_slice": ("reshaped_block_size",),
    "m_global": ("l_global", "attn_weights_slice"),
    "l_global": ("m_global", "attn_weights_slice"),
    "m_chunks": ("l_chunks",),
    "l_chunks": ("m_chunks",),
    "current_index": ("input_tensor",),
}


class Undisclosed(RuntimeError):  # noqa: N818 - a refusal
    """An implementation asked, during a call, what is expected of it."""


_UNDISCLOSED: Final = threading.Event()  # of all threads, for an implementation may have some


@contextmanager
def undisclosed(applies: bool = True) -> Iterator[None]:
    """Inside, if this ``applies``, no case says what is expected of it."""
    if applies:
        _UNDISCLOSED.set()
    try:
        yield
    finally:
        _UNDISCLOSED.clear()


@dataclass(frozen=True)
class Case:
    """An operation and its inputs by parameter name."""

    operation: Operation
    inputs: Mapping[str, Value]

    @cached_property
    def digest(self) -> str:
        """Eight hexadecimal digits by which the inputs are known, the same in every run."""
        return sha256(msgspec.json.encode(dict(self.inputs))).hexdigest()[:8]

    @property
    def specification(self) -> Specification:
        return SPECIFICATIONS[self.operation]

    def changed(self, **inputs: Value) -> "Case":
        """The case with some of its inputs replaced."""
        return Case(self.operation, {**self.inputs, **inputs})

    def expected(self) -> Results:
        """The oracle's results. Raises ValueError where the specification refuses the call.

        Raises Undisclosed while an implementation is called.
        """
        if _UNDISCLOSED.is_set():
            raise Undisclosed(f"what is expected of {self.operation} is not said during a call")
        return self.results(self.specification.oracle(**self._numbers()))

    def bounds(self, dot: Dot = "ieee", *, staged: bool = False) -> Bounds:
        """The error that an honest implementation's results may have, float64, by element.

        Of a block mask: 1 where either decision is honest, and 0 elsewhere. ``dot``: how the
        implementation multiplies fp32. ``staged``: of block sums in one pass, where they came by
        way of the three stages.
        """
        bounds = self.specification.bounds
        if bounds is None:
            return (None,) * len(self.specification.results)
        how: dict[str, Any] = {"dot": dot} if self.specification.dot else {}
        how |= {"staged": True} if staged else {}
        found = bounds(**self._numbers(), **how)
        each = found if isinstance(found, tuple) else (found,)
        return tuple(_tensor(bound, torch.float64) for bound in each)

    def results(self, returned: Any) -> Results:
        """What an oracle or an implementation returned, as tensors.

        Raises TypeError, ValueError or RuntimeError when it is none.
        """
        names = self.specification.results
        each = (returned,) if len(names) == 1 else tuple(returned)
        if len(each) != len(names):
            raise ValueError(f"{len(each)} results")
        results = tuple(_tensor(value, self.specification.dtype) for value in each)
        if self.operation not in ROWS or isinstance(returned, torch.Tensor):
            return results
        rows, topk = self.tensor(ROWS[self.operation]).shape
        width = self.number("num_segments") if self.operation == INDICES else topk
        return (results[0].reshape(rows, width),)

    def _numbers(self) -> dict[str, Any]:
        """The inputs as an oracle takes them."""
        return {name: number(value) for name, value in self.inputs.items()}

    @property
    def passes_through(self) -> bool:
        """Whether the specification lets the call end before any kernel runs."""
        learned = ROWS.get(self.operation)
        if learned is None:
            return False
        rows, topk = self.tensor(learned).shape
        return (
            rows == 0
            or self.inputs["num_segments"] == 0
            or self.inputs.get("max_replacements") == 0
            or self.inputs.get("learned_keep") == topk
        )

    @property
    def refusable(self) -> tuple[str, ...]:
        """What an implementation that is limited may refuse by name in a legal call of XAttention.

        Tensors with strides (R-X15) and offsets that are not aligned (R-X3).
        """
        if self.operation in ROWS or self.specification.plain:
            return ()
        strided = ("padded", "sliced", "transposed", "broadcast", "wide")
        names = [
            name
            for name, value in self.inputs.items()
            for tensor in (value if isinstance(value, tuple) else (value,))
            if isinstance(tensor, Tensor) and tensor.layout in strided
        ]
        sizes = [self.inputs.get(name, 1) for name in ("reshaped_block_size", "segment_size")]
        return (
            *names,
            *(
                name
                for name in ("chunk_start", "kv_offset")
                if any(size and self.inputs.get(name, 0) % size for size in sizes)  # type: ignore[operator]
            ),
        )

    def at_fault(self, argument: str) -> tuple[str, ...]:
        """What a refusal on account of an argument may name; nothing in particular: ().

        The witness family need not name any.
        """
        if self.operation in ROWS or self.specification.plain:
            return ()
        return (argument, *FIT.get(argument, ()))

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
        """Without the elements of tensors, of which there may be many thousands."""
        parts = (f"{name}={_shown(value)}" for name, value in self.inputs.items())
        return f"{self.operation}({', '.join(parts)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints: of its own accord it would print the fields, and warn of them."""
        printer.text(repr(self))


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    plain = number(value)
    return f"{plain.dtype}{list(plain.shape)}" if isinstance(plain, Tensor) else str(plain)


def _tensor(value: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor as it is, an oracle's array by its own dtype, and numbers by the one given."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, selection.Result):
        return torch.tensor(value.data, dtype=getattr(torch, value.dtype)).reshape(value.shape)
    if dtype is None:
        raise TypeError(f"{type(value).__name__} is no tensor")
    return torch.tensor(value, dtype=dtype)


def number(value: Value) -> Any:
    """A value as a plain number where it is one: a float is a float64 tensor without dimensions."""
    if isinstance(value, Tensor) and (value.dtype, value.shape) == ("float64", ()):
        return float(value.data[0])
    return value


def real(value: float) -> Tensor:
    """The inverse of `number` for a float."""
    return to_golden(torch.tensor(value, dtype=torch.float64))


def to_torch(tensor: Tensor) -> torch.Tensor:
    """The tensor's values on the CPU, contiguous; floats from their bits."""
    dtype: torch.dtype = getattr(torch, tensor.dtype)
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
