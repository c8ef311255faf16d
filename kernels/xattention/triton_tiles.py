"""The parts that the Triton implementations of XAttention are made of: device code alone.

What a row may see is a count: of the keys at hand, the first `limit` ones, and none for a row that
is padding. Masks and loops follow from it. Loads do not end at it, which would be within a vector,
but where the keys do: what is read beyond it is masked before anything is made of it (R-X6). With
`diagonal = chunk_start - kv_offset`, a causal row i sees key j when `j <= diagonal + i` (R-X3).

The exponential is Triton's, which a device computes as 2**(x * log2 e): its argument is rounded
once more, by |x - m| * 2**-24, and weights below 2**-126 may be flushed to 0. A kernel that uses it
is to be launched with ``enable_fp_fusion=False``: x - m is then exactly 0 at a row's maximum, where
a fused multiply-add leaves the rounding error of x, however large x is.
"""

import triton
import triton.language as tl


@triton.jit
def place(tiles: tl.tensor, heads: tl.tensor) -> tuple[tl.tensor, ...]:
    """This program's tile, of ``tiles`` in a head, its head and its batch entry."""
    program = tl.program_id(0).to(tl.int64)
    return program % tiles, program // tiles % heads, program // tiles // heads


@triton.jit
def visible_keys(
    i: tl.tensor, rows: tl.tensor, k_len: tl.tensor, diagonal: tl.tensor, IS_CAUSAL: tl.constexpr
) -> tl.tensor:
    """How many of the first keys row i sees, if it is one of the first ``rows``, else none."""
    limit = tl.where(i < rows, k_len, 0)
    if IS_CAUSAL:
        limit = tl.minimum(limit, tl.maximum(diagonal + i + 1, 0))
    return limit


@triton.jit
def score_tile(
    query: tl.tensor,
    key: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    q_tokens: tl.tensor,
    k_tokens: tl.tensor,
    head_dim: tl.tensor,
    stride: tl.tensor,
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    RAGGED: tl.constexpr,
    D: tl.constexpr,
) -> tl.tensor:
    """The antidiagonal sums of positions i and j of one head (R-X1).

    The last position of a side may lack tokens (``RAGGED``): their products add nothing, not even
    the NaN of 0 * NaN. Offsets take 64 bits, positions do not.
    """
    query += (i * stride)[:, None] * query_strides[2]
    key += (j * stride)[None, :] * key_strides[2]
    scores = tl.zeros([i.shape[0], j.shape[0]], tl.float32)
    parts = tl.cdiv(head_dim, D)
    for step in range(0, stride * parts):
        s = step // parts
        d = step % parts * D + tl.arange(0, D).to(tl.int64)
        q_step = (stride - 1 - s).to(tl.int64) * query_strides[2]
        k_step = s.to(tl.int64) * key_strides[2]
        q_exists = i.to(tl.int32) < (q_tokens + s) // stride
        k_exists = j.to(tl.int32) < tl.cdiv(k_tokens - s, stride)
        q = tl.load(
            query + (q_step + d * query_strides[3])[None, :],
            mask=q_exists[:, None] & (d < head_dim)[None, :],
            other=0,
        )
        k = tl.load(
            key + (k_step + d * key_strides[3])[:, None],
            mask=(d < head_dim)[:, None] & k_exists[None, :],
            other=0,
        )
        summed = tl.dot(q, k, scores, input_precision="ieee")
        if RAGGED:
            summed = tl.where(q_exists[:, None] & k_exists[None, :], summed, scores)
        scores = summed
    return scores


@triton.jit
def logits(scores: tl.tensor, visible: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """x, -inf where masked."""
    return tl.where(visible, scores.to(tl.float32) * scale, float("-inf"))


@triton.jit
def shift(m_i: tl.tensor) -> tl.tensor:
    """m, to be subtracted; a row that has seen -inf alone has none, and no key of weight."""
    return tl.where(m_i == float("-inf"), 0.0, m_i)


@triton.jit
def accumulate(m_i: tl.tensor, l_i: tl.tensor, x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The statistics with one more tile of x. A NaN shows in l alone: a maximum may drop it."""
    m_new = tl.maximum(m_i, tl.max(tl.where(x == x, x, float("-inf")), 1))
    l_i = l_i * tl.exp(m_i - shift(m_new))
    return m_new, l_i + tl.sum(tl.exp(x - shift(m_new)[:, None]), 1)


@triton.jit
def weights(x: tl.tensor, visible: tl.tensor, m_i: tl.tensor) -> tl.tensor:
    """exp(x - m), and 0 where masked, even in a row whose m is NaN."""
    return tl.where(visible, tl.exp(x - shift(m_i)[:, None]), 0.0)


@triton.jit
def normalised(mass: tl.tensor, l_i: tl.tensor) -> tl.tensor:
    """mass / l of each row. No mass stays none, even in a row whose l is 0 or NaN."""
    return tl.where(mass == 0, 0.0, tl.div_rn(mass, tl.where(l_i == 0, 1.0, l_i)[:, None]))
