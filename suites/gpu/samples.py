"""A case an operation that fills some tiles of a kernel, and is small enough for the oracle.

Elements follow from their number, so that no two rows are alike.
"""

import torch

from golden.model import Operation, Tensor, Value
from suites.cases import (
    APPLY,
    ESTIMATE,
    MERGE,
    NORMALISE,
    ONE_PASS,
    ROWS,
    SCORES,
    SELECT,
    STATS,
    Case,
    real,
    to_golden,
)

HEADS, LENGTH, BLOCK = 2, 128, 16


def sample(operation: Operation, salt: int = 0, *, block: int = BLOCK) -> Case:
    """A case of the operation; another ``salt``, other values in the same shapes.

    ``block``: of the softmax, a divisor of ``LENGTH``.
    """
    if operation in ROWS:
        return _rows(operation, salt)
    match operation:
        case "flat_group_gemm_fuse_reshape" | "xattn_estimate":
            return _states(operation, salt)
        case "merge_softmax_stats":
            chunks = [salt + 10 * n for n in range(3)]
            return Case(
                MERGE,
                {
                    "m_chunks": tuple(_floats(n, HEADS, LENGTH) for n in chunks),
                    "l_chunks": tuple(_floats(n, HEADS, LENGTH, least=1) for n in chunks),
                },
            )
        case "find_blocks_chunked":
            return Case(
                SELECT,
                {
                    "input_tensor": _floats(salt, HEADS, BLOCK, 2 * BLOCK, least=0),
                    "current_index": BLOCK,
                    "threshold": real(0.75),
                },
            )
    return _softmax(operation, salt, block)


def _scrambled(count: int, salt: int) -> torch.Tensor:
    """int64 numbers below 2**24, each from its place and the salt."""
    place = torch.arange(count, dtype=torch.int64) + 1_000_003 * (salt + 1)
    return (place * 2_654_435_761 + place * place) % 1_000_000_007 % 2**24


def _floats(salt: int, *shape: int, least: int = -4) -> Tensor:
    """fp32 ``[1, *shape]``, multiples of 1/256 in [least, least + 8)."""
    numbers = _scrambled(torch.Size(shape).numel(), salt) % 2048
    return to_golden((least + numbers.float() / 256).reshape(1, *shape))


def _rows(operation: Operation, salt: int) -> Case:
    rows, topk, segments = 64, 200, 33
    lengths = _scrambled(rows, salt) % 5000
    kinds = _scrambled(rows * topk, salt + 1).reshape(rows, topk)
    # Some of the context's first third, so that segments stay empty; padding; anything.
    inside = kinds % (lengths[:, None] // 3 + 1)
    learned = torch.where(kinds % 5 < 3, inside, torch.where(kinds % 5 == 3, -1, kinds * 64))
    inputs: dict[str, Value] = {
        ROWS[operation]: to_golden(learned.int()),
        "context_lens": to_golden(lengths),
        "num_segments": segments,
    }
    if operation == APPLY:
        inputs |= {"learned_keep": 150, "max_replacements": 20}
    return Case(operation, inputs)


def _states(operation: Operation, salt: int) -> Case:
    stride, head_dim = 4, 24
    inputs: dict[str, Value] = {
        "query_states": _floats(salt, HEADS, LENGTH, head_dim),
        "key_states": _floats(salt + 1, HEADS, 2 * LENGTH, head_dim),
        "stride": stride,
    }
    if operation == ESTIMATE:
        return Case(ESTIMATE, inputs | {"block_size": BLOCK, "chunk_size": 4 * BLOCK})
    rows = LENGTH // stride
    return Case(SCORES, inputs | {"chunk_start": rows, "chunk_end": 2 * rows, "is_causal": False})


def _softmax(operation: Operation, salt: int, block: int) -> Case:
    inputs: dict[str, Value] = {
        "attn_weights_slice": _floats(salt, HEADS, LENGTH, 2 * LENGTH),
        "reshaped_block_size": block,
        "segment_size": block,
        "chunk_start": LENGTH,
        "scale": real(0.5),
        "is_causal": True,
    }
    if operation != STATS:
        inputs["real_q_len"] = 2 * LENGTH - 3
    if operation == ONE_PASS:
        inputs["chunk_end"] = 2 * LENGTH
    if operation == NORMALISE:
        inputs["m_global"] = _floats(salt + 1, HEADS, LENGTH, least=4)
        inputs["l_global"] = _floats(salt + 2, HEADS, LENGTH, least=1)
    return Case(operation, inputs)
