"""The memory a call is given: poisoned where nobody wrote, guarded where nobody may write."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, nan, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from golden.model import Layout

GUARD = 64  # elements on each side of a view, at the least; even, and a multiple of 16 bytes
GAP = 3  # elements after each row of a padded view


class Poison(enum.Enum):
    """What memory holds that nobody wrote.

    LOW: NaN, the smallest integer, or False. HIGH: -inf, the largest integer, or True. What
    depends on such memory differs between the two.
    """

    LOW = enum.auto()
    HIGH = enum.auto()

    def of(self, dtype: torch.dtype) -> float | int | bool:
        """The fill value of a dtype."""
        if dtype == torch.bool:
            return self is Poison.HIGH
        if dtype.is_floating_point or dtype.is_complex:
            # Some 8-bit formats have no infinity.
            lowest = torch.finfo(dtype).min if dtype.itemsize == 1 else -inf
            return nan if self is Poison.LOW else lowest
        limits = torch.iinfo(dtype)
        return limits.min if self is Poison.LOW else limits.max


# --- a tensor in its surroundings ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """``view``, a strided tensor with given values, and the memory around it.

    Bits are compared, so a NaN equals itself and 0.0 does not equal -0.0.
    """

    view: Tensor
    _memory: Tensor  # the whole storage, 1-D
    _before: Tensor  # its bits at placement, on the same device
    _outside: Tensor  # bool, 1-D: which elements are none of the view's

    def changed(self) -> bool:
        """Whether an element of the view differs from its value at placement."""
        return bool((self._differs() & ~self._outside).any())

    def damage(self) -> str | None:
        """How many elements outside the view changed, and where the first lies; or None."""
        damaged = (self._differs() & self._outside).nonzero()
        if not len(damaged):
            return None
        changed = "element" if len(damaged) == 1 else "elements"
        first = self._whereabouts(int(damaged[0]))
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
                before[dim], rest = divmod(rest, stride)
        if self.view.stride(-1) == 1:
            return f"in the gap after row {before[0]}"
        return f"in the gap after element {tuple(before)}"


def place(values: Tensor, layout: Layout, poison: Poison, device: torch.device | str) -> Placed:
    """Put ``values`` (any shape and dtype, on the CPU) in the midst of poisoned memory.

    There are at least 64 elements on each side. ``offset`` starts at an odd element, so that
    16-byte alignment is lost; ``padded`` leaves three elements after each row (each slice along
    the first dim); ``sliced`` takes every second element of a buffer twice as wide; ``transposed``
    is column-major (of 1-D values: sliced); ``broadcast`` has stride 0 along the first dim. A
    0-d tensor has no strides: beyond ``offset``, its layouts are one.

    Raises ValueError when ``broadcast`` is asked for and the slices along the first dim differ.
    """
    strides = _strides(tuple(values.shape), layout)
    start = GUARD + (layout == "offset")
    size = start + _extent(values.shape, strides) + GUARD
    memory = torch.full((size,), poison.of(values.dtype), dtype=values.dtype, device=device)
    view = memory.as_strided(values.shape, strides, start)
    if layout != "broadcast" or not values.dim():
        view.copy_(values)
    elif len(values):
        if (_bits(values) != _bits(values[:1])).any():
            raise ValueError(
                "layout 'broadcast' stores the first slice alone, and the values have slices that"
                " differ; make them equal or choose another layout"
            )
        view[0].copy_(values[0])
    outside = torch.ones(size, dtype=torch.bool, device=device)
    outside[torch.arange(size, device=device).as_strided(values.shape, strides, start)] = False
    return Placed(view, memory, _bits(memory).clone(), outside)


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


# --- what an implementation allocates ------------------------------------------------------------

_aten = torch.ops.aten
_UNINITIALISED = (
    _aten.empty,
    _aten.empty_like,
    _aten.empty_permuted,
    _aten.empty_strided,
    _aten.new_empty,
    _aten.new_empty_strided,
)


@contextmanager
def poisoned_allocations(poison: Poison) -> Iterator[None]:
    """Inside, memory that torch hands out uninitialised holds the poison of its dtype.

    So does what ``resize_`` adds. Storage is filled as a whole, the gaps of strided allocations
    included.
    """
    with _Poisoning(poison):
        yield


class _Poisoning(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, poison: Poison) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._poison = poison

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        grows = func.overloadpacket is _aten.resize_
        held = args[0].untyped_storage().nbytes() if grows else 0
        result = func(*args, **kwargs)
        if grows or func.overloadpacket in _UNINITIALISED:
            self._fill(result, held)
        return result

    def _fill(self, tensor: Tensor, held: int) -> None:
        """Poison a tensor's storage from byte ``held`` on."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        size = tensor.element_size()
        storage = tensor.as_strided((tensor.untyped_storage().nbytes() // size,), (1,), 0)
        storage[-(-held // size) :].fill_(self._poison.of(tensor.dtype))
