"""When an actual result is the expected one, by how much it is off, and what is said of it."""

import math

import pytest
import torch
from torch import Tensor

from oracles.bounds import ANY_FINITE
from suites.comparison import agree, difference, error_ratio, same_bits

NAN, INF = math.nan, math.inf
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def floats(*values: float, dtype: torch.dtype = F32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def bound(*values: float) -> Tensor:
    return floats(*values, dtype=torch.float64)


# --- element by element --------------------------------------------------------------------------

# Expected, actual, bound, and whether they agree.
ELEMENTS: dict[str, tuple[float, float, float, bool]] = {
    "equal": (1.0, 1.0, 0.0, True),
    "at the bound": (1.0, 1.5, 0.5, True),
    "past the bound": (1.0, 1.5, 0.49, False),
    "past it on the other side": (1.0, 0.5, 0.49, False),
    "zeros of two signs": (0.0, -0.0, 0.0, True),
    "NaN for NaN": (NAN, NAN, 0.0, True),
    "NaN for a number": (1.0, NAN, INF, False),
    "NaN where any finite number may be": (1.0, NAN, ANY_FINITE, False),
    "a number for NaN": (NAN, 1.0, INF, False),
    "the same infinity": (INF, INF, 0.0, True),
    "the other infinity": (INF, -INF, 1e30, False),
    "an infinity for a number": (1.0, INF, 1e30, False),
    "an infinity where the range may be passed": (3e38, INF, INF, True),
    "the other infinity where the range may be passed": (INF, -INF, INF, False),
    "a number where the range may be passed": (INF, 3e38, INF, True),
    "a number for an infinity": (INF, 3e38, 1e30, False),
    "an infinity where any finite number may be": (1.0, INF, ANY_FINITE, False),
    "any finite number": (-3e38, 3e38, ANY_FINITE, True),
    "any finite number for an infinity": (INF, 1.0, ANY_FINITE, True),
}


@pytest.mark.parametrize("what", ELEMENTS)
def test_an_element(what: str) -> None:
    expected, actual, most, same = ELEMENTS[what]
    found = agree(floats(expected), floats(actual), bound(most))
    assert found.tolist() == [same]


def test_without_a_bound_only_equal_values_agree() -> None:
    expected, actual = floats(1, NAN, INF, 0, 1), floats(1, NAN, INF, -0.0, math.nextafter(1, 2))
    assert agree(expected, actual).tolist() == [True] * 5  # the last is 1 in fp32
    neighbour = torch.nextafter(floats(1), floats(2))
    assert agree(floats(1), neighbour).tolist() == [False]
    wide = torch.tensor([2**53]), torch.tensor([2**53 + 1])  # one number in float64
    assert agree(*wide).tolist() == [False]


def test_half_precision_is_subtracted_exactly() -> None:
    """In fp16, 2048 + 1 is 2048: the difference is taken in float64."""
    assert agree(floats(2048, dtype=F16), floats(2050, dtype=F16), bound(1.9)).tolist() == [False]
    assert agree(floats(2048, dtype=F16), floats(2050, dtype=F16), bound(2)).tolist() == [True]


def test_a_mask_may_differ_where_it_is_undecidable() -> None:
    expected, actual = torch.tensor([True, True, False, False]), torch.tensor([True, False] * 2)
    assert agree(expected, actual, bound(0, 1, 1, 0)).tolist() == [True] * 4
    assert agree(expected, actual, bound(0, 0, 0, 0)).tolist() == [True, False, False, True]
    assert agree(expected, ~actual, bound(1, 0, 0, 0)).tolist() == [True, True, True, False]


# --- results -------------------------------------------------------------------------------------


def test_results_that_agree() -> None:
    results = (floats(1, 2), torch.tensor([True, False]))
    assert difference(("block_sums", "mask"), results, results) is None
    close = (floats(1.25, 2), torch.tensor([True, True]))
    assert difference(("block_sums", "mask"), results, close, (bound(0.25, 0), bound(0, 1))) is None


def said(expected: Tensor, actual: Tensor, name: str = "result") -> str | None:
    found = difference((name,), (expected,), (actual,))
    return found.statement if found else None


def test_what_is_said() -> None:
    zeros = torch.zeros(2, 3)
    assert said(zeros, zeros.half()) == "the result is torch.float16, not torch.float32"
    assert said(zeros, zeros.half(), "scores") == (
        "the result scores is torch.float16, not torch.float32"
    )
    assert said(zeros, zeros.T) == "the result has shape [3, 2], not [2, 3]"
    assert said(zeros, torch.zeros(1, 3)) == "the result has shape [1, 3], not [2, 3]"
    assert said(zeros, torch.eye(3)[:2]) == "2 of 6 elements differ, in 2 of 2 rows"
    assert said(zeros[0], torch.ones(3)) == "3 of 3 elements differ"


def test_the_first_row_that_differs_is_shown() -> None:
    actual = torch.zeros(4, 3)
    actual[2:, 1] = 1
    found = difference(("result",), (torch.zeros(4, 3),), (actual,))
    assert found is not None
    assert found.row == 2
    assert found.statement == "2 of 12 elements differ, in 2 of 4 rows"


def test_of_several_results_the_one_that_differs_is_named() -> None:
    m, total = floats(1, 2), floats(3, 4)
    names = ("m", "l")
    for actual, statement in (
        ((m, floats(3, 5)), "1 of 2 elements of l differ"),
        ((m + 1, total), "2 of 2 elements of m differ"),
        ((m, total.half()), "the result l is torch.float16, not torch.float32"),
        ((m, total[:1]), "the result l has shape [1], not [2]"),
    ):
        found = difference(names, (m, total), actual)
        assert found is not None
        assert found.statement == statement
    found = difference(names, (m, total), (m + 1, total + 1), (bound(1, 1), bound(1, 0.5)))
    assert found is not None
    assert found.statement == "1 of 2 elements of l differ"


def test_bits_tell_what_values_do_not() -> None:
    assert same_bits((floats(NAN, 1),), (floats(NAN, 1),))
    assert not same_bits((floats(0.0),), (floats(-0.0),))
    assert not same_bits((floats(0.0, dtype=BF16),), (floats(0.0, dtype=F16),))
    assert not same_bits((floats(1.0),), (floats(1.0).unsqueeze(0),))
    other = torch.tensor([0x7FC00001], dtype=torch.int32).view(F32)
    assert not same_bits((floats(NAN),), (other,))
    assert not same_bits((floats(1), torch.tensor([True])), (floats(1), torch.tensor([False])))
    assert same_bits((torch.eye(3).T[1:],), (torch.eye(3)[1:],))  # whatever the strides


# --- how far off ---------------------------------------------------------------------------------


def ratio(expected: Tensor, actual: Tensor, most: Tensor | None) -> float | None:
    return error_ratio((expected,), (actual,), (most,))


def test_the_largest_share_of_a_bound_counts() -> None:
    expected = floats(1, 2, 4)
    assert ratio(expected, floats(1.25, 2.125, 4), bound(1, 1, 1)) == 0.25
    assert ratio(expected, floats(1.25, 2.125, 4), bound(1, 0.25, 1)) == 0.5
    assert ratio(expected, expected, bound(1, 1, 1)) == 0
    results = (expected, expected), (floats(1.5, 2, 4), floats(1, 1.25, 4))
    assert error_ratio(*results, (bound(1, 1, 1), bound(1, 1, 1))) == 0.75
    assert error_ratio(*results, (bound(0.5, 1, 1), bound(1, 1, 1))) == 1
    assert error_ratio(*results, (bound(1, 1, 1), None)) == 0.5


def test_what_says_nothing() -> None:
    one = floats(1)
    assert ratio(one, one, None) is None
    assert ratio(one, one, bound(0)) is None
    assert ratio(one, one, bound(INF)) is None
    assert ratio(one, one, bound(ANY_FINITE)) is None
    for value in (NAN, INF, -INF):
        assert ratio(floats(value), floats(value), bound(1)) is None
    mask = torch.tensor([True])
    assert ratio(mask, ~mask, bound(1)) is None
    assert ratio(floats(), floats(), bound()) is None


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("value", [1.0, 1.5, -2.0, 0.75, 100.0, 0.0, 2.0**-14])
def test_a_bound_of_one_step_says_nothing(value: float, dtype: torch.dtype) -> None:
    """With it, a result is right or a whole step off: the ratio is 0 or 1."""
    expected = floats(value, dtype=dtype)
    beyond = (expected.view({4: torch.int32, 2: torch.int16}[dtype.itemsize]) + 1).view(dtype)
    step = (beyond.double() - expected.double()).abs()
    assert ratio(expected, expected, step) is None
    assert ratio(expected, expected, step * 1.5) == 0
    assert ratio(expected, beyond, step * 2) == 0.5
