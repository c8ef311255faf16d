"""One launch of one kernel: the memory it may touch, and which of its programs touched what."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Access = Literal["load", "store", "atomic"]
Addresses = NDArray[np.int64]
Lanes = NDArray[np.bool_]

RIVALS: Mapping[Access, tuple[Access, ...]] = {
    "load": ("store", "atomic"),
    "store": ("store", "load", "atomic"),
    "atomic": ("store", "load"),
}
SEVERAL = -1


class KernelFault(AssertionError):  # noqa: N818 - a verdict on the kernel
    """A kernel touched memory outside its tensors, or two of its programs raced. One line."""


class Program(NamedTuple):
    """One program of a launch: where it is in the grid, ``(x, y, z)``, and the grid's size."""

    place: tuple[int, int, int]
    grid: tuple[int, int, int]

    @property
    def number(self) -> int:
        """From 1 on, so that 0 can stand for no program."""
        (x, y, z), (width, height, _) = self
        return 1 + x + width * (y + height * z)

    def name_of(self, number: int) -> str:
        width, height, _ = self.grid
        rest, x = divmod(number - 1, width)
        z, y = divmod(rest, height)
        return "several programs" if number == SEVERAL else f"program {(x, y, z)}"


class _View(NamedTuple):
    """A tensor argument and the bytes [start, stop) from its first element to past its last."""

    name: str
    tensor: Tensor
    start: int
    stop: int

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.stop + 1, 0)

    def element(self, address: int) -> str:
        return f"{self.name} + {(address - self.start) // self.tensor.element_size()}"

    def __str__(self) -> str:
        strides = "" if self.tensor.is_contiguous() else f" and strides {self.tensor.stride()}"
        return f"`{self.name}` of shape {tuple(self.tensor.shape)}{strides}"


def _views(name: str, argument: Any) -> Iterator[_View]:
    """The views in an argument: a tensor, a tuple, or what Triton wraps around a tensor."""
    if isinstance(argument, tuple):
        for position, item in enumerate(argument):
            yield from _views(f"{name}[{position}]", item)
    elif isinstance(argument, Tensor):
        if argument.numel():
            start = argument.data_ptr()
            sizes = zip(argument.shape, argument.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in sizes)
            yield _View(name, argument, start, start + (last + 1) * argument.element_size())
    elif hasattr(argument, "base"):  # a reinterpreted tensor, a tensor descriptor
        yield from _views(name, argument.base)


class _Region:
    """The bytes [start, stop) of views that overlap, in units of the smallest of their elements.

    ``marks`` holds, by kind of access, the number of the program that made it to each unit.
    """

    def __init__(self, views: list[_View]) -> None:
        self.start = min(view.start for view in views)
        self.stop = max(view.stop for view in views)
        self.unit = min(view.tensor.element_size() for view in views)
        self.marks: dict[Access, NDArray[np.int32]] = {}
        self._size = (self.stop - self.start) // self.unit
        covered = np.zeros(self._size, np.bool_)
        for view in views:
            scale = view.tensor.element_size() // self.unit
            np.lib.stride_tricks.as_strided(
                covered[(view.start - self.start) // self.unit :],
                shape=(*view.tensor.shape, scale),
                strides=(*(stride * scale for stride in view.tensor.stride()), 1),
            )[...] = True
        self._covered = None if covered.all() else covered

    def units(self, addresses: Addresses, width: int) -> Addresses:
        """The units that each access of ``width`` bytes touches, ``[lanes, units]``."""
        first = (addresses - self.start) >> (self.unit.bit_length() - 1)
        if width <= self.unit:
            return first[:, None]
        return first[:, None] + np.arange(width // self.unit)

    def holds(self, addresses: Addresses, width: int) -> Lanes:
        inside = (addresses >= self.start) & (addresses + width <= self.stop)
        if self._covered is not None:
            units = self.units(addresses[inside], width)
            inside[inside] = self._covered[units].all(axis=1)
        return inside

    def mark(
        self, access: Access, units: Addresses, program: int
    ) -> tuple[Access, NDArray[np.int32]] | None:
        """Note an access. Returns the rival access and, by unit, its program (0: none), if any."""
        for rival in RIVALS[access]:
            if (marks := self.marks.get(rival)) is not None:
                by = marks[units]
                by[by == program] = 0
                if by.any():
                    return rival, by
        if access not in self.marks:
            self.marks[access] = np.zeros(self._size, np.int32)
        marks = self.marks[access]
        by = marks[units]
        marks[units] = np.where((by == 0) | (by == program), program, SEVERAL)
        return None


class Launch:
    """One launch of one kernel: the memory it was given, and which program touched what."""

    def __init__(self, kernel: str, arguments: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._views = [view for item in arguments.items() for view in _views(*item)]
        self._regions: list[_Region] = []
        group: list[_View] = []
        for view in sorted(self._views, key=lambda view: view.start):
            if group and view.start >= max(other.stop for other in group):
                self._regions.append(_Region(group))
                group = []
            group.append(view)
        if group:
            self._regions.append(_Region(group))
        self._starts = [region.start for region in self._regions]

    def check(self, access: Access, addresses: Addresses, width: int, program: Program) -> None:
        """Check and note an access of ``width`` bytes a lane; there is at least one lane.

        Raises KernelFault when a lane is outside every view, or races with another program.
        """
        low, high = int(addresses.min()), int(addresses.max())
        first, last = (bisect_right(self._starts, address) - 1 for address in (low, high))
        if first == last:
            parts = [(first, addresses)]
        else:
            which = np.searchsorted(self._starts, addresses, side="right") - 1
            parts = [(index, addresses[which == index]) for index in np.unique(which).tolist()]
        for index, part in parts:
            if index < 0 or not self._regions[index].holds(part, width).all():
                raise self._outside(access, addresses, width, program)
        for index, part in parts:
            region = self._regions[index]
            if rival := region.mark(access, region.units(part, width), program.number):
                raise self._race(access, part, program, *rival)

    def _nearest(self, address: int) -> _View | None:
        return min(self._views, key=lambda view: view.distance(address), default=None)

    def _outside(
        self, access: Access, addresses: Addresses, width: int, program: Program
    ) -> KernelFault:
        outside = np.ones(addresses.shape, np.bool_)
        for region in self._regions:
            outside &= ~region.holds(addresses, width)
        address = int(addresses[outside][0])
        view = self._nearest(address)
        where = f"{view}, first at {view.element(address)}" if view else "every tensor: it has none"
        return KernelFault(
            f"{self._kernel}: {access} by program {program.place} outside {where}"
            f" ({outside.sum()} of {addresses.size} lanes); mask those lanes or correct the offset"
        )

    def _race(
        self,
        access: Access,
        addresses: Addresses,
        program: Program,
        rival: Access,
        by: NDArray[np.int32],
    ) -> KernelFault:
        racing = by.any(axis=1)
        address = int(addresses[racing][0])
        view = self._nearest(address)
        assert view is not None, "a program races on an element of some view"
        other = program.name_of(int(by[by != 0][0]))
        return KernelFault(
            f"{self._kernel}: {access} by program {program.place} races with the {rival} by {other}"
            f" on {view}, first at {view.element(address)} ({racing.sum()} of {addresses.size}"
            f" lanes); let one program own each element, or use atomics"
        )
