"""What the scores and the statistics of one estimate take in memory (R-X13).

Source: 存储开销分析. Notation of the source: S tokens, B batch, H heads, T stride, C tokens a chunk
of keys, n = ceil(S / C) chunks. All results are bytes; everything counted is fp32. The source
writes GB and MB where it counts in binary: 1 MB there is 2**20 bytes, a MiB.
"""

from fractions import Fraction

MIB = 2**20
GIB = 2**30
_FP32 = 4


def positions(tokens: int, stride: int) -> int:
    """Reshaped positions of that many tokens, a partial one included (R-X7)."""
    return -(-tokens // stride)


def num_kv_chunks(seq_len: int, chunk_size: int) -> int:
    """n = ceil(S / C)."""
    return -(-seq_len // chunk_size)


def attn_weights(batch: int, heads: int, q_tokens: int, k_tokens: int, stride: int) -> int:
    """Raw scores ``[B, H, q_tokens / T, k_tokens / T]``."""
    return batch * heads * positions(q_tokens, stride) * positions(k_tokens, stride) * _FP32


def stats(batch: int, heads: int, tokens: int, stride: int) -> int:
    """One m and one l ``[B, H, tokens / T]``: of a chunk with C tokens, of everything with S."""
    return 2 * batch * heads * positions(tokens, stride) * _FP32


def total_extra(batch: int, heads: int, seq_len: int, stride: int, chunk_size: int) -> int:
    """n * partial_stats + global_stats, a partial one being that of C query tokens."""
    partial = stats(batch, heads, chunk_size, stride)
    return num_kv_chunks(seq_len, chunk_size) * partial + stats(batch, heads, seq_len, stride)


def relative_extra(batch: int, heads: int, seq_len: int, stride: int, chunk_size: int) -> Fraction:
    """The statistics in relation to the raw scores of one pass: 1 / 4096 at the typical values."""
    extra = total_extra(batch, heads, seq_len, stride, chunk_size)
    return Fraction(extra, attn_weights(batch, heads, seq_len, seq_len, stride))


def printed_percentage(relative: Fraction) -> str:
    """The last column of the source's table, which divides its MB by its GB as if 1 GB = 1000 MB.

    Hence 0.025 % where it is 0.0244 %. Three decimals, half to even, without trailing zeros.
    """
    return f"{float(round(100 * relative * GIB / (1000 * MIB), 3)):g}"


def peak_one_pass(batch: int, heads: int, seq_len: int, stride: int) -> int:
    """The raw scores of all queries and keys at once, O(S**2)."""
    return attn_weights(batch, heads, seq_len, seq_len, stride)


def peak_three_stages(batch: int, heads: int, seq_len: int, stride: int, chunk_size: int) -> int:
    """The raw scores of all queries and one chunk of keys, O(S * C); statistics not counted."""
    return attn_weights(batch, heads, seq_len, min(chunk_size, seq_len), stride)
