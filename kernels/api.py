"""The operations, as an implementation provides them: signatures, shapes, dtypes, errors, source.

An implementation is any module (or object) with functions of these names. Parameter names and
their order follow vllm-project/vllm#47942. Tensors of one call live on one device.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, dtype


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


class XAttentionKernels(Protocol):
    """KV-chunked estimation of block importance, in reshaped space (`stride` tokens a position).

    Parameter names and their order follow nano-vllm's ``ops/xattn.py``. Scores are fp32, fp16 or
    bf16, statistics fp32, block sums in the scores' dtype (R-X10). Any strides, the innermost
    included (R-X15); offsets are computed in 64 bits. ``x = scale * score``, base e (R-X2). Query
    row i sits at ``chunk_start + i``, key column j at ``kv_offset + j``; when ``is_causal``, j is
    visible to i if ``kv_offset + j <= chunk_start + i`` (R-X3). Each call returns new memory.

    Each raises ValueError that names the argument, before it writes, for a wrong rank, dtype or
    shape, for sizes that do not divide (R-X1, R-X21), for a negative offset, for a block, segment
    size or stride below 1, and for a scale or threshold that is not finite or out of range.
    """

    def flat_group_gemm_fuse_reshape(
        self,
        query_states: Tensor,
        key_states: Tensor,
        stride: int,
        chunk_start: int,
        chunk_end: int,
        is_causal: bool = True,
        out_dtype: dtype | None = None,
    ) -> Tensor:
        """Antidiagonal scores ``[batch, heads, q_len / stride, k_len / stride]`` (R-X1, R-X16).

        ``query_states``: ``[batch, heads, q_len, head_dim]``, ``key_states``: ``[batch, heads,
        k_len, head_dim]``, one dtype; the result in it unless ``out_dtype`` says otherwise.
        ``chunk_end - chunk_start`` is the number of query positions, ``q_len / stride``. When
        ``is_causal``, an entry after its query's position may hold anything finite.
        """
        ...

    def softmax_fuse_block_sum(
        self,
        attn_weights_slice: Tensor,
        reshaped_block_size: int,
        segment_size: int,
        chunk_start: int,
        chunk_end: int,
        real_q_len: int,
        scale: float,
        is_causal: bool = True,
    ) -> Tensor:
        """Softmax over all keys, summed by block: ``[batch, heads, q_blocks, k_blocks]``.

        ``attn_weights_slice``: scores ``[batch, heads, q_len, k_len]`` of every key. Query rows at
        or past ``real_q_len`` (absolute) contribute 0 (R-X7).
        """
        ...

    def softmax_compute_partial_stats(
        self,
        attn_weights_slice: Tensor,
        reshaped_block_size: int,
        segment_size: int,
        scale: float,
        chunk_start: int = 0,
        kv_offset: int = 0,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """``m`` and ``l`` of each row over one chunk of keys, fp32 ``[batch, heads, q_len]``.

        A row that sees no key has ``m = -inf``, ``l = 0`` (R-X4).
        """
        ...

    def merge_softmax_stats(
        self, m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The statistics of all chunks together, fp32 ``[batch, heads, q_len]`` (R-X4, R-X5).

        An empty list, or lists of different lengths, is refused.
        """
        ...

    def softmax_normalize_and_block_sum(
        self,
        attn_weights_slice: Tensor,
        m_global: Tensor,
        l_global: Tensor,
        reshaped_block_size: int,
        segment_size: int,
        chunk_start: int,
        real_q_len: int,
        scale: float,
        kv_offset: int = 0,
        is_causal: bool = False,
    ) -> Tensor:
        """Block sums of one chunk of keys, normalised by the statistics of all of them.

        ``[batch, heads, q_blocks, k_chunk_blocks]``. A row with ``l = 0`` contributes 0 (R-X4).
        """
        ...

    def find_blocks_chunked(
        self,
        input_tensor: Tensor,
        current_index: int,
        threshold: float,
        num_to_choose: None = None,
        decoding: bool = False,
        mode: str = "prefill",
        causal: bool = True,
    ) -> Tensor:
        """The selected blocks, bool ``[batch, heads, q_blocks, k_blocks]`` (R-X12, R-X17).

        ``input_tensor``: block sums of that shape. ``num_to_choose``, ``decoding`` and modes other
        than "prefill" and "both" are not part of the specification and are refused.
        """
        ...

    def xattn_estimate(
        self,
        query_states: Tensor,
        key_states: Tensor,
        block_size: int,
        stride: int,
        norm: float = 1.0,
        threshold: float = 0.9,
        chunk_size: int = 16384,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Block sums and selected blocks of the whole attention, in chunks of ``chunk_size``.

        Any ``q_len`` and ``k_len``; blocks are ``ceil(len / block_size)``. ``scale`` is
        ``1 / (sqrt(head_dim) * stride * norm)``. Query token i sits at ``k_len - q_len + i``; a
        difference that ``block_size`` does not divide is refused (R-X19). ``chunk_size`` is a
        multiple of ``block_size``, that one of ``stride`` (R-X21). Padding is invisible (R-X7).
        """
        ...
