"""The rule for speed: what pairs of processes conclude."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from golden.record import Pair
from reports.model import Timing

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Limit:
    value: float
    nights: int


UNKNOWN = Limit(0.1, 0)


def limits(nights: Iterable[Sequence[Pair]]) -> Mapping[Key, Limit]:
    return {}


def judge(pairs: Sequence[Pair], device: str, limit: Limit) -> Timing:
    return {}
