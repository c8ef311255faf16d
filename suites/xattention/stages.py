"""The three stages of an implementation, one after the other, on parts of one case."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from hypothesis import strategies as st

from golden.model import Operation
from suites.cases import MERGE, NORMALISE, STATS, Case, Results, to_golden, to_torch
from suites.comparison import difference
from suites.runner import Runner

# --- parts of a case -----------------------------------------------------------------------------


def of_keys(case: Case, operation: Operation, first: int, end: int) -> Case:
    """A stage on the keys [first, end) of a case of ``softmax_fuse_block_sum``."""
    names = ["reshaped_block_size", "segment_size", "chunk_start", "scale", "is_causal"]
    names += ["real_q_len"] if operation == NORMALISE else []
    scores = case.tensor("attn_weights_slice")
    chunk = to_golden(to_torch(scores)[..., first:end], scores.layout)
    inputs = {name: case.inputs[name] for name in names}
    return Case(operation, {**inputs, "attn_weights_slice": chunk, "kv_offset": first})


def of_rows(case: Case, first: int, end: int) -> Case:
    """A case of scores or of softmax on its query rows [first, end) alone."""
    start = case.number("chunk_start")
    inputs = dict(case.inputs) | {"chunk_start": start + first}
    if "chunk_end" in inputs:
        inputs["chunk_end"] = start + end
    for name in ("query_states", "attn_weights_slice", "m_global", "l_global"):
        if name in inputs:
            tensor = case.tensor(name)
            tokens = case.number("stride") if name == "query_states" else 1
            rows = to_torch(tensor)[:, :, first * tokens : end * tokens]
            inputs[name] = to_golden(rows, tensor.layout)
    return Case(case.operation, inputs)


def chunks(size: int, step: int = 1) -> st.SearchStrategy[list[int]]:
    """Where the chunks of ``size`` things begin and end, in multiples of ``step``: at most five."""
    inner = st.sets(st.integers(1, max(size // step - 1, 1)), max_size=4)
    return inner.map(
        lambda cuts: [0, *(step * cut for cut in sorted(cuts) if step * cut < size), size]
    )


# --- the stages ----------------------------------------------------------------------------------


def _stages(
    runner: Runner, case: Case, ends: Sequence[int], ends_of_statistics: Sequence[int]
) -> Iterator[tuple[Case, Results]]:
    """Each call of the three stages, and what it gave; that of the last stage comes last."""
    statistics = []
    for first, end in pairwise(ends_of_statistics):
        stage = of_keys(case, STATS, first, end)
        statistics.append(runner.call(stage))
        yield stage, statistics[-1]
    m_chunks, l_chunks = (tuple(map(to_golden, each)) for each in zip(*statistics, strict=True))
    merge = Case(MERGE, {"m_chunks": m_chunks, "l_chunks": l_chunks})
    m, total = runner.call(merge)
    yield merge, (m, total)
    for first, end in pairwise(ends):
        stage = of_keys(case, NORMALISE, first, end)
        stage = stage.changed(m_global=to_golden(m), l_global=to_golden(total))
        yield stage, runner.call(stage)


def require_stages(
    runner: Runner,
    case: Case,
    expected: Results,
    ends: Sequence[int],
    ends_of_statistics: Sequence[int] | None = None,
) -> Results:
    """Require the three stages over chunks of keys to give the block sums of one pass.

    ``ends``: where chunks begin and end; statistics may come from others. If a stage is off by
    itself, that call is what fails: it can be run again alone.
    """
    stages = list(_stages(runner, case, ends, ends_of_statistics or ends))
    parts = [results[0] for stage, results in stages if stage.operation == NORMALISE]
    actual = (torch.cat(parts, -1),)
    bounds = case.bounds(staged=True)
    if difference(case.specification.results, expected, actual, bounds):
        for stage, _ in stages:
            runner.judge(stage)
    cuts = f"three stages over the keys cut at {list(ends)} differ from one pass"
    runner.require_close(case, expected, actual, bounds, cuts)
    return actual
