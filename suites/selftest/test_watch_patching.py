"""The language is patched once a launch, and restored after it; bf16 is what it is on a device."""

import math
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from oracles.xattention import round_to
from suites.watch.patching import mend_arithmetic, patch_language_once

interpreter = import_module("triton.runtime.interpreter")


@triton.jit
def _double(x: tl.tensor) -> tl.tensor:
    return x + x


@triton.jit
def _quadruple(x_ptr: tl.tensor) -> None:
    tl.store(x_ptr, _double(_double(tl.load(x_ptr))))


@triton.jit
def _fails(x_ptr: tl.tensor) -> None:
    tl.static_assert(tl.load(x_ptr) < 0, "not today")


restores = pytest.mark.skipif(
    not hasattr(interpreter, "_LangPatchScope"), reason="Triton 3.4 leaves the language patched"
)


@pytest.fixture
def scopes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The scopes that the interpreter's own function opens."""
    opened: list[object] = []
    original = getattr(interpreter._patch_lang, "__wrapped__", interpreter._patch_lang)

    def patch_language(function: object) -> object:
        opened.append(original(function))
        return opened[-1]

    monkeypatch.setattr(interpreter, "_patch_lang", patch_language)
    return opened


@triton.jit
def _counts(x_ptr: tl.tensor, end: tl.tensor) -> None:
    for _ in range(0, end, 2):
        tl.store(x_ptr, tl.load(x_ptr) + 1)


def test_a_scalar_bounds_a_range() -> None:
    """Before Triton 3.7 it did not, where numpy is 2.4 or later."""
    patch_language_once()
    x = torch.zeros(1)
    _counts[(1,)](x, 5)
    assert x.item() == 3


@restores
def test_a_launch_with_device_functions_patches_once(scopes: list[object]) -> None:
    patch_language_once()
    before = tl.load
    x = torch.full((1,), 3.0)
    _quadruple[(4,)](x)
    assert x.item() == 3.0 * 4**4
    assert len(scopes) == 1
    _quadruple[(1,)](x)
    assert len(scopes) == 2
    assert tl.load is before


def test_without_it_every_device_function_patches(scopes: list[object]) -> None:
    _quadruple[(4,)](torch.ones(1))
    assert len(scopes) == 1 + 4 * 2


@restores
def test_a_launch_that_fails_restores_too(scopes: list[object]) -> None:
    patch_language_once()
    before = tl.load
    with pytest.raises(triton.runtime.errors.InterpreterError):
        _fails[(1,)](torch.ones(1))
    assert tl.load is before
    _quadruple[(1,)](torch.ones(1))
    assert len(scopes) == 2


@triton.jit
def _sums(x_ptr: tl.tensor) -> None:
    values = tl.load(x_ptr + tl.arange(0, 4))
    tl.store(x_ptr + tl.arange(0, 4), tl.cumsum(values, 0) + tl.sum(values, 0))


@restores
def test_the_standard_library_of_the_language_is_patched_once_and_restored(
    scopes: list[object],
) -> None:
    """Its functions see ``triton.language.core``, which the interpreter leaves patched."""
    patch_language_once()
    before = tl.core.load
    x = torch.ones(4)
    _sums[(3,)](x)
    assert len(scopes) == 2
    assert tl.core.load is before


def test_twice_is_once() -> None:
    with patch.object(interpreter, "_patch_lang", interpreter._patch_lang):
        patch_language_once()
        wrapped = interpreter._patch_lang
        patch_language_once()
        assert interpreter._patch_lang is wrapped


# --- arithmetic ----------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
EVERY_BFLOAT16 = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)


@triton.jit
def _computes(
    x_ptr: tl.tensor, y_ptr: tl.tensor, z_ptr: tl.tensor, function: tl.constexpr, n: tl.constexpr
) -> None:
    i = tl.arange(0, n)
    tl.store(z_ptr + i, function(tl.load(x_ptr + i), tl.load(y_ptr + i)))


@triton.jit
def _multiplies(
    x_ptr: tl.tensor, y_ptr: tl.tensor, z_ptr: tl.tensor, m: tl.constexpr, k: tl.constexpr
) -> None:
    i, j = tl.arange(0, m), tl.arange(0, k)
    x = tl.load(x_ptr + i[:, None] * k + j[None, :])
    y = tl.load(y_ptr + j[:, None] * m + i[None, :])
    tl.store(z_ptr + i[:, None] * m + i[None, :], tl.dot(x, y))


def compute(
    function: Callable[..., Any], x: Tensor, y: Tensor | None = None, to: torch.dtype | None = None
) -> Tensor:
    """A function of the language, of one or two vectors, as a kernel computes and stores it."""
    z = torch.empty(x.shape, dtype=x.dtype if to is None else to)
    binary = function if y is not None else lambda x, _: function(x)
    _computes[(1,)](x, x if y is None else y, z, binary, x.numel())
    return z


def dot(x: Tensor, y: Tensor) -> Tensor:
    z = torch.empty(x.shape[0], y.shape[1])
    _multiplies[(1,)](x, y, z, *x.shape)
    return z


def check(actual: Tensor, expected: Any) -> None:
    """Equal, zeros by their sign too and NaN by place."""
    expected = torch.as_tensor(expected).to(actual.dtype)
    assert torch.equal(actual.isnan(), expected.isnan())
    number = ~actual.isnan()
    assert torch.equal(actual[number], expected[number])
    assert torch.equal(actual[number].signbit(), expected[number].signbit())


def of(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def pairs() -> tuple[Tensor, Tensor]:
    """Values of bf16 in random order, half of them beside others of like magnitude."""
    generator = torch.Generator().manual_seed(0)
    x, y = (EVERY_BFLOAT16[torch.randperm(2**16, generator=generator)] for _ in range(2))
    near = torch.randint(-400, 400, (2**15,), generator=generator).to(torch.int16)
    y = torch.cat([y[: 2**15], (x[2**15 :].view(torch.int16) + near).view(torch.bfloat16)])
    return x, y


def itself(x: Any) -> Any:
    return x


def every_value_is_widened() -> None:
    check(compute(itself, EVERY_BFLOAT16, to=torch.float32), EVERY_BFLOAT16.float())
    check(compute(itself, EVERY_BFLOAT16, to=torch.float64), EVERY_BFLOAT16.double())


def fp32_is_rounded() -> None:
    """All that a bf16 number precedes: exact, in reach of it, a tie, nearer the next; NaN too."""
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (EVERY_BFLOAT16.float().view(torch.int32) | low).view(torch.float32)
        check(compute(itself, x, to=torch.bfloat16), x.to(torch.bfloat16))


def fp16_is_rounded() -> None:
    x = EVERY_BFLOAT16.view(torch.float16)
    check(compute(itself, x, to=torch.bfloat16), x.to(torch.bfloat16))


def fp64_is_rounded_once() -> None:
    ties = (EVERY_BFLOAT16[::37].float().view(torch.int32) | 0x8000).view(torch.float32).double()
    x = torch.cat([ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), of(1e-300, -1e300, -0.0)])
    x = torch.cat([x, x.new_zeros(2 ** math.ceil(math.log2(len(x))) - len(x))])
    rounded = (v if math.isnan(v) else round_to(v, "bfloat16") for v in x.tolist())
    expected = of(*rounded, dtype=torch.float64).copysign(x)
    check(compute(itself, x, to=torch.bfloat16), expected)


def integers_are_rounded() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(limits.min, limits.max, (256,), dtype=dtype, generator=generator)
        check(compute(itself, x, to=torch.bfloat16), x.to(torch.bfloat16))
    check(compute(lambda x: x < 1, of(0, 1), to=torch.bfloat16), [1.0, 0.0])


def conversion_may_be_toward_zero() -> None:
    x = (EVERY_BFLOAT16.float().view(torch.int32) | 0xFFFF).view(torch.float32)
    finite = x.isfinite()

    def truncated(x: Any) -> Any:
        return x.to(tl.bfloat16, fp_downcast_rounding="rtz")

    actual = compute(truncated, x, to=torch.bfloat16)
    check(actual[finite], EVERY_BFLOAT16[finite])
    assert actual[~finite].isnan().all()


def sums_differences_and_products_are_rounded() -> None:
    x, y = pairs()
    check(compute(lambda x, y: x + y, x, y), x + y)
    check(compute(lambda x, y: x - y, x, y), x - y)
    check(compute(lambda x, y: x * y, x, y), x * y)
    check(compute(lambda x, y: x / y, x, y, torch.float32), x.float() / y.float())


def fused_sums_are_rounded_once() -> None:
    """7 * 37 = 259 is a tie, which goes up, and in fp32 less 2**-20 is still 259."""

    def fused(x: Any, y: Any) -> Any:
        return tl.fma(x, y, tl.full([2], -(2.0**-20), tl.bfloat16))

    x, y = of(7, 1, dtype=torch.bfloat16), of(37, 1, dtype=torch.bfloat16)
    check(compute(fused, x, y), [258.0, 1.0])


def comparisons_are_of_values() -> None:
    x, y = pairs()
    check(compute(lambda x, y: x < y, x, y, torch.float32), (x < y).float())
    check(compute(lambda x, y: (x == y) | (x >= y), x, y, torch.bfloat16), (x >= y).bfloat16())
    selected = compute(lambda x, y: tl.where(x > y, x, y), x, y)
    bits = torch.where(x > y, x.view(torch.int16), y.view(torch.int16))
    assert torch.equal(selected.view(torch.int16), bits)
    x, y = (v.nan_to_num(0) for v in (x, y))
    check(
        compute(lambda x, y: tl.maximum(x, y), x, y).float().abs(),
        torch.maximum(x, y).float().abs(),
    )
    for mode in (tl.PropagateNan.NONE, tl.PropagateNan.ALL):
        clamped = compute(lambda x, mode=mode: tl.clamp(x, -1.5, 2.0, propagate_nan=mode), x)
        check(clamped, x.clamp(-1.5, 2.0))


def signs_are_changed() -> None:
    check(compute(lambda x: -x, EVERY_BFLOAT16).abs(), EVERY_BFLOAT16.abs())
    check(compute(lambda x: tl.abs(x), EVERY_BFLOAT16), EVERY_BFLOAT16.abs())


def constants_are_rounded() -> None:
    x = of(1, 2, 3, 4, dtype=torch.bfloat16)
    tenth, third = of(1.1, 1 / 3, dtype=torch.bfloat16)
    check(compute(lambda x: x * 1.1, x), x * tenth)
    check(compute(lambda x: x * (1 + 2.0**-8 + 2.0**-40), x), x * (1 + 2.0**-7))
    check(compute(lambda x: x + tl.full([4], 1 / 3, tl.bfloat16), x), x + third)


def dots_are_of_values() -> None:
    x = torch.arange(16 * 32).reshape(16, 32).remainder(17) - 8
    y = torch.arange(32 * 16).reshape(32, 16).remainder(13) - 6
    check(dot(x.bfloat16() / 4, y.bfloat16()), (x @ y) / 4)


def extremes_are_of_values() -> None:
    x = of(1, -300, 2.5, -0.125, dtype=torch.bfloat16)
    check(compute(lambda x: tl.max(x, 0) + x * 0.0, x.abs()), [300.0] * 4)
    check(compute(lambda x: tl.min(x, 0), x, to=torch.float32), [-300.0] * 4)
    check(compute(lambda x: tl.argmin(x, 0), x, to=torch.int32), [1] * 4)
    check(compute(lambda x: tl.max(x, 0, return_indices=True)[1], x, to=torch.int32), [2] * 4)
    check(compute(lambda x: tl.reduce(x, 0, tl.standard._elementwise_max), x), [2.5] * 4)
    least = tl.standard._argmin_combine_tie_break_left
    for part, expected in enumerate((-300.0, 1.0)):
        check(
            compute(lambda x, i=part: tl.reduce((x, tl.arange(0, 4)), 0, least)[i], x),
            [expected] * 4,
        )
    check(compute(tl.sort, x), x.sort().values)


def sums_are_rounded_at_each_step() -> None:
    """256 + 1 is a tie that goes down; 259, all at once, would go up."""
    x = of(256, 1, 1, 1, dtype=torch.bfloat16)
    assert compute(lambda x: tl.sum(x, 0), x)[0] in (256, 258)
    check(compute(lambda x: tl.associative_scan(x, 0, tl.standard._sum_combine), x), [256.0] * 4)
    x = of(-4, 1, 2, 0.5, dtype=torch.bfloat16)
    check(compute(lambda x: tl.sum(x, 0), x, to=torch.float32), [-0.5] * 4)
    check(compute(lambda x: tl.cumsum(x, 0), x), [-4.0, -3.0, -1.0, -0.5])
    check(compute(lambda x: tl.cumsum(x, 0, reverse=True), x), [-0.5, 3.5, 2.5, 0.5])


def products_are_rounded_at_each_step() -> None:
    x = of(*[1 + 2**-7] * 4, dtype=torch.bfloat16)
    check(compute(lambda x: tl.associative_scan(x, 0, tl.standard._prod_combine), x), x.cumprod(0))
    x = of(-4, 1, 2, 0.5, dtype=torch.bfloat16)
    check(compute(lambda x: tl.cumprod(x, 0), x), [-4.0, -4.0, -8.0, -4.0])


def conversion_overflows_in_silence() -> None:
    x = of(65519, 65520, -1e38, NAN)
    check(compute(itself, x, to=torch.float16), [65504, INF, -INF, NAN])
    check(compute(itself, x.double() * 1e200, to=torch.float32), [INF, INF, -INF, NAN])


def operations_overflow_in_silence() -> None:
    x, y = of(3e38, -3e38, 1, 0), of(3e38, 3e38, 0, 0)
    check(compute(lambda x, y: x + y, x, y), [INF, 0.0, 1.0, 0.0])
    check(compute(lambda x, y: x * y, x, y), [INF, -INF, 0.0, 0.0])
    check(compute(lambda x, y: tl.fma(x, y, x), x, y), [INF, -INF, 1.0, 0.0])
    halves = of(60000, 60000, 1, 0, dtype=torch.float16)
    check(compute(lambda x: x + x, halves), [INF, INF, 2.0, 0.0])
    check(compute(lambda x: x * 70000.0, halves)[:3], [INF] * 3)
    check(compute(lambda x: tl.full([4], 1e39, tl.float32), x), [INF] * 4)


def division_by_0_is_silent() -> None:
    check(compute(lambda x, y: x / y, of(1, -1, 0, INF), of(0, 0, 0, INF)), [INF, -INF, NAN, NAN])
    check(compute(lambda x: tl.rsqrt(x), of(0, 4, INF, -1)), [INF, 0.5, 0.0, NAN])


def no_number_is_silent() -> None:
    x = of(INF, -INF, 0, NAN)
    check(compute(lambda x: x - x, x), [NAN, NAN, 0.0, NAN])
    check(compute(lambda x, y: x * y, x, of(0, 0, INF, 1)), [NAN] * 4)
    check(compute(lambda x: tl.log(x), of(0, -1, 1, NAN)), [-INF, NAN, 0.0, NAN])
    check(compute(lambda x: tl.exp(x), of(1000, -1000, 0, NAN)), [INF, 0.0, 1.0, NAN])
    check(compute(lambda x: tl.sqrt(x), of(-1, 4, INF, NAN)), [NAN, 2.0, INF, NAN])
    check(compute(lambda x: tl.sin(x), of(INF, 0, -INF, NAN)), [NAN, 0.0, NAN, NAN])


def reductions_of_no_number_are_silent() -> None:
    x = of(INF, -INF, 1, 2)
    check(compute(lambda x: tl.sum(x, 0), x), [NAN] * 4)
    check(compute(lambda x: tl.cumsum(x, 0), x), [INF, NAN, NAN, NAN])
    check(compute(lambda x: tl.cumprod(x, 0), of(3e38, 10, 0, 1)), [3e38, INF, NAN, NAN])
    nothing = of(NAN, NAN)
    check(compute(lambda x: tl.max(x, 0), nothing), nothing)
    check(compute(lambda x: tl.min(x, 0), nothing), nothing)
    if hasattr(interpreter, "_LangPatchScope"):  # Triton 3.4 does not pass over a NaN
        check(compute(lambda x: tl.max(x, 0), of(NAN, 1)), [1.0, 1.0])
        check(compute(lambda x: tl.min(x, 0), of(NAN, 1)), [1.0, 1.0])


def dots_overflow_in_silence() -> None:
    x, y = torch.full((16, 16), 3e38), torch.eye(16) * 3e38
    check(dot(x, y), torch.full((16, 16), INF))
    x[0] = INF
    check(dot(x, torch.eye(16))[0], torch.full((16,), NAN))


mended = pytest.mark.parametrize(
    "habit",
    [
        every_value_is_widened,
        fp32_is_rounded,
        fp16_is_rounded,
        fp64_is_rounded_once,
        integers_are_rounded,
        conversion_may_be_toward_zero,
        sums_differences_and_products_are_rounded,
        fused_sums_are_rounded_once,
        comparisons_are_of_values,
        signs_are_changed,
        constants_are_rounded,
        dots_are_of_values,
        extremes_are_of_values,
        sums_are_rounded_at_each_step,
        products_are_rounded_at_each_step,
        conversion_overflows_in_silence,
        operations_overflow_in_silence,
        division_by_0_is_silent,
        no_number_is_silent,
        reductions_of_no_number_are_silent,
        dots_overflow_in_silence,
    ],
)


@mended
def test_arithmetic(habit: Callable[[], None]) -> None:
    """Every warning is an error here."""
    mend_arithmetic()
    habit()


def owners() -> list[type[Any]]:
    return [interpreter.InterpreterBuilder, interpreter.ReduceOps, interpreter.ScanOps]


@mended
def test_without_it_arithmetic_is_another(
    habit: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mend_arithmetic()
    for owner in owners():
        for name, method in list(vars(owner).items()):
            if hasattr(method, "__wrapped__"):
                monkeypatch.setattr(owner, name, method.__wrapped__)
    with pytest.raises((AssertionError, triton.runtime.errors.InterpreterError)):
        habit()


@pytest.mark.parametrize(
    ("function", "warning"),
    [
        (lambda x: (x.to(tl.int32) // (x.to(tl.int32) - 1)).to(tl.float32), "divide by zero"),
        (lambda x: (x.to(tl.int32) % (x.to(tl.int32) - 1)).to(tl.float32), "divide by zero"),
        (lambda x: (x * NAN).to(tl.int32).to(tl.float32), "invalid value"),
    ],
    ids=["divided by 0", "modulo 0", "from NaN"],
)
def test_an_integer_without_a_value_is_warned_of(
    function: Callable[..., Any], warning: str
) -> None:
    mend_arithmetic()
    with pytest.raises(triton.runtime.errors.InterpreterError, match=warning):
        compute(function, of(1, 1))


def test_fp8_is_converted_as_before() -> None:
    mend_arithmetic()
    x = of(1.5, -2, dtype=torch.float8_e5m2)
    check(compute(itself, x, to=torch.bfloat16), [1.5, -2.0])
    check(compute(itself, x.bfloat16(), to=torch.float8_e5m2).float(), [1.5, -2.0])


def test_outside_a_kernel_numpy_warns_as_before() -> None:
    mend_arithmetic()
    compute(lambda x: x * x, of(3e38, INF))
    with pytest.raises(triton.runtime.errors.InterpreterError):
        compute(lambda x: x + tl.log(x) + undefined, of(0, 1))  # type: ignore[name-defined]  # noqa: F821
    with pytest.warns(RuntimeWarning, match="overflow"):
        np.full(1, 3e38, np.float32) * np.float32(10)


def test_mending_twice_is_mending_once() -> None:
    mend_arithmetic()
    before = [dict(vars(owner)) for owner in owners()]
    mend_arithmetic()
    assert [dict(vars(owner)) for owner in owners()] == before


@pytest.mark.parametrize("patching", [patch_language_once, mend_arithmetic])
def test_without_triton_there_is_nothing_to_patch(
    patching: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", None)
    patching()


@triton.jit
def _shifts(x_ptr: tl.tensor, by_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.constexpr) -> None:
    at = tl.arange(0, count)
    x, by = tl.load(x_ptr + at), tl.load(by_ptr + at)
    tl.store(out_ptr + at, x << by)
    tl.store(out_ptr + count + at, x >> by)
    tl.store(out_ptr + 2 * count + at, tl.where(by < 32, x << by, 7))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_shift_by_too_much_gives_what_nobody_meant(dtype: torch.dtype) -> None:
    mend_arithmetic()
    bits = torch.iinfo(dtype).bits
    x = torch.tensor([5, 5, 5, -8], dtype=dtype)
    by = torch.tensor([1, bits - 1, bits, 2 * bits], dtype=dtype)
    out = torch.zeros(12, dtype=dtype)
    _shifts[(1,)](x, by, out, 4)
    left, right, chosen = out.view(3, 4).tolist()
    assert left == [10, -(2 ** (bits - 1)), -1, -1]
    assert right == [2, 0, -1, -1]
    # What is not chosen need not have a value.
    assert chosen[0] == 10
    assert chosen[-2:] == [7, 7]
