"""What an oracle needs to know of a tensor: element type, shape, values in row-major order."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

Number = TypeVar("Number", int, float, covariant=True)


class Array(Protocol[Number]):
    """A tensor as plain data; anything with these three attributes will do."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def data(self) -> Sequence[Number]: ...


def rows(matrix: Array[Number]) -> list[list[Number]]:
    """The rows of a 2-D array."""
    height, width = matrix.shape
    return [list(matrix.data[row * width : (row + 1) * width]) for row in range(height)]
