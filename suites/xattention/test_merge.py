"""Stage 2: the statistics of chunks become those of all keys (R-X5)."""

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.cases import MERGE, Case, Results, to_golden, to_torch
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.xattention import merge_cases
from suites.xattention import dense

several = st.integers(2, 6)


def _chunks(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    m_chunks, l_chunks = (case.inputs[name] for name in ("m_chunks", "l_chunks"))
    assert isinstance(m_chunks, tuple)
    assert isinstance(l_chunks, tuple)
    return list(map(to_torch, m_chunks)), list(map(to_torch, l_chunks))


def _case(m_chunks: list[torch.Tensor], l_chunks: list[torch.Tensor]) -> Case:
    both = {"m_chunks": m_chunks, "l_chunks": l_chunks}
    return Case(MERGE, {name: tuple(map(to_golden, chunks)) for name, chunks in both.items()})


def _formula(case: Case) -> Results:
    m, total = (torch.stack(chunks).double() for chunks in _chunks(case))
    largest = m.amax(0)
    return largest.float(), (total * (m - largest).exp()).sum(0).float()


def _spaced(case: Case, factor: float, offset: float) -> Case:
    """The maxima farther apart, and all of them farther from 0."""
    m_chunks, l_chunks = _chunks(case)
    return _case([m * factor + offset for m in m_chunks], l_chunks)


# --- tests ---------------------------------------------------------------------------------------


@contract("xattention.merge.formula")
@operations(MERGE)
@given(
    case=merge_cases(chunks=several),
    factor=st.sampled_from([1.0, 13.0, 30.0, 4000.0]),
    offset=st.sampled_from([0.0, 90.0, -90.0, 3e4, -3e4]),
)
@settings(max_examples=25)
def test_the_largest_maximum_and_the_rescaled_sums(
    implementation_or_oracle: Runner, case: Case, factor: float, offset: float
) -> None:
    """Near 0 and far from it; as near each other as e**-1 and farther than fp32 has exponents."""
    far = _spaced(case, factor, offset)
    implementation_or_oracle.judge(far, _formula(far))


@contract("xattention.merge.formula")
@operations(MERGE)
def test_more_rows_than_a_program_takes(implementation_or_oracle: Runner) -> None:
    row = torch.arange(2 * 3 * 700).reshape(2, 3, 700)
    m_chunks = [row * step % 64 / 8.0 for step in (5, 7, 11)]
    l_chunks = [row * step % 13 / 4.0 + 1.0 for step in (7, 11, 5)]
    case = _case(m_chunks, l_chunks)
    implementation_or_oracle.judge(case, _formula(case))


@contract("xattention.merge.order")
@operations(MERGE)
@given(data=st.data())
@settings(max_examples=20)
def test_any_order_of_the_chunks(implementation_or_oracle: Runner, data: st.DataObject) -> None:
    case = data.draw(merge_cases(chunks=several))
    m_chunks, l_chunks = _chunks(case)
    order = data.draw(st.permutations(range(len(m_chunks))), label="order")
    permuted = _case([m_chunks[c] for c in order], [l_chunks[c] for c in order])
    before, after = (implementation_or_oracle.call(each) for each in (case, permuted))
    bounds = dense.apart(case, permuted)
    implementation_or_oracle.require_close(permuted, before, after, bounds, "the order matters")


class _Part(NamedTuple):
    """The statistics of some chunks, and how far m and m + log l may be from the exact ones."""

    m: torch.Tensor
    total: torch.Tensor
    error_of_m: torch.Tensor
    error_of_log: torch.Tensor

    @property
    def log(self) -> torch.Tensor:
        return self.m.double() + self.total.double().log()


def _merged(runner: Runner, parts: list[_Part]) -> _Part:
    """What a merge adds to the largest error of its parts.

    m and m + log l, the logarithm of sum exp(x), are a maximum and a log-sum-exp of those of the
    parts: if each of these changes by e at most, so does the result.
    """
    case = _case([part.m for part in parts], [part.total for part in parts])
    m, total = runner.call(case)
    bound_of_m, bound_of_total = case.bounds()
    assert bound_of_m is not None
    assert bound_of_total is not None
    own = bound_of_m + (bound_of_total / (total.double() - bound_of_total)).log1p()
    return _Part(
        m,
        total,
        torch.stack([part.error_of_m for part in parts]).amax(0) + bound_of_m,
        torch.stack([part.error_of_log for part in parts]).amax(0) + own,
    )


@contract("xattention.merge.grouping")
@operations(MERGE)
@given(data=st.data())
@settings(max_examples=15)
def test_any_tree_of_merges(implementation_or_oracle: Runner, data: st.DataObject) -> None:
    case = data.draw(merge_cases(chunks=several))
    m_chunks, l_chunks = _chunks(case)
    none = torch.zeros_like(m_chunks[0], dtype=torch.float64)
    leaves = [_Part(m, total, none, none) for m, total in zip(m_chunks, l_chunks, strict=True)]
    at_once, parts = _merged(implementation_or_oracle, leaves), leaves
    while len(parts) > 1:
        chosen = data.draw(st.sets(st.integers(0, len(parts) - 1), min_size=2), label="merged next")
        rest = [part for i, part in enumerate(parts) if i not in chosen]
        parts = [*rest, _merged(implementation_or_oracle, [parts[i] for i in sorted(chosen)])]
    (tree,) = parts
    off_by_m = (tree.m.double() - at_once.m.double()).abs()
    off_by_log = (tree.log - at_once.log).abs()
    holds = off_by_m <= tree.error_of_m + at_once.error_of_m
    holds &= off_by_log <= tree.error_of_log + at_once.error_of_log
    implementation_or_oracle.require(
        case,
        bool(holds.all()),
        "merging some chunks first and the result with the rest gives something else",
        (tree.m, tree.total),
    )


@contract("xattention.merge.any-number")
@operations(MERGE)
@given(case=merge_cases(chunks=st.just(1)))
@settings(max_examples=10)
def test_one_chunk_comes_out_as_it_is(implementation_or_oracle: Runner, case: Case) -> None:
    (m,), (total,) = _chunks(case)
    implementation_or_oracle.judge(case, (m, total))


@contract("xattention.merge.any-number")
@operations(MERGE)
@given(case=merge_cases(chunks=st.sampled_from([2, 3, 7, 31, 32, 33, 65])))
@settings(max_examples=12)
def test_any_number_of_chunks(implementation_or_oracle: Runner, case: Case) -> None:
    implementation_or_oracle.judge(case, _formula(case))
