"""Cases of the witness family, drawn where kernels break: at edges, limits, and odd layouts."""

from typing import Literal

import numpy as np
from hypothesis import strategies as st

from golden.model import Layout, Operation, Tensor
from suites.cases import APPLY, INDICES, ROWS, SERVE, Case

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
MERGES: tuple[Operation, ...] = (APPLY, SERVE)
ROW_OPERATIONS: tuple[Operation, ...] = (INDICES, *MERGES)

DRAWN = 12  # entries of a row that are drawn one by one

# What a learned row may hold. `any`: whatever int32 holds. `legal`: tokens of the row's context
# and padding. `distinct`: legal, and no token twice.
Tokens = Literal["any", "legal", "distinct"]

MATRIX_LAYOUTS: tuple[Layout, ...] = ("contiguous", "offset", "padded", "sliced", "transposed")
LENGTH_TYPES: tuple[Literal["int32", "int64"], ...] = ("int32", "int64")
BROADCAST: tuple[Layout, ...] = ("broadcast",)
VECTOR_LAYOUTS: tuple[Layout, ...] = ("contiguous", "offset", "sliced")


def segment_counts(operation: Operation) -> st.SearchStrategy[int]:
    """Few, the limits of the 64-bit mask, and past them where the operation has no limit."""
    counts = [1, 2, 3, 4, 5, 8, 31, 32, 33, 63, 64]
    if operation == INDICES:
        counts += [65, 100, 128, 130]
    return st.sampled_from(counts)


def context_lengths(segments: int, *, at_least: int = INT32_MIN) -> st.SearchStrategy[int]:
    """Around S, around 0, around the limits of int32, and anything between."""
    special = [16, 1, 0, segments - 1, segments, segments + 1, 2 * segments + 1, -1, -3]
    special += [INT32_MAX, INT32_MAX - 1, 2**30, INT32_MIN]
    return st.one_of(
        st.sampled_from([length for length in special if length >= at_least]),
        st.integers(max(at_least, 0), 200),
        st.integers(max(at_least, 0), INT32_MAX),
    )


@st.composite
def learned_rows(
    draw: st.DrawFn, topk: int, length: int, segments: int, tokens: Tokens
) -> list[int]:
    """``topk`` entries from a small pool, many of them at a segment's edge or one beside it."""
    if length <= 0 and tokens != "any":
        return [-1] * topk
    context = max(length, 1)
    effective = min(segments, context)
    pool = [-1]
    for s in draw(st.lists(st.integers(0, effective), max_size=4), label="edges"):
        edge = -(-s * context // effective)
        pool += [x for x in (edge, edge - 1, edge + 1) if 0 <= x < context]
    pool += draw(st.lists(st.integers(0, context - 1), max_size=4), label="tokens")
    if tokens == "any":
        pool += draw(st.lists(_anything(length), max_size=4), label="others")
    drawn = min(topk, DRAWN)
    row = draw(st.lists(st.sampled_from(pool), min_size=drawn, max_size=drawn), label="learned")
    if topk > drawn:  # the rest walks through the pool: entry by entry would take too long
        step = draw(st.integers(0, len(pool)), label="step")
        row += [pool[i * step % len(pool)] for i in range(drawn, topk)]
    return _without_repeats(row) if tokens == "distinct" else row


def _anything(length: int) -> st.SearchStrategy[int]:
    """Other padding than -1, entries past the context, and any int32."""
    past = [x for x in (length, length + 1, 2 * length, 64 * length) if 0 <= x <= INT32_MAX]
    special = [-2, -64, INT32_MIN, *past, INT32_MAX - 1, INT32_MAX]
    return st.one_of(st.sampled_from(special), st.integers(INT32_MIN, INT32_MAX))


def _without_repeats(row: list[int]) -> list[int]:
    """A token's second appearance becomes padding."""
    return [x if x not in row[:slot] else -1 for slot, x in enumerate(row)]


@st.composite
def cases(
    draw: st.DrawFn,
    operation: Operation,
    *,
    tokens: Tokens = "any",
    rows: st.SearchStrategy[int] = st.integers(0, 3),  # noqa: B008
    shortest: int = INT32_MIN,
    layouts: bool = True,
) -> Case:
    """A case of a few rows that shrinks to one a person can check by hand.

    ``shortest`` is the least context length; ``layouts`` lets tensors lie otherwise than
    contiguous.
    """
    segments = draw(segment_counts(operation), label="num_segments")
    widths = [4, 1, 2, 3, 0, 7, 13, segments - 1, segments, segments + 1, segments + 3]
    topk = draw(st.sampled_from([w for w in widths if 0 <= w <= 70]), label="topk")
    lengths = draw(
        rows.flatmap(
            lambda n: st.lists(context_lengths(segments, at_least=shortest), min_size=n, max_size=n)
        ),
        label="context_lens",
    )
    learned = [x for n in lengths for x in draw(learned_rows(topk, n, segments, tokens))]
    layout = st.sampled_from(MATRIX_LAYOUTS if layouts else MATRIX_LAYOUTS[:1])
    return assemble(
        operation,
        learned=Tensor("int32", (len(lengths), topk), tuple(learned), layout=draw(layout)),
        lengths=draw(_lengths_tensor(lengths, layouts)),
        segments=segments,
        keep=draw(st.integers(0, topk), label="learned_keep"),
        replacements=draw(st.one_of(st.integers(0, 4), st.integers(0, 80)), label="replacements"),
    )


@st.composite
def _lengths_tensor(draw: st.DrawFn, lengths: list[int], layouts: bool) -> Tensor:
    choices = [*VECTOR_LAYOUTS, *BROADCAST] if len(set(lengths)) == 1 else [*VECTOR_LAYOUTS]
    return Tensor(
        draw(st.sampled_from(LENGTH_TYPES)),
        (len(lengths),),
        tuple(lengths),
        layout=draw(st.sampled_from(choices)) if layouts else "contiguous",
    )


def assemble(
    operation: Operation,
    *,
    learned: Tensor,
    lengths: Tensor,
    segments: int,
    keep: int = 0,
    replacements: int = 0,
) -> Case:
    """The case, with the parameters that the operation has."""
    inputs: dict[str, Tensor | int] = {ROWS[operation]: learned, "context_lens": lengths}
    if operation == APPLY:
        inputs |= {"learned_keep": keep, "max_replacements": replacements}
    return Case(operation, inputs | {"num_segments": segments})


@st.composite
def large_cases(
    draw: st.DrawFn, operation: Operation, *, rows: int, topks: tuple[int, ...]
) -> Case:
    """Too many entries to draw one by one: filled from a drawn seed.

    Half the entries of a row lie in its context, in a part of it so that segments stay empty; the
    rest is padding, out of range, or anything.
    """
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    segments = draw(st.sampled_from([64, 7, 33, 63]), label="num_segments")
    topk = draw(st.sampled_from(topks), label="topk")
    lengths = generator.choice([0, 1, segments, 500, 4096, 131072, INT32_MAX], rows)
    part = np.maximum(lengths // generator.integers(1, 9, rows), 1)[:, None]
    inside = generator.integers(0, 2**62, (rows, topk)) % part
    anything = generator.integers(INT32_MIN, 2**31, (rows, topk))
    kind = generator.random((rows, topk))
    learned = np.where(kind < 0.6, inside, np.where(kind < 0.9, -1, anything))
    return assemble(
        operation,
        learned=Tensor(
            "int32",
            (rows, topk),
            tuple(learned.flatten().tolist()),
            layout=draw(st.sampled_from(MATRIX_LAYOUTS)),
        ),
        lengths=Tensor("int64", (rows,), tuple(lengths.tolist())),
        segments=segments,
        keep=draw(st.sampled_from([max(topk - segments, 0), 0, topk // 2, topk])),
        replacements=draw(st.sampled_from([segments, 1, topk])),
    )
