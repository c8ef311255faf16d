"""Queries and keys whose attention has a named structure.

A structure gives every query and every key a few features, and the product of the two is its
logit: what ``q @ k.T / sqrt(head_dim)`` says of one key over another. The logits of several
structures add up, as long as head_dim holds the features of all. Positions and queries are those
of full attention; a causal reader masks the future of it. Nothing is random but ``Noise``.

The score of a stride is a sum along an antidiagonal, and its scale makes a mean of it (R-X1): a
logit that is constant over ``stride`` tokens survives as it is, one that a single token of a
position has is divided by ``stride``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

# The least and the most that a distance takes from the cosines of `Local`: from 2 * width on, the
# three slowest waves alone make (1 - cos pi) + (1 - cos pi/2) + (1 - cos pi/4), or more.
FAR: Final = 4 - math.sqrt(0.5)
NEAR: Final = 1.395  # up to width: at most the sum over f >= 1 of 1 - cos(pi / 2**f)


class Structure(Protocol):
    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        """Of queries and of keys, float64 ``[batch or 1, heads or 1, length, features]``."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every logit is ``level``: all keys weigh the same."""

    level: float = 0.0

    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        return _ones(length), self.level * _ones(length)


@dataclass(frozen=True)
class Sink:
    """The first ``tokens`` keys have a logit of ``strength``, to every query."""

    strength: float
    tokens: int = 4

    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        _at_least_one("tokens", self.tokens)
        return _ones(length), self.strength * (_positions(length) < self.tokens).double()


@dataclass(frozen=True)
class Local:
    """A band: a key loses with its distance to the query, on either side.

    One at most ``width`` tokens away has lost 0.43 ``strength`` or less (NEAR / FAR), one at least
    2 ``width`` away ``strength`` or more, and on average the more the farther. The logit is a sum
    of cosines of the distance, the quickest of period 4 ``width``, each next one of twice the
    period. It survives a stride that is small beside ``width``.
    """

    strength: float
    width: int

    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        _at_least_one("width", self.width)
        waves = max(math.ceil(math.log2(length / self.width)), 0) + 2
        angles = math.pi / (2 * self.width) * _positions(length) / 2 ** torch.arange(waves)
        turned = torch.cat([angles.cos(), angles.sin()], -1)
        return turned, self.strength / FAR * turned


@dataclass(frozen=True)
class Needle:
    """The key at ``position`` has a logit of ``strength``, to the queries in ``queries``.

    To survive a stride, its strength must be some ``stride * log(positions)``.
    """

    strength: float
    position: int
    queries: range

    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        if not 0 <= self.position < length:
            raise ValueError(f"position must be in [0, {length}), got {self.position}")
        asking, found = torch.zeros(2, length, 1, dtype=torch.float64)
        asking[[i for i in self.queries if i < length]] = 1
        found[self.position] = self.strength
        return asking, found


@dataclass(frozen=True)
class BlockDiagonal:
    """A key in the query's own block of ``block`` tokens has a logit of ``strength``.

    Blocks have orthogonal codes, a feature a block. It survives a stride that divides ``block``.
    """

    strength: float
    block: int

    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        _at_least_one("block", self.block)
        blocks = torch.arange(math.ceil(length / self.block))
        codes = (_positions(length) // self.block == blocks).double()
        return codes, self.strength * codes


@dataclass(frozen=True)
class Noise:
    """Normal features, ``dims`` of them, other ones in each head: logits of deviation ``strength``.

    A stride leaves ``strength / sqrt(stride)`` of it.
    """

    strength: float
    dims: int
    seed: int

    def features(self, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor]:
        _at_least_one("dims", self.dims)
        generator = torch.Generator().manual_seed(self.seed)
        shape = (2, batch, heads, length, self.dims)
        queries, keys = torch.randn(shape, generator=generator, dtype=torch.float64)
        return queries, self.strength / math.sqrt(self.dims) * keys


def states(
    *structures: Structure,
    length: int,
    head_dim: int,
    batch: int = 1,
    heads: int = 1,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[batch, heads, length, head_dim]`` on the CPU, rounded once to ``dtype``.

    Raises ValueError where a parameter does not fit ``length``, or the features not ``head_dim``.
    """
    pairs = [structure.features(batch, heads, length) for structure in structures]
    shape = (batch, heads, length)
    queries, keys = (_joined(side, shape, head_dim) for side in zip(*pairs, strict=True))
    return queries.to(dtype), keys.to(dtype)


def _joined(features: Sequence[Tensor], shape: tuple[int, ...], head_dim: int) -> Tensor:
    """Side by side, zeros after them; with what makes up for the logits' 1 / sqrt(head_dim)."""
    joined = torch.cat([each.expand(*shape, each.shape[-1]) for each in features], -1)
    free = head_dim - joined.shape[-1]
    if free < 0:
        raise ValueError(
            f"head_dim must be at least {joined.shape[-1]} for these structures, got {head_dim}"
        )
    return pad(joined, (0, free)) * math.sqrt(math.sqrt(head_dim))


def _positions(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.float64).unsqueeze(1)


def _ones(length: int) -> Tensor:
    return torch.ones(length, 1, dtype=torch.float64)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
