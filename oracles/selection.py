"""Block selection: the exact decision on given sums, and the decision that intervals of sums allow.

Source: ``xattention-kv-chunking.md``, with the rulings R-X12 and R-X17. Notation: tau is the
threshold, M the mass of the mandatory blocks, T the mass of all visible blocks of a row.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from itertools import accumulate

from oracles.array import Array

SCORE_TYPES = ("float32", "float16", "bfloat16")

# Of fp32: the largest relative error of one rounding, and the smallest normal number, which is the
# largest error of flushing a subnormal to zero.
UNIT = 2.0**-24
TINY = 2.0**-126


@dataclass(frozen=True)
class Result:
    """What an operation returns: an array by its dtype name, its shape and its row-major values."""

    dtype: str
    shape: tuple[int, ...]
    data: tuple[float, ...]


def rows_of(array: Array[float]) -> Iterator[list[float]]:
    """The rows along the last dimension, as many as the other dimensions make, be they empty."""
    width = array.shape[-1]
    for row in range(math.prod(array.shape[:-1])):
        yield [float(value) for value in array.data[row * width : (row + 1) * width]]


# --- a row, exactly (R-X12) ----------------------------------------------------------------------


def _blocks(width: int, diagonal: int | None) -> tuple[int, set[int]]:
    """How many blocks, from the left, a row sees, and which of them are mandatory.

    ``diagonal`` is None where no mask is causal: all are visible then and none is mandatory. Where
    it is block 0, there is one mandatory block.
    """
    return (width, set()) if diagonal is None else (diagonal + 1, {0, diagonal})


def select_row(sums: Sequence[float], threshold: float, diagonal: int | None) -> list[bool]:
    """Mandatory blocks, then the others by descending sum while the mass before is < tau * T.

    The total is that of the visible blocks: what lies past the diagonal is no part of the row.
    The comparison is exact. Of equal sums the left one goes first. A row with a NaN among its
    visible sums selects every visible block (to refuse it is as good, R-X12).
    """
    visible, selected = _blocks(len(sums), diagonal)
    if not all(map(math.isfinite, sums[:visible])):
        return [j < visible for j in range(len(sums))]
    mass = [Fraction(value) for value in sums[:visible]]
    required = Fraction(threshold) * sum(mass, Fraction())
    before = sum((mass[j] for j in selected), Fraction())
    others = [j for j in range(visible) if j not in selected]
    for j in sorted(others, key=lambda j: mass[j], reverse=True):
        if before < required:
            selected.add(j)
        before += mass[j]
    return [j in selected for j in range(len(sums))]


# --- a row, by intervals (R-X12, R-X14) ----------------------------------------------------------


class Decision(IntEnum):
    """What intervals of the sums say about one block."""

    MUST_NOT = 0
    MUST = 1
    UNDECIDABLE = 2


def decide_row(
    low: Sequence[float], high: Sequence[float], threshold: float, diagonal: int | None
) -> list[Decision]:
    """What every honest selection does, whose sums lie within ``[low, high]``, block by block.

    Block j, visible and not mandatory, is selected when f_j < 0, with

        f_j = M + B_j - tau * T = (1 - tau) * (M + B_j) - tau * (s_j + A_j),

    B_j the mass ordered before j and A_j the mass after it. Sums are masses, none negative, so:

    - f_j is largest where M is at ``high``, s_j at ``low``, and each other block i, if it can be
      before j (high_i >= low_j), is, at ``high``; else it is after j, at ``low``. For a block
      before adds (1 - tau) * s_i >= 0 and one after takes tau * s_i away; and a smaller s_j lets
      more blocks go before and takes less away itself.
    - f_j is smallest where M is at ``low``, s_j at ``high``, and each other block, if it can be
      after j (low_i <= high_j), is, at the most that leaves it there, min(high_i, high_j); else
      it is before j, at ``low``.

    Both extremes are attained (ties go either way), so for exact arithmetic nothing tighter holds.
    An implementation compares M + B_j with tau * T in fp32. The two are sums of up to n visible
    masses; B_j may come as an inclusive sum less s_j (n additions), tau is rounded and multiplied
    (2 more), or all is divided by T first (1 more): at most n + 2 roundings of magnitudes of at
    most T and tau * T, and 3n flushed subnormals. That is ``doubt``: the block MUST be selected
    when the largest f_j + doubt < 0, and MUST NOT when the smallest f_j - doubt >= 0. The oracle's
    own float64 sums err by n * 2**-52 * T, which the spare roundings hold.

    Besides: mandatory blocks MUST, blocks past the diagonal MUST NOT; with tau = 1 every visible
    block that surely has mass MUST, whatever rounding does; with a NaN every visible block MUST.
    """
    visible, mandatory = _blocks(len(low), diagonal)
    low, high = [max(value, 0.0) for value in low], list(high)
    if any(map(math.isnan, [*low[:visible], *high[:visible]])):
        return [Decision(j < visible) for j in range(len(low))]
    total = math.fsum(high[:visible])
    doubt = (1 + threshold) * total * math.expm1((visible + 3) * UNIT)
    doubt += 3 * visible * TINY if total else 0.0
    held_low = math.fsum(low[j] for j in mandatory)
    held_high = math.fsum(high[j] for j in mandatory)

    others = sorted((j for j in range(visible) if j not in mandatory), key=lambda j: high[j])
    by_high, by_low = [high[j] for j in others], sorted(low[j] for j in others)
    below_high = [0.0, *accumulate(by_high)]  # [n]: the mass of the n blocks lowest by `high`
    their_low = [0.0, *accumulate(low[j] for j in others)]  # the same blocks, at `low`
    below_low = [0.0, *accumulate(by_low)]

    def largest(j: int) -> float:
        after = bisect_left(by_high, low[j])
        before = below_high[-1] - below_high[after] - high[j]
        return (1 - threshold) * (held_high + before) - threshold * (low[j] + their_low[after])

    def smallest(j: int) -> float:
        after, wholly = bisect_right(by_low, high[j]), bisect_right(by_high, high[j])
        before = below_low[-1] - below_low[after]
        mass = below_high[wholly] + (after - wholly) * high[j]  # j itself is among them
        return (1 - threshold) * (held_low + before) - threshold * mass

    decisions = [Decision(j in mandatory) for j in range(len(low))]
    for j in others:
        if largest(j) + doubt < 0 or (threshold == 1 and low[j] > 0):
            decisions[j] = Decision.MUST
        elif smallest(j) - doubt >= 0:
            decisions[j] = Decision.MUST_NOT
        else:  # so is everything where a sum has no upper end
            decisions[j] = Decision.UNDECIDABLE
    return decisions


# --- the operations ------------------------------------------------------------------------------


def refuse_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:  # so that NaN is refused
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")


def _diagonals(shape: tuple[int, ...], current_index: int, causal: bool) -> list[int | None]:
    """The diagonal block of each row of a flattened array."""
    rows = range(math.prod(shape[:-1]))
    return [current_index + row % shape[-2] if causal else None for row in rows]


def find_blocks_chunked(
    input_tensor: Array[float],
    current_index: int,
    threshold: float,
    num_to_choose: None = None,
    decoding: bool = False,
    mode: str = "prefill",
    causal: bool = True,
) -> Result:
    """The selected blocks, bool ``[batch, heads, q_blocks, k_blocks]`` (R-X12, R-X17).

    ``input_tensor``: block sums of that shape, fp32, fp16 or bf16, finite or NaN, not negative.
    Raises ValueError for a wrong rank or dtype, no key block, a threshold outside (0, 1], a
    negative ``current_index``, when causal one with ``current_index + q_blocks > k_blocks``, and
    for the parameters that the specification leaves out.
    """
    if len(input_tensor.shape) != 4:
        raise ValueError(f"input_tensor must be 4-D, got {len(input_tensor.shape)}-D")
    if input_tensor.dtype not in SCORE_TYPES:
        raise ValueError(f"input_tensor must be fp32, fp16 or bf16, got {input_tensor.dtype}")
    q_blocks, k_blocks = input_tensor.shape[2:]
    if k_blocks == 0:
        raise ValueError("input_tensor must have at least one key block, got none")
    if current_index < 0:
        raise ValueError(f"current_index must not be negative, got {current_index}")
    if causal and current_index + q_blocks > k_blocks:
        raise ValueError(
            f"current_index + q_blocks must be at most k_blocks = {k_blocks}, "
            f"got {current_index} + {q_blocks}"
        )
    refuse_threshold(threshold)
    if num_to_choose is not None:
        raise ValueError(f"num_to_choose is not specified and must be None, got {num_to_choose}")
    if decoding:
        raise ValueError("decoding is not specified and must be False")
    if mode not in ("prefill", "both"):
        raise ValueError(f"mode must be 'prefill' or 'both', got {mode!r}")
    shape = tuple(input_tensor.shape)
    diagonals = _diagonals(shape, current_index, causal)
    selected = [
        select_row(sums, threshold, diagonal)
        for sums, diagonal in zip(rows_of(input_tensor), diagonals, strict=True)
    ]
    return Result("bool", shape, tuple(chosen for row in selected for chosen in row))


def decide_blocks(
    low: Array[float],
    high: Array[float],
    current_index: int,
    threshold: float,
    causal: bool = True,
) -> Result:
    """The ``Decision`` of each block, int8 ``[batch, heads, q_blocks, k_blocks]``.

    ``low`` and ``high``: what the sums are known to lie between, of that shape; the sums
    themselves, twice, where they are given.
    """
    shape = tuple(low.shape)
    diagonals = _diagonals(shape, current_index, causal)
    decisions = [
        decide_row(lowest, highest, threshold, diagonal)
        for lowest, highest, diagonal in zip(rows_of(low), rows_of(high), diagonals, strict=True)
    ]
    return Result("int8", shape, tuple(decision for row in decisions for decision in row))


def undecidable_share(decisions: Array[float], current_index: int, causal: bool = True) -> float:
    """The undecidable decisions among all that mass decides; 0 where it decides none.

    Mass decides the visible blocks that are not mandatory.
    """
    width = decisions.shape[-1]
    decided = 0
    for diagonal in _diagonals(tuple(decisions.shape), current_index, causal):
        visible, mandatory = _blocks(width, diagonal)
        decided += visible - len(mandatory)
    open_ = sum(decision == Decision.UNDECIDABLE for decision in decisions.data)
    return open_ / decided if decided else 0.0


# --- the measures of the source's tables ---------------------------------------------------------


def _visible_pairs(mask: Array[float], current_index: int, causal: bool) -> list[int]:
    """The places of the visible blocks in a flattened mask."""
    width = mask.shape[-1]
    diagonals = enumerate(_diagonals(tuple(mask.shape), current_index, causal))
    return [
        row * width + j for row, diagonal in diagonals for j in range(_blocks(width, diagonal)[0])
    ]


def density(mask: Array[float], current_index: int = 0, causal: bool = True) -> float:
    """The selected blocks among the visible ones, over all batch entries and heads; 1 with none.

    The source prints densities and does not define them. This reading makes a mask that selects
    all it may have density 1, causal or not, so that lengths compare.
    """
    places = _visible_pairs(mask, current_index, causal)
    return sum(bool(mask.data[place]) for place in places) / len(places) if places else 1.0


def mask_difference(
    mask: Array[float], other: Array[float], current_index: int = 0, causal: bool = True
) -> float:
    """The visible blocks that one mask selects and the other does not, among the visible ones.

    The source's mask_diff and, as 1 less it, its 对齐 (alignment); 0 where nothing is visible.
    """
    places = _visible_pairs(mask, current_index, causal)
    unlike = sum(bool(mask.data[place]) != bool(other.data[place]) for place in places)
    return unlike / len(places) if places else 0.0
