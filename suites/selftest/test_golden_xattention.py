"""What the hand-made vectors of the XAttention family promise of themselves.

No oracle is asked: a mask is checked against the sums beside it, and a pipeline's stages against
each other.
"""

from collections.abc import Iterator
from fractions import Fraction

import pytest

from golden.files import load_vectors
from golden.floats import is_float, value_of
from golden.model import Tensor, Value, Vector

MARGIN = Fraction(1, 100)  # of a row's total; sums and thresholds are rounded far below that
EXACT = {"dyadic", "lost-in-rounding"}  # notes of masks that a hair decides, and why it may


def values(tensor: Value | None) -> list[float]:
    assert isinstance(tensor, Tensor)
    assert is_float(tensor.dtype)
    return [value_of(bits, tensor.dtype) for bits in tensor.bits]


def number(vector: Vector, name: str, default: float) -> float:
    return values(vector.inputs[name])[0] if name in vector.inputs else default


# --- masks ---------------------------------------------------------------------------------------

Row = tuple[list[Fraction], list[bool], set[int], set[int]]


def rows(sums: Tensor, mask: Tensor, current_index: int, causal: bool) -> Iterator[Row]:
    """Of each row: its sums, its mask, the blocks that it sees, and those that are mandatory."""
    *_, q_blocks, k_blocks = sums.shape
    exact = [Fraction(value) for value in values(sums)]
    for row, start in enumerate(range(0, len(exact), k_blocks)):
        diagonal = current_index + row % q_blocks
        visible = set(range(diagonal + 1 if causal else k_blocks))
        marks = [bool(mark) for mark in mask.data[start : start + k_blocks]]
        yield (
            exact[start : start + k_blocks],
            marks,
            visible,
            {0, diagonal} if causal else set(),
        )


def faults(row: Row, threshold: Fraction, margin: Fraction) -> list[str]:
    """What contradicts R-X12 in a row, and which decision is closer than the margin."""
    sums, mask, visible, mandatory = row
    chosen = {block for block, marked in enumerate(mask) if marked}
    found = []
    if not mandatory <= chosen <= visible:
        found.append("a mandatory block is left out, or a block of the future selected")
    taken = sorted((sums[block] for block in chosen - mandatory), reverse=True)
    left = sorted((sums[block] for block in visible - chosen - mandatory), reverse=True)
    if taken and left and taken[-1] <= left[0]:
        found.append("a block is selected in place of another that is no smaller")
    mass = sum((sums[block] for block in mandatory), Fraction())
    goal = threshold * sum((sums[block] for block in visible), Fraction())
    before_last = mass + sum(taken[:-1], Fraction())
    if taken and not goal - before_last > margin * goal:
        found.append("the last block selected has the threshold before it, or nearly")
    if left and not mass + sum(taken, Fraction()) - goal >= margin * goal:
        found.append("the first block left out has less than the threshold before it, or nearly")
    return found


def of_mask(vector: Vector, sums: Value | None, mask: Value | None, current: int) -> list[str]:
    assert isinstance(sums, Tensor)
    assert isinstance(mask, Tensor)
    causal = vector.inputs.get("causal", True) is True
    margin = Fraction() if EXACT & set(vector.notes) else MARGIN
    threshold = Fraction(number(vector, "threshold", 0.9))
    return [
        f"{vector.id}: {fault}"
        for row in rows(sums, mask, current, causal)
        for fault in faults(row, threshold, margin)
    ]


def test_a_selection_is_what_its_sums_say_by_a_wide_margin() -> None:
    judged = 0
    for vector in load_vectors("find_blocks_chunked").vectors:
        current = vector.inputs["current_index"]
        if vector.refusal is None and isinstance(current, int):
            assert of_mask(vector, vector.inputs["input_tensor"], vector.expected, current) == []
            judged += 1
    assert judged > 20


def test_the_selection_of_an_estimate_is_what_its_sums_say_by_a_wide_margin() -> None:
    judged = 0
    for vector in load_vectors("xattn_estimate").vectors:
        queries, keys = vector.inputs["query_states"], vector.inputs["key_states"]
        block_size = vector.inputs["block_size"]
        if vector.refusal is None and isinstance(vector.expected, tuple):
            assert isinstance(queries, Tensor)
            assert isinstance(keys, Tensor)
            assert isinstance(block_size, int)
            current = (keys.shape[2] - queries.shape[2]) // block_size
            sums, mask = vector.expected
            assert of_mask(vector, sums, mask, current) == []
            judged += 1
    assert judged > 20


@pytest.mark.parametrize(
    ("mask", "fault"),
    [
        ([True, True, False, False], "left out"),
        ([True, True, False, True], ""),
        ([True, False, True, True], "in place of another"),
        ([True, True, True, True], "last block selected"),
        ([True, False, False, True], "first block left out"),
    ],
)
def test_a_wrong_mask_is_found(mask: list[bool], fault: str) -> None:
    sums = [Fraction(n, 16) for n in (4, 6, 2, 4)]
    found = faults((sums, mask, {0, 1, 2, 3}, {0, 3}), Fraction(3, 4), MARGIN)
    assert any(fault in line for line in found) if fault else found == []


def test_a_narrow_decision_is_found() -> None:
    sums = [Fraction(n, 16) for n in (8, 4, 3, 1)]
    row = (sums, [True, True, False, False], {0, 1, 2, 3}, set[int]())
    assert faults(row, Fraction(3, 4), Fraction()) == []
    assert "nearly" in faults(row, Fraction(3, 4), MARGIN)[0]


# --- one example through all operations ----------------------------------------------------------


def example(operation: str, id_: str) -> Vector:
    (vector,) = (v for v in load_vectors(operation).vectors if v.id == id_)
    assert "in-stages" in vector.notes
    return vector


CHUNKS = ("first-chunk-of-two", "second-chunk-of-two")


def test_the_stages_of_the_example_fit_together() -> None:
    partial = [example("softmax_compute_partial_stats", chunk) for chunk in CHUNKS]
    merge = example("merge_softmax_stats", "two-chunks-of-keys")
    sums = [example("softmax_normalize_and_block_sum", chunk) for chunk in CHUNKS]
    scores = [v.inputs["attn_weights_slice"] for v in partial]
    statistics = [v.expected for v in partial if isinstance(v.expected, tuple)]
    maxima, totals = zip(*statistics, strict=True)
    assert (merge.inputs["m_chunks"], merge.inputs["l_chunks"]) == (maxima, totals)
    assert [v.inputs["attn_weights_slice"] for v in sums] == scores
    for stage in sums:
        assert (stage.inputs["m_global"], stage.inputs["l_global"]) == merge.expected


def test_the_stages_of_the_example_give_what_one_pass_gives() -> None:
    whole = example("softmax_fuse_block_sum", "four-keys-at-once")
    sums = [example("softmax_normalize_and_block_sum", chunk) for chunk in CHUNKS]
    in_stages = [value for stage in sums for value in values(stage.expected)]
    assert in_stages == pytest.approx(values(whole.expected), rel=2**-22)
    chunks = [values(stage.inputs["attn_weights_slice"]) for stage in sums]
    rows_of_both = [x for row in (0, 2) for c in chunks for x in c[row : row + 2]]
    assert rows_of_both == values(whole.inputs["attn_weights_slice"])
