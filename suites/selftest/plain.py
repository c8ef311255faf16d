"""Tensors as plain data, for the tests of the oracles."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple


class Plain(NamedTuple):
    """An array as the oracle wants it."""

    dtype: str
    shape: tuple[int, ...]
    data: tuple[Any, ...]


def int32_rows(*rows: Sequence[int]) -> Plain:
    return Plain("int32", (len(rows), len(rows[0])), tuple(itertools.chain(*rows)))


def int32(*values: int) -> Plain:
    return Plain("int32", (len(values),), values)


def float64(*values: float) -> Plain:
    return Plain("float64", (len(values),), values)
