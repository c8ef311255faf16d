"""The operations, as an implementation provides them: signatures, shapes, dtypes, errors, source.

An implementation is any module (or object) with functions of these names. Parameter names and
their order follow vllm-project/vllm#47942. Tensors of one call live on one device.
"""

from typing import Protocol

from torch import Tensor


class WitnessKernels(Protocol):
    """The witness policy over rows of learned top-k entries.

    ``learned_indices`` and ``topk_indices``: int32 ``[rows, topk]``, any strides (R-W5). An entry
    is a token offset in its own row's context; every negative one is padding (R-W2).
    ``context_lens``: int32 or int64 ``[rows]``, any stride, zero and negative lengths included.
    Rows may be zero, and so may ``topk``.

    Each raises ValueError, before it writes anything (R-W4), when the learned entries are not
    int32 or not 2-D, when ``context_lens`` is not 1-D or not one a row, or when an integer is
    outside the range given below.
    """

    def topology_witness_indices(
        self, context_lens: Tensor, learned_indices: Tensor, num_segments: int
    ) -> Tensor:
        """Witness tokens, int32 ``[rows, num_segments]``, contiguous.

        Slot s holds the left edge of segment s when the row has that segment and no learned entry
        falls in it, and -1 otherwise. ``num_segments >= 1``, without an upper limit (R-W3).
        Source: Object; Implementation rule and contracts.
        """
        ...

    def apply_topology_witnesses(
        self,
        learned_indices: Tensor,
        context_lens: Tensor,
        learned_keep: int,
        num_segments: int,
        max_replacements: int,
    ) -> Tensor:
        """The learned rows with witnesses merged in, int32 ``[rows, topk]``, new memory.

        The witnesses of a row, ascending, replace its slots from ``learned_keep`` on, at most
        ``min(max_replacements, topk - learned_keep)`` of them; every other slot is copied.
        ``0 <= learned_keep <= topk``, ``1 <= num_segments <= 64``, ``max_replacements >= 0``.
        Source: Implementation rule and contracts.
        """
        ...

    def scatter_topology_witnesses_(
        self, topk_indices: Tensor, context_lens: Tensor, num_segments: int
    ) -> None:
        """The serving entry: merge in place, keeping ``max(topk - num_segments, 0)`` slots.

        ``0 <= num_segments <= 64``; zero is the off switch and touches nothing (R-W3). Memory
        outside the view is never written (R-W5). Source: Implementation rule and contracts.
        """
        ...


class WitnessMeasures(Protocol):
    """The segment map, the null models and the metrics.

    They measure a policy rather than serve one, so a kernel author need not have them; the ones
    that an implementation exports are tested.
    """

    def segment_of(self, token: int, context_len: int, num_segments: int) -> int:
        """The segment that ``token >= 0`` marks, a length below 1 read as 1; ``num_segments >= 1``.

        Source: Object; Out-of-range learned entry.
        """
        ...

    def random_null(self, context_len: int, budget: int, seed: int) -> Tensor:
        """``min(budget, context_len)`` tokens, int32, ascending, bit for bit as R-W8 draws them.

        ``budget >= 0``, ``0 <= seed < 2**64``.
        """
        ...

    def locality_null(self, context_len: int, budget: int) -> Tensor:
        """The ``min(budget, context_len)`` most recent tokens, int32, ascending.

        Source: Null models and metrics.
        """
        ...

    def segment_coverage(self, candidates: Tensor, context_len: int, num_segments: int) -> float:
        """The share of segments that an int32 ``[k]`` candidate row meets; 1.0 without segments.

        Source: Null models and metrics; R-W9.
        """
        ...

    def attention_mass_recall(self, candidates: Tensor, attention_row: Tensor) -> float:
        """The share of a float64 ``[context_len]`` attention row on int32 ``[k]`` candidates.

        NaN for a row without mass. Source: Null models and metrics; R-W9.
        """
        ...
