"""The memory a call is given: poisoned where nobody wrote, guarded where nobody may write.

And the memory it takes.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from golden.model import Layout
from kernels.worker.serve import Poison, poisoned_allocations

__all__ = ["Peak", "Placed", "Poison", "peak_allocation", "place", "poisoned_allocations"]

GUARD = 64  # elements on each side of a view, at the least; even, and a multiple of 16 bytes
GAP = 3  # elements after each row of a padded view
WIDE = 2**30  # elements from head to head of a wide view: twice that is past 31 bits


# --- a tensor in its surroundings ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """``view``, a strided tensor with given values, and the memory around it.

    Bits are compared, so a NaN equals itself and 0.0 does not equal -0.0.
    """

    view: Tensor
    _memory: Tensor  # the whole storage, 1-D; of a wide view what is around each head, 2-D
    _before: Tensor  # its bits at placement, on the same device
    _outside: Tensor  # bool, in its shape: which elements are none of the view's

    def changed(self) -> bool:
        """Whether an element of the view differs from its value at placement."""
        return bool((self._differs() & ~self._outside).any())

    def reaches_outside(self, other: Tensor) -> bool:
        """Whether another tensor has an element of this memory that is none of the view's.

        Of memory around a wide view, and of a type of another width, it is not known: False.
        """
        memory = self._memory
        if memory.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
            return False
        if memory.dim() != 1 or memory.element_size() != other.element_size():
            return False
        place = (other.shape, other.stride(), other.storage_offset())
        return bool(self._outside.as_strided(*place).any())

    def damage(self) -> str | None:
        """How many elements outside the view changed, and where the first lies; or None."""
        damaged = (self._differs() & self._outside).nonzero()
        if not len(damaged):
            return None
        changed = "element" if len(damaged) == 1 else "elements"
        place = zip(damaged[0].tolist(), self._memory.stride(), strict=True)
        first = self._whereabouts(sum(index * stride for index, stride in place))
        return f"{len(damaged)} {changed} outside the view changed, the first {first}"

    def _differs(self) -> Tensor:
        return _bits(self._memory) != self._before

    def _whereabouts(self, index: int) -> str:
        """Where an element of the memory lies that is none of the view's."""
        start = int(self.view.storage_offset())
        stop = start + _extent(self.view.shape, self.view.stride())
        if index < start:
            distance = start - index
            return f"{distance} element{'s' * (distance > 1)} before its start"
        if index >= stop:
            distance = index - stop + 1
            return f"{distance} element{'s' * (distance > 1)} past its end"
        # The element before the gap: count in strides, the widest first.
        rest = index - start
        before = [0] * self.view.dim()
        for dim in sorted(range(self.view.dim()), key=self.view.stride, reverse=True):
            if stride := self.view.stride(dim):
                before[dim] = min(rest // stride, self.view.shape[dim] - 1)
                rest -= before[dim] * stride
        if self.view.stride(-1) == 1 and self.view.stride(0) == max(self.view.stride()):
            return f"in the gap after row {before[0]}"
        return f"in the gap after element {tuple(before)}"


def place(values: Tensor, layout: Layout, poison: Poison, device: torch.device | str) -> Placed:
    """Put ``values`` (any shape and dtype, on the CPU) in the midst of poisoned memory.

    There are at least 64 elements on each side. ``offset`` starts at an odd element, so that
    16-byte alignment is lost; ``padded`` leaves three elements after each row (each slice along
    the first dim); ``sliced`` takes every second element of a buffer twice as wide; ``transposed``
    is column-major (of 1-D values: sliced); ``broadcast`` has stride 0 along the first dim;
    ``wide`` has 2**30 elements from head to head, the second of three dims or more, and leaves all
    memory between them untouched, so that it takes up none. A 0-d tensor has no strides: beyond
    ``offset``, its layouts are one.

    Raises ValueError when ``broadcast`` is asked for and the slices along the first dim differ.
    """
    strides = _strides(tuple(values.shape), layout)
    start = GUARD + (layout == "offset")
    size = start + _extent(values.shape, strides) + GUARD
    memory = torch.empty(size, dtype=values.dtype, device=device)
    view = memory.as_strided(values.shape, strides, start)
    if WIDE in strides and size > WIDE:
        heads = values.shape[1]
        memory = memory.as_strided((heads, size - (heads - 1) * WIDE), (WIDE, 1))
    memory.fill_(poison.of(values.dtype))
    overwrite(view, values)
    outside = torch.ones(memory.shape, dtype=torch.bool, device=device)
    within = [memory.shape[-1] if stride == WIDE else stride for stride in strides]
    elements = torch.arange(outside.numel(), device=device).as_strided(values.shape, within, start)
    outside.view(-1)[elements] = False
    return Placed(view, memory, _bits(memory).clone(), outside)


def overwrite(view: Tensor, values: Tensor) -> None:
    """Write values, of its shape, where a view lies.

    Raises ValueError when the slices along the first dim lie in one place and are to differ.
    """
    if view.dim() and len(view) > 1 and not view.stride(0):
        if (_bits(values) != _bits(values[:1])).any():
            raise ValueError(
                "layout 'broadcast' stores the first slice alone, and the values have slices that"
                " differ; make them equal or choose another layout"
            )
        view, values = view[0], values[0]
    view.copy_(values)


def _strides(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    dense = _dense(shape)
    if not shape:
        return dense
    match layout:
        case "contiguous" | "offset":
            return dense
        case "padded":
            return (dense[0] + GAP, *dense[1:])
        case "transposed" if len(shape) > 1:
            return _dense(shape[::-1])[::-1]
        case "sliced" | "transposed":
            return tuple(2 * stride for stride in dense)
        case "broadcast":
            return (0, *dense[1:])
        case "wide" if len(shape) > 2:
            first, *rest = _dense((shape[0], *shape[2:]))
            return (first, WIDE, *rest)
        case "wide":
            return dense


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first of a view to past its last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _bits(tensor: Tensor) -> Tensor:
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(widths[tensor.element_size()])


# --- what an implementation reaches --------------------------------------------------------------


class OutsideView(Exception):  # noqa: N818 - a verdict on a call
    """A call made a tensor of memory that it was not given."""


@contextmanager
def inside_views(placed: Mapping[str, Placed]) -> Iterator[None]:
    """Raises OutsideView when ``as_strided`` reaches outside the view of one of ``placed``.

    Who puts back what was there leaves no trace.
    """
    with _Inside(placed):
        yield


class _Inside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, placed: Mapping[str, Placed]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._placed = placed

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.as_strided:
            for name, placed in self._placed.items():
                if placed.reaches_outside(result):
                    raise OutsideView(f"as_strided reaches outside {name}")
        return result


# --- how much an implementation holds ------------------------------------------------------------


@dataclass
class Peak:
    """``bytes``: the most that was held at one time so far."""

    bytes: int = 0


@contextmanager
def peak_allocation(device: torch.device) -> Iterator[Peak]:
    """The most memory held at one time, on ``device``, of what is allocated inside.

    By the allocator of a GPU, which rounds up. On a CPU by the storages that torch operations hand
    out, so that what an operation takes for itself, or a library other than torch, is not counted.
    """
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    with _Counting(peak):
        yield peak


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every storage from the operation that returns it until it is freed."""

    def __init__(self, peak: Peak) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._peak = peak
        self._held: dict[int, int] = {}  # bytes by the address of a storage's record

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            key = storage._cdata
            if key not in self._held:
                if key in given:  # a view of what was there before
                    continue
                weakref.finalize(storage, self._held.pop, key)
            self._held[key] = storage.nbytes()  # again, for it may have been resized
        self._peak.bytes = max(self._peak.bytes, sum(self._held.values()))
        return result


def _storages(values: Any) -> list[Any]:
    """The storages among the arguments or results of an operation, on the CPU."""
    leaves = (
        leaf.untyped_storage() if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(values)
    )
    return [
        leaf
        for leaf in leaves
        if isinstance(leaf, torch.UntypedStorage) and leaf.device.type == "cpu"
    ]
