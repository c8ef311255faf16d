"""Cases of the XAttention family.

By default they are what every implementation is made for: whole blocks at aligned offsets, rows
that see a key, scores of ordinary size. What breaks kernels besides is asked for by name, so that a
test that fails says which of it was too much.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from golden.model import FloatType, Layout, Operation, Tensor, Value
from suites.cases import (
    ESTIMATE,
    MERGE,
    NORMALISE,
    ONE_PASS,
    SCORES,
    SELECT,
    STATS,
    Case,
    real,
    to_golden,
    to_torch,
)

INF = float("inf")
SOFTMAX: tuple[Operation, ...] = (STATS, NORMALISE, ONE_PASS)
BLOCK_SUMS: tuple[Operation, ...] = (NORMALISE, ONE_PASS)
OPERATIONS: tuple[Operation, ...] = (SCORES, *SOFTMAX, MERGE, SELECT, ESTIMATE)

DTYPES: tuple[FloatType, ...] = ("float32", "float16", "bfloat16")
LAYOUTS: tuple[Layout, ...] = ("contiguous", "offset", "padded", "sliced", "transposed")

# How scores differ. `ordinary`: by a few units, ties included. `equal`: not at all. `near`: by few
# roundings. `huge`: up to 1e8, or what the type holds, of both signs. `high`: those that are
# positive. `tiny`: by subnormals.
Spread = Literal["ordinary", "equal", "near", "huge", "high", "tiny"]
SPREADS: tuple[Spread, ...] = get_args(Spread)
MILD: tuple[Spread, ...] = ("ordinary", "equal", "near")

DRAWN = 12  # elements of a tensor that are drawn one by one

dtypes: st.SearchStrategy[FloatType] = st.sampled_from(DTYPES)
few = st.integers(1, 2)  # batch entries, heads


# --- values --------------------------------------------------------------------------------------


def _one_of_a(spread: Spread, dtype: FloatType) -> st.SearchStrategy[float]:
    limits = torch.finfo(getattr(torch, dtype))
    match spread:
        case "ordinary" | "equal":
            return st.one_of(st.integers(-4, 4).map(float), st.floats(-6, 6, width=16))
        case "near":
            return st.integers(0, 3).map(lambda steps: 3.0 * (1 + steps * limits.eps))
        case "huge" | "high":
            most = min(1e8, limits.max)
            parts = [1.0, -1.0, 0.999, -0.999, 0.5, -0.5] if spread == "huge" else [1.0, 0.999, 0.5]
            return st.sampled_from(parts).map(lambda x: x * most)
        case "tiny":
            return st.integers(-4, 4).map(lambda steps: steps * limits.smallest_normal * 0.25)


@st.composite
def tensors(
    draw: st.DrawFn,
    dtype: FloatType,
    shape: tuple[int, ...],
    elements: st.SearchStrategy[float],
    *,
    layouts: bool = False,
    distinct: int = 6,
) -> Tensor:
    """A tensor of at most ``distinct`` values, each rounded to its type.

    The first elements are drawn from them; the others walk through them: one by one would take
    too long.
    """
    count = int(np.prod(shape))
    pool = draw(st.lists(elements, min_size=1, max_size=distinct), label="values")
    drawn = min(count, DRAWN)
    data = draw(st.lists(st.sampled_from(pool), min_size=drawn, max_size=drawn), label="elements")
    if count > drawn:
        step = draw(st.integers(0, len(pool)), label="step")
        data += [pool[(i * step + i // len(pool)) % len(pool)] for i in range(drawn, count)]
    layout = draw(st.sampled_from(LAYOUTS if layouts else LAYOUTS[:1]), label="layout")
    return to_golden(torch.tensor(data, dtype=getattr(torch, dtype)).reshape(shape), layout)


@st.composite
def scores(
    draw: st.DrawFn,
    dtype: FloatType,
    shape: tuple[int, ...],
    spreads: Sequence[Spread] = MILD,
    *,
    layouts: bool = False,
) -> Tensor:
    """Scores of one spread."""
    spread = draw(st.sampled_from(spreads), label="spread")
    distinct = 1 if spread == "equal" else 6
    return draw(tensors(dtype, shape, _one_of_a(spread, dtype), layouts=layouts, distinct=distinct))


# --- scores of queries and keys ------------------------------------------------------------------


@st.composite
def score_cases(
    draw: st.DrawFn,
    *,
    spreads: Sequence[Spread] = MILD,
    causal: bool | None = None,
    dtype: FloatType | None = None,
    layouts: bool = False,
    columns: st.SearchStrategy[int] = st.integers(1, 7),  # noqa: B008
) -> Case:
    """``flat_group_gemm_fuse_reshape`` of a few positions; ``causal`` None: either."""
    element_type = draw(st.just(dtype) if dtype else dtypes, label="dtype")
    batch, heads = draw(few), draw(few)
    stride = draw(st.sampled_from([2, 1, 3, 4, 8]), label="stride")
    head_dim = draw(st.sampled_from([1, 2, 3, 8, 17]), label="head_dim")
    rows, keys = draw(st.integers(1, 5), label="rows"), draw(columns, label="columns")
    start = draw(st.integers(0, 6), label="chunk_start")
    inputs: dict[str, Value] = {
        name: draw(
            scores(
                element_type, (batch, heads, length * stride, head_dim), spreads, layouts=layouts
            )
        )
        for name, length in (("query_states", rows), ("key_states", keys))
    }
    inputs |= {"stride": stride, "chunk_start": start, "chunk_end": start + rows}
    inputs["is_causal"] = draw(st.booleans()) if causal is None else causal
    return Case(SCORES, inputs)


# --- softmax -------------------------------------------------------------------------------------


@st.composite
def softmax_cases(
    draw: st.DrawFn,
    operation: Operation,
    *,
    spreads: Sequence[Spread] = MILD,
    causal: bool | None = None,
    dtype: FloatType | None = None,
    aligned: bool = True,
    empty: bool = False,
    padded: bool = False,
    layouts: bool = False,
    blocks: st.SearchStrategy[int] = st.sampled_from([2, 1, 3, 4, 5]),  # noqa: B008
    k_blocks: st.SearchStrategy[int] = st.integers(1, 4),  # noqa: B008
) -> Case:
    """One of ``SOFTMAX``.

    ``causal`` None: either. ``aligned``: offsets in whole blocks, and segments of whole blocks that
    divide the keys; otherwise any. ``empty``: a row may see no key, and statistics may be those of
    such a row. ``padded``: the last rows may be padding. For the block sums' sake lengths are whole
    blocks: ``blocks`` says of what size, ``k_blocks`` how many of keys.
    """
    element_type = draw(st.just(dtype) if dtype else dtypes, label="dtype")
    block = draw(blocks, label="block")
    step = block if aligned else 1
    shape = (
        draw(few),
        draw(few),
        block * draw(st.integers(1, 2), label="q_blocks"),
        block * draw(k_blocks, label="k_blocks"),
    )
    is_causal = draw(st.booleans(), label="is_causal") if causal is None else causal
    start = step * draw(st.integers(0, 4 if aligned else 11), label="chunk_start / step")
    furthest = start // step + (shape[2] // step + 1 if empty else 0)
    offset = step * draw(st.integers(0, furthest), label="kv_offset / step")
    if operation == ONE_PASS:
        offset = 0
    count = shape[3] // block
    dividing = [block * n for n in range(1, count + 1) if count % n == 0]
    segments = dividing if aligned else [1, 2, 3, 5, 7, 8, 1000]
    inputs: dict[str, Value] = {
        "attn_weights_slice": draw(scores(element_type, shape, spreads, layouts=layouts)),
        "reshaped_block_size": block,
        "segment_size": draw(st.sampled_from(segments), label="segment"),
        "chunk_start": start,
        "scale": real(draw(st.sampled_from([1.0, 0.5, 0.125, 1.7]), label="scale")),
        "is_causal": is_causal,
    }
    if operation != ONE_PASS:
        inputs["kv_offset"] = offset
    if operation != STATS:
        cut = draw(st.integers(0, shape[2] + 1), label="padding") if padded else 0
        inputs["real_q_len"] = max(start + shape[2] - cut, 0)
    if operation == ONE_PASS:
        inputs["chunk_end"] = start + shape[2]
    case = Case(operation, inputs)
    if operation != NORMALISE:
        return case
    m, total = draw(_statistics_of_more(case, empty))
    layout = draw(st.sampled_from(LAYOUTS if layouts else LAYOUTS[:1]), label="layout of m, l")
    return case.changed(m_global=to_golden(m, layout), l_global=to_golden(total, layout))


def visible(case: Case) -> NDArray[np.bool_]:
    """Which columns each row of a softmax case sees, by their positions: ``[q_len, k_len]``."""
    _, _, rows, columns = case.tensor("attn_weights_slice").shape
    if not case.inputs["is_causal"]:
        return np.ones((rows, columns), np.bool_)
    i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]
    offset = case.number("kv_offset") if "kv_offset" in case.inputs else 0
    return offset + j <= case.number("chunk_start") + i


def logits(case: Case) -> NDArray[np.float64]:
    """x of a softmax case, float64, and -inf where it is not visible."""
    x = to_torch(case.tensor("attn_weights_slice")).double().numpy()
    scale = float(case.tensor("scale").data[0])
    masked: NDArray[np.float64] = np.where(visible(case), x * scale, -INF)
    return masked


@st.composite
def _statistics_of_more(
    draw: st.DrawFn, case: Case, empty: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """m and l of each row, fp32: of the case's chunk together with others that are not shown."""
    x = logits(case)
    # A key elsewhere, whose logit is near those of the chunk; without it a row may be empty.
    elsewhere = draw(st.sampled_from([0.0, -1.5, 2.25, -INF] if empty else [0.0, -1.5, 2.25]))
    most = np.maximum(x.max(-1, initial=-INF), -INF)
    other = np.where(np.isfinite(most), most, 0.0) + elsewhere
    m = np.maximum(most, other)
    base = np.where(np.isfinite(m), m, 0.0)
    total = np.exp(x - base[..., None]).sum(-1) + np.exp(other - base)
    return torch.from_numpy(m).float(), torch.from_numpy(total).float()


# --- merges --------------------------------------------------------------------------------------


@st.composite
def merge_cases(
    draw: st.DrawFn,
    *,
    spreads: Sequence[Spread] = MILD,
    chunks: st.SearchStrategy[int] = st.integers(1, 5),  # noqa: B008
    empty: bool = False,
    layouts: bool = False,
) -> Case:
    """Statistics of a few chunks; ``empty``: of a chunk without keys, too."""
    shape = (draw(few), draw(few), draw(st.integers(1, 5), label="rows"))
    count = draw(chunks, label="chunks")
    sums = st.one_of(st.sampled_from([1.0, 2.0, 7.5]), st.floats(0.5, 1e4, width=32))
    m_chunks, l_chunks = [], []
    for _ in range(count):
        m = draw(scores("float32", shape, spreads, layouts=layouts))
        total = draw(tensors("float32", shape, sums, layouts=layouts))
        if empty and draw(st.booleans(), label="an empty chunk"):
            m, total = (
                to_golden(torch.full(shape, value), each.layout)
                for value, each in ((-INF, m), (0.0, total))
            )
        m_chunks.append(m)
        l_chunks.append(total)
    return Case(MERGE, {"m_chunks": tuple(m_chunks), "l_chunks": tuple(l_chunks)})


def merge_of(*chunks: tuple[torch.Tensor, torch.Tensor]) -> Case:
    """The merge of chunks, each given by its m and l."""
    m_chunks, l_chunks = (tuple(map(to_golden, each)) for each in zip(*chunks, strict=True))
    return Case(MERGE, {"m_chunks": m_chunks, "l_chunks": l_chunks})


def chunks_of(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The m and l of each chunk of a merge: the inverse of ``merge_of``."""
    m_chunks, l_chunks = case.inputs["m_chunks"], case.inputs["l_chunks"]
    if not (isinstance(m_chunks, tuple) and isinstance(l_chunks, tuple)):
        raise TypeError(f"{case.operation} is no merge")
    return [(to_torch(m), to_torch(total)) for m, total in zip(m_chunks, l_chunks, strict=True)]


# --- selections ----------------------------------------------------------------------------------


@st.composite
def select_cases(
    draw: st.DrawFn,
    *,
    causal: bool | None = None,
    dtype: FloatType | None = None,
    layouts: bool = False,
    batch: st.SearchStrategy[int] = few,
    k_blocks: st.SearchStrategy[int] = st.sampled_from([4, 1, 2, 3, 5, 7, 8, 9, 17]),  # noqa: B008
    first: int = 0,
) -> Case:
    """Block sums of a few rows: none, equal ones, and ones that sum exactly, among them.

    ``first``: the least diagonal block, below every number of ``k_blocks``.
    """
    element_type = draw(st.just(dtype) if dtype else dtypes, label="dtype")
    is_causal = draw(st.booleans(), label="causal") if causal is None else causal
    columns = draw(k_blocks, label="k_blocks")
    rows = draw(st.integers(1, min(columns - first, 4)), label="q_blocks")
    masses = st.one_of(st.sampled_from([1.0, 0.0, 0.5, 0.25, 2.0]), st.floats(0, 4, width=16))
    thresholds = st.one_of(
        st.sampled_from([0.9, 0.5, 0.75, 1.0, 0.25]), st.integers(1, 128).map(lambda n: n / 128)
    )
    return Case(
        SELECT,
        {
            "input_tensor": draw(
                tensors(
                    element_type, (draw(batch), draw(few), rows, columns), masses, layouts=layouts
                )
            ),
            "current_index": draw(st.integers(first, columns - rows), label="current_index"),
            "threshold": real(draw(thresholds, label="threshold")),
            "causal": is_causal,
        },
    )


# --- estimates -----------------------------------------------------------------------------------


@st.composite
def estimate_cases(
    draw: st.DrawFn,
    *,
    spreads: Sequence[Spread] = MILD,
    causal: bool | None = None,
    dtype: FloatType | None = None,
    whole: bool = False,
    layouts: bool = False,
) -> Case:
    """Estimates of a few blocks; ``whole``: lengths are whole blocks, so that nothing is padded."""
    element_type = draw(st.just(dtype) if dtype else dtypes, label="dtype")
    stride = draw(st.sampled_from([2, 1, 4]), label="stride")
    block = stride * draw(st.integers(1, 3), label="positions a block")
    is_causal = draw(st.booleans(), label="causal") if causal is None else causal
    blocks = draw(st.integers(1, 2), label="q_blocks")
    q_len = block * blocks if whole else draw(st.integers(1, block * blocks), label="q_len")
    k_len = q_len + block * draw(st.integers(0, 2), label="more k_blocks")
    shape = (draw(few), draw(few))
    head_dim = draw(st.sampled_from([2, 1, 3, 8]), label="head_dim")
    states = [
        draw(scores(element_type, (*shape, length, head_dim), spreads, layouts=layouts))
        for length in (q_len, k_len)
    ]
    return Case(
        ESTIMATE,
        {
            "query_states": states[0],
            "key_states": states[1],
            "block_size": block,
            "stride": stride,
            "norm": real(draw(st.sampled_from([1.0, 0.5, 2.0]), label="norm")),
            "threshold": real(draw(st.sampled_from([0.9, 0.5, 0.75, 1.0]), label="threshold")),
            "chunk_size": block * draw(st.sampled_from([1, 2, 3, 1000]), label="chunk / block"),
            "causal": is_causal,
        },
    )


def cases(
    operation: Operation, *, spreads: Sequence[Spread] = MILD, layouts: bool = False
) -> st.SearchStrategy[Case]:
    """Cases of any operation of the family: ordinary ones, unless ``spreads`` says otherwise."""
    match operation:
        case "flat_group_gemm_fuse_reshape":
            return score_cases(spreads=spreads, layouts=layouts)
        case "merge_softmax_stats":
            return merge_cases(spreads=spreads, layouts=layouts)
        case "find_blocks_chunked":
            return select_cases(layouts=layouts)
        case "xattn_estimate":
            return estimate_cases(spreads=spreads, layouts=layouts)
    return softmax_cases(operation, spreads=spreads, layouts=layouts)
