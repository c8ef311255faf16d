"""Segment witnesses for a learned sparse top-k: the policy, its refusals, nulls and metrics.

Source: ``segment-witnesses.md``, with the rulings R-W1 to R-W9. Python's integers are exact, so
R-W1 (no product wraps) holds here by construction. Notation of the source: a row has context
length L, S segments are asked for, S_eff = min(S, L) exist, segment s is [e_s, e_{s+1}).
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

from oracles.array import Array, rows

MAX_TOPOLOGY_SEGMENTS = 64

# --- the partition (source: Object) --------------------------------------------------------------


def segment(token: int, length: int, effective: int) -> int:
    """sigma(x) = floor(x * S_eff / L), the segment that a token falls in."""
    return token * effective // length


def edge(s: int, length: int, effective: int) -> int:
    """e_s = ceil(s * L / S_eff), the first token of segment s."""
    return -(-s * length // effective)


def segment_of(token: int, context_len: int, num_segments: int) -> int:
    """The segment a learned token marks, for ``token >= 0`` and ``num_segments >= 1``.

    A length below 1 is read as 1. A token at or past the context marks
    ``min(sigma(token), S - 1)``, which may lie outside the partition (source: Out-of-range
    learned entry).
    """
    length = max(context_len, 1)
    effective = min(num_segments, length)
    return min(segment(token, length, effective), num_segments - 1)


# --- the policy, a row at a time (source: Object; Implementation rule and contracts) -------------


def occupancy(learned: Iterable[int], length: int, segments: int) -> set[int]:
    """O(K): the segments that a learned row marks. Every negative entry is padding (R-W2)."""
    return {segment_of(token, length, segments) for token in learned if token >= 0}


def witness_slots(learned: Iterable[int], length: int, segments: int) -> list[int]:
    """Slot s holds e_s where segment s exists and is not occupied, and -1 elsewhere.

    A row with ``length <= 0`` has no segments and so no witnesses (source: Fallback).
    """
    effective = min(segments, max(length, 0))
    occupied = occupancy(learned, length, segments)
    return [
        edge(s, length, effective) if s < effective and s not in occupied else -1
        for s in range(segments)
    ]


def merge(
    learned: Sequence[int], length: int, keep: int, segments: int, max_replacements: int
) -> list[int]:
    """Witnesses, ascending, overwrite the slots from ``keep`` on, at most B of them."""
    budget = min(max_replacements, len(learned) - keep)
    witnesses = [token for token in witness_slots(learned, length, segments) if token >= 0]
    written = witnesses[:budget]
    return [*learned[:keep], *written, *learned[keep + len(written) :]]


def serve(learned: Sequence[int], length: int, segments: int) -> list[int]:
    """The serving entry: keep = topk - S, saturating, and at most S replacements."""
    if segments == 0:  # the off switch
        return list(learned)
    keep = max(len(learned) - segments, 0)
    return merge(learned, length, keep, segments, segments)


def run_bound(length: int, segments: int) -> int:
    """2 * ceil(L / S_eff) - 2: the longest run of unselected tokens under full coverage (R-W7)."""
    effective = min(segments, length)
    return 2 * -(-length // effective) - 2


def longest_run(selected: Iterable[int], length: int) -> int:
    """The longest run of consecutive tokens of [0, L) that are not selected."""
    marks = [-1, *sorted({x for x in selected if 0 <= x < length}), length]
    return max(right - left - 1 for left, right in pairwise(marks))


# --- the operations, with their refusals (R-W3, R-W4) --------------------------------------------


def _refuse_tensors(learned_name: str, learned: Array[int], context_lens: Array[int]) -> None:
    if learned.dtype != "int32":
        raise ValueError(f"{learned_name} must be int32, got {learned.dtype}")
    if len(learned.shape) != 2:
        raise ValueError(f"{learned_name} must be 2-D, got {len(learned.shape)}-D")
    if len(context_lens.shape) != 1:
        raise ValueError(f"context_lens must be 1-D, got {len(context_lens.shape)}-D")
    if context_lens.shape[0] != learned.shape[0]:
        raise ValueError(f"context_lens must have one length a row, {learned.shape[0]} in all")


def topology_witness_indices(
    context_lens: Array[int], learned_indices: Array[int], num_segments: int
) -> list[list[int]]:
    """One slot a segment: the witness, or -1. Any ``num_segments >= 1`` (R-W3).

    Raises ValueError as R-W4 lists.
    """
    _refuse_tensors("learned_indices", learned_indices, context_lens)
    if num_segments < 1:
        raise ValueError(f"num_segments must be at least 1, got {num_segments}")
    return [
        witness_slots(learned, length, num_segments)
        for learned, length in zip(rows(learned_indices), context_lens.data, strict=True)
    ]


def apply_topology_witnesses(
    learned_indices: Array[int],
    context_lens: Array[int],
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> list[list[int]]:
    """The merged rows. ``num_segments`` in 1..64 (R-W3). Raises ValueError as R-W4 lists."""
    _refuse_tensors("learned_indices", learned_indices, context_lens)
    topk = learned_indices.shape[1]
    if not 1 <= num_segments <= MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be in [1, 64], got {num_segments}")
    if not 0 <= learned_keep <= topk:
        raise ValueError(f"learned_keep must be in [0, {topk}], got {learned_keep}")
    if max_replacements < 0:
        raise ValueError(f"max_replacements must not be negative, got {max_replacements}")
    return [
        merge(learned, length, learned_keep, num_segments, max_replacements)
        for learned, length in zip(rows(learned_indices), context_lens.data, strict=True)
    ]


def scatter_topology_witnesses_(
    topk_indices: Array[int], context_lens: Array[int], num_segments: int
) -> list[list[int]]:
    """The buffer as the in-place serving entry leaves it. ``num_segments`` in 0..64, 0 being the
    off switch (R-W3). Raises ValueError as R-W4 lists.
    """
    _refuse_tensors("topk_indices", topk_indices, context_lens)
    if not 0 <= num_segments <= MAX_TOPOLOGY_SEGMENTS:
        raise ValueError(f"num_segments must be in [0, 64], got {num_segments}")
    return [
        serve(learned, length, num_segments)
        for learned, length in zip(rows(topk_indices), context_lens.data, strict=True)
    ]


# --- null models (source: Null models and metrics; R-W8) -----------------------------------------

_WORD = (1 << 64) - 1


def mix(z: int) -> int:
    """The 64-bit mixer of R-W8."""
    z = (z + 0x9E3779B97F4A7C15) & _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)


def random_row(query: int, k: int, seed: int) -> list[int]:
    """Row ``query`` of the causal random selector: min(k, query + 1) tokens of [0, query]."""
    length = query + 1
    pool = list(range(length))
    draws = min(k, length)
    state = mix(seed ^ (query * 0x9E3779B97F4A7C15 & _WORD))
    for slot in range(draws):
        state = mix(state)
        other = slot + state % (length - slot)
        pool[slot], pool[other] = pool[other], pool[slot]
    return sorted(pool[:draws])


def local_row(query: int, k: int) -> list[int]:
    """Row ``query`` of the causal local selector: the min(k, query + 1) most recent tokens."""
    return list(range(max(query + 1 - k, 0), query + 1))


def random_null(context_len: int, budget: int, seed: int) -> list[int]:
    """A seeded uniform draw of ``budget`` tokens from [0, L), ascending. Empty when L <= 0."""
    return random_row(context_len - 1, budget, seed) if context_len > 0 else []


def locality_null(context_len: int, budget: int) -> list[int]:
    """The ``budget`` most recent tokens, [L - k, L). Empty when L <= 0."""
    return local_row(context_len - 1, budget) if context_len > 0 else []


# --- metrics (source: Null models and metrics; R-W9) ---------------------------------------------


def segment_coverage(candidates: Array[int], context_len: int, num_segments: int) -> float:
    """The share of the S_eff segments that a candidate of [0, L) falls in; 1.0 without segments."""
    effective = min(num_segments, max(context_len, 0))
    if effective == 0:
        return 1.0
    inside = {x for x in candidates.data if 0 <= x < context_len}
    return len({segment(x, context_len, effective) for x in inside}) / effective


def attention_mass_recall(candidates: Array[int], attention_row: Array[float]) -> float:
    """The share of the row's mass that the candidates hold, correctly rounded; NaN without mass.

    ``attention_row`` is 1-D, float64, finite, without negative entries; its length is L.
    """
    mass = [Fraction(weight) for weight in attention_row.data]
    total = sum(mass, Fraction())
    if total == 0:
        return float("nan")
    held = sum((mass[x] for x in set(candidates.data) if 0 <= x < len(mass)), Fraction())
    return float(held / total)


def attention_mass_recall_bound(candidates: Array[int], attention_row: Array[float]) -> float:
    """The error of any honest float64 evaluation of the recall, summing in any order (R-X14).

    A sum of n non-negative terms has relative error gamma(n - 1) = (n - 1)u / (1 - (n - 1)u) at
    most, u = 2**-53; the quotient of two such sums, rounded once more, at most the factor below.
    """
    held = len({x for x in candidates.data if 0 <= x < len(attention_row.data)})
    roundings = max(held - 1, 0) + max(len(attention_row.data) - 1, 0) + 1
    gamma = roundings * 2.0**-53 / (1 - 2 * roundings * 2.0**-53)
    recall = attention_mass_recall(candidates, attention_row)
    return recall * gamma if recall == recall else 0.0
