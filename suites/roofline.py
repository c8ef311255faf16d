"""What a call must at least move and multiply, and the time below which no device can make it.

Counted from the specification and the shapes, whatever the implementation: an element of an input
that a result depends on is read once, an element of a result is written once, and what a kernel
keeps on the way (the scores of an estimate) is not counted. Operations and exponentials are those
of the formulas as they stand: a reduction takes one for each element.

Where values decide what is needed, every input counts: rows have tokens, learned entries are no
padding. A slot that may stay as it is, of a row merged in place, does not count as written.

A function an operation, with the parameters of `kernels.api`; a tensor is anything with a shape
and a dtype, by name or torch's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol

from suites.devices import Board

SIZES: Final = {"int32": 4, "int64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
ENTRY: Final = SIZES["int32"]  # of a row
STATISTIC: Final = SIZES["float32"]  # m or l of a row
SELECTED: Final = 1  # a block of a mask


class Tensor(Protocol):
    """All that counts of a tensor."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Shaped:
    """A tensor that is nothing more."""

    dtype: Any
    shape: Sequence[int]


@dataclass(frozen=True)
class Work:
    """What one call takes.

    ``read`` and ``written``: bytes of global memory. ``products``: multiplications and additions of
    queries and keys, of type ``dot``: "tf32" is for the caller to say. ``operations``: all other
    arithmetic, comparisons included, and ``exponentials`` apart from it.
    """

    read: int = 0
    written: int = 0
    products: int = 0
    operations: int = 0
    exponentials: int = 0
    dot: str = "float32"

    def floor(self, device: Board) -> float:
        """Seconds: to move the bytes or to multiply, whichever takes longer, all at the peak.

        Operations and exponentials set none. A kernel may factor them (a division a block instead
        of one an element), and evaluate an exponential by special functions or by a polynomial.
        """
        moving = (self.read + self.written) / device.bandwidth
        return max(moving, self.products / device.rates[self.dot])


# --- segment witnesses ---------------------------------------------------------------------------


def topology_witness_indices(
    context_lens: Tensor, learned_indices: Tensor, num_segments: int
) -> Work:
    """W(K) depends on every learned entry, through O(K), and on the length (source: Object)."""
    rows, _ = learned_indices.shape
    return Work(
        read=_bytes(context_lens) + _bytes(learned_indices),
        written=rows * num_segments * ENTRY,
        operations=_segment_arithmetic(learned_indices, num_segments),
    )


def apply_topology_witnesses(
    learned_indices: Tensor,
    context_lens: Tensor,
    learned_keep: int,
    num_segments: int,
    max_replacements: int,
) -> Work:
    """A row out for a row in; with B = 0 a copy, which needs no lengths (source: Disabled).

    O(K) is that of the whole learned row, whatever is kept of it (source: Caveats).
    """
    _, topk = learned_indices.shape
    row_bytes = _bytes(learned_indices)
    if min(max_replacements, topk - learned_keep) == 0:
        return Work(read=row_bytes, written=row_bytes)
    return Work(
        read=row_bytes + _bytes(context_lens),
        written=row_bytes,
        operations=_segment_arithmetic(learned_indices, num_segments),
    )


def scatter_topology_witnesses_(
    topk_indices: Tensor, context_lens: Tensor, num_segments: int
) -> Work:
    """In place, so that only a slot that receives a witness is written, and there may be none.

    Nothing is touched where the budget min(S, topk) is 0 (source: Implementation rule).
    """
    _, topk = topk_indices.shape
    if min(num_segments, topk) == 0:
        return Work()
    return Work(
        read=_bytes(topk_indices) + _bytes(context_lens),
        operations=_segment_arithmetic(topk_indices, num_segments),
    )


def _segment_arithmetic(learned: Tensor, num_segments: int) -> int:
    """floor(x * S_eff / L) of every entry and ceil(s * L / S_eff) of every segment: two each."""
    rows, topk = learned.shape
    return 2 * rows * (topk + num_segments)


# --- XAttention: scores --------------------------------------------------------------------------


def flat_group_gemm_fuse_reshape(
    query_states: Tensor,
    key_states: Tensor,
    stride: int,
    chunk_start: int,
    chunk_end: int,
    is_causal: bool = True,
    out_dtype: Any = None,
) -> Work:
    """A score takes T * head_dim products (R-X1).

    When causal, scores in the future hold anything, and yet are written.
    """
    batch, heads, q_len, head_dim = query_states.shape
    k_len = key_states.shape[2]
    tiles = _tiles(q_len, k_len, stride, chunk_start, is_causal)
    scores = batch * heads * (q_len // stride) * (k_len // stride)
    return Work(
        read=batch * heads * tiles.tokens * head_dim * _size(query_states.dtype),
        written=scores * _size(query_states.dtype if out_dtype is None else out_dtype),
        products=2 * batch * heads * tiles.pairs * head_dim,
        dot=_name(query_states.dtype),
    )


@dataclass(frozen=True)
class _Tiles:
    """Of one head: tokens that meet another one, and how many pairs of tokens meet."""

    tokens: int
    pairs: int


def _tiles(q_len: int, k_len: int, stride: int, chunk_start: int, causal: bool) -> _Tiles:
    """Who meets whom in the T x T tiles of the positions that see each other (R-X1, R-X3).

    Token s of a key position meets token T - 1 - s of a query position. Of two positions with q
    and k tokens each meets one where T - q <= s < k, so q + k - T of each do. Only a last position
    has fewer than T tokens (R-X7), so what a position meets is decided by the first one opposite.
    """
    queries, keys = (
        [min(stride, length - start) for start in range(0, length, stride)]
        for length in (q_len, k_len)
    )

    def meeting(q_tokens: int, k_tokens: int) -> int:
        return max(q_tokens + k_tokens - stride, 0)

    seen = _seen(len(queries), len(keys), chunk_start, causal)
    whole = k_len // stride
    tokens = pairs = 0
    for q_tokens, width in zip(queries, seen, strict=True):
        if width:
            tokens += meeting(q_tokens, keys[0])
            pairs += q_tokens * min(width, whole)
        if width > whole:
            pairs += meeting(q_tokens, keys[-1])
    for j, k_tokens in enumerate(keys):
        first = max(j - chunk_start, 0) if causal else 0
        if first < len(queries):
            tokens += meeting(queries[first], k_tokens)
    return _Tiles(tokens, pairs)


# --- XAttention: softmax -------------------------------------------------------------------------

# For each key that a row sees: x = scale * score, and then
STATISTICS: Final = 4  # of m the comparison, of l the difference x - m and the sum
WEIGHTS: Final = 4  # the difference, the division by l, the sum of the block
ONE_PASS: Final = 6  # both, scaled and subtracted once


def softmax_compute_partial_stats(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    scale: float,
    chunk_start: int = 0,
    kv_offset: int = 0,
    is_causal: bool = False,
) -> Work:
    """m = max x and l = sum exp(x - m) of the keys that a row sees (source: 阶段 1; R-X3)."""
    batch, heads, q_len, k_len = attn_weights_slice.shape
    visible = batch * heads * sum(_seen(q_len, k_len, chunk_start - kv_offset, is_causal))
    return Work(
        read=visible * _size(attn_weights_slice.dtype),
        written=batch * heads * q_len * 2 * STATISTIC,
        operations=STATISTICS * visible,
        exponentials=visible,
    )


def merge_softmax_stats(m_chunks: Sequence[Tensor], l_chunks: Sequence[Tensor]) -> Work:
    """m = max m_c and l = sum l_c * exp(m_c - m) over the chunks (source: 阶段 2).

    Of each chunk and row: the comparison, the difference, the product and the sum.
    """
    read = sum(map(_bytes, (*m_chunks, *l_chunks)))
    pairs = read // (2 * STATISTIC)
    return Work(
        read=read,
        written=2 * _bytes(m_chunks[0]),
        operations=4 * pairs,
        exponentials=pairs,
    )


def softmax_normalize_and_block_sum(
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
) -> Work:
    """exp(x - m) / l, summed by block (source: 阶段 3).

    Rows from ``real_q_len`` on, and rows that see none of these keys, add nothing (R-X7): neither
    their scores nor their statistics are needed.
    """
    batch, heads, q_len, k_len = attn_weights_slice.shape
    rows = _real_rows(q_len, real_q_len - chunk_start)
    seen = _seen(rows, k_len, chunk_start - kv_offset, is_causal)
    visible, seeing = batch * heads * sum(seen), batch * heads * sum(map(bool, seen))
    size = _size(attn_weights_slice.dtype)
    return Work(
        read=visible * size + seeing * 2 * STATISTIC,
        written=_blocks(attn_weights_slice, reshaped_block_size) * size,
        operations=WEIGHTS * visible,
        exponentials=visible,
    )


def softmax_fuse_block_sum(
    attn_weights_slice: Tensor,
    reshaped_block_size: int,
    segment_size: int,
    chunk_start: int,
    chunk_end: int,
    real_q_len: int,
    scale: float,
    is_causal: bool = True,
) -> Work:
    """The same of all keys, statistics included, whose exponentials are those of the weights."""
    batch, heads, q_len, k_len = attn_weights_slice.shape
    rows = _real_rows(q_len, real_q_len - chunk_start)
    visible = batch * heads * sum(_seen(rows, k_len, chunk_start, is_causal))
    size = _size(attn_weights_slice.dtype)
    return Work(
        read=visible * size,
        written=_blocks(attn_weights_slice, reshaped_block_size) * size,
        operations=ONE_PASS * visible,
        exponentials=visible,
    )


def _seen(rows: int, width: int, diagonal: int, causal: bool) -> list[int]:
    """How many of ``width`` keys each row sees: row i those with j <= diagonal + i (R-X3)."""
    return [min(max(diagonal + i + 1, 0), width) if causal else width for i in range(rows)]


def _real_rows(q_len: int, real: int) -> int:
    return min(max(real, 0), q_len)


def _blocks(scores: Tensor, block_size: int) -> int:
    batch, heads, q_len, k_len = scores.shape
    return batch * heads * (q_len // block_size) * (k_len // block_size)


# --- XAttention: selection and estimate ----------------------------------------------------------


def find_blocks_chunked(
    input_tensor: Tensor,
    current_index: int,
    threshold: float,
    num_to_choose: None = None,
    decoding: bool = False,
    mode: str = "prefill",
    causal: bool = True,
) -> Work:
    """A row with blocks to decide on needs the sum of every block that it sees (R-X12).

    They are added up twice, for the total and for what is ordered before each; the total is
    multiplied, and each one to decide on compared. To order them is not arithmetic.
    """
    batch, heads, q_blocks, k_blocks = input_tensor.shape
    needed = operations = 0
    for row, visible in enumerate(_seen(q_blocks, k_blocks, current_index, causal)):
        mandatory = len({0, current_index + row}) if causal else 0
        if decided := visible - mandatory:
            needed += visible
            operations += 2 * visible + 1 + decided
    return Work(
        read=batch * heads * needed * _size(input_tensor.dtype),
        written=batch * heads * q_blocks * k_blocks * SELECTED,
        operations=batch * heads * operations,
    )


def xattn_estimate(
    query_states: Tensor,
    key_states: Tensor,
    block_size: int,
    stride: int,
    norm: float = 1.0,
    threshold: float = 0.9,
    chunk_size: int = 16384,
    causal: bool = True,
) -> Work:
    """Each score once, one softmax over them, and a selection by its sums (R-X9, R-X19).

    Chunks change nothing, and scores, statistics and sums need not leave the multiprocessor but for
    the sums that are a result.
    """
    batch, heads, q_len, head_dim = query_states.shape
    k_len = key_states.shape[2]
    origin = (k_len - q_len) // stride
    tiles = _tiles(q_len, k_len, stride, origin, causal)
    seen = _seen(_up(q_len, stride), _up(k_len, stride), origin, causal)
    visible = batch * heads * sum(seen)
    blocks = batch, heads, _up(q_len, block_size), _up(k_len, block_size)
    sums = Shaped(query_states.dtype, blocks)
    selection = find_blocks_chunked(sums, (k_len - q_len) // block_size, threshold, causal=causal)
    return Work(
        read=batch * heads * tiles.tokens * head_dim * _size(query_states.dtype),
        written=_bytes(sums) + selection.written,
        products=2 * batch * heads * tiles.pairs * head_dim,
        operations=ONE_PASS * visible + selection.operations,
        exponentials=visible,
        dot=_name(query_states.dtype),
    )


def _up(length: int, size: int) -> int:
    return -(-length // size)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _size(dtype: Any) -> int:
    return SIZES[_name(dtype)]


def _bytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * _size(tensor.dtype)


WORK: Final[Mapping[str, Callable[..., Work]]] = {
    operation.__name__: operation
    for operation in (
        topology_witness_indices,
        apply_topology_witnesses,
        scatter_topology_witnesses_,
        flat_group_gemm_fuse_reshape,
        softmax_fuse_block_sum,
        softmax_compute_partial_stats,
        merge_softmax_stats,
        softmax_normalize_and_block_sum,
        find_blocks_chunked,
        xattn_estimate,
    )
}
