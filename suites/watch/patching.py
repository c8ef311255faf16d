"""Makes Triton's interpreter compute what a device computes, and sooner."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suites.watch.interpreter import fold_reductions


def mend_interpreter() -> None:
    """All that follows, and reductions by vectors. May be called any number of times."""
    fold_reductions()
    patch_language_once()
    mend_arithmetic()


# --- the language --------------------------------------------------------------------------------


class _Nothing:
    """The scope of a patch that was not needed."""

    def restore(self) -> None:
        pass


def patch_language_once() -> None:
    """Patch ``triton.language`` once a launch. May be called any number of times.

    A launch patches the language to run on numpy and restores it at its end. Each call of a device
    function inside patches it again, the same way, which takes more time than most functions.
    Triton 3.4 never restores the language, so there it changes nothing; without Triton neither.
    """
    try:
        interpreter = import_module("triton.runtime.interpreter")
    except ImportError:
        return
    patch_language = interpreter._patch_lang
    if hasattr(patch_language, "__wrapped__"):
        return
    languages = (interpreter.tl, interpreter.tl.core)
    patched: set[int] = set()  # the modules that the running launch has patched
    scopes: list[Any] = []  # one for the launch, and one for each module that it met later

    @wraps(patch_language)
    def once(function: Any) -> Any:
        modules = filter(inspect.ismodule, function.__globals__.values())
        needed = {id(module) for module in modules if module in languages}
        if needed and needed <= patched:
            return _Nothing()
        scope = patch_language(function)
        if not hasattr(scope, "restore"):  # Triton 3.4
            interpreter.tl.core.tensor.__index__ = _index
            return scope
        scope.set_attr(interpreter.tl.core.tensor, "__index__", _index)
        patched.update(needed)
        scopes.append(scope)
        if scope is scopes[0]:  # the launch's own, and so the only one that is restored
            scope.restore = partial(_restore, scope.restore, scopes, patched)
        return scope

    setattr(interpreter, "_patch_lang", once)  # noqa: B010 - untyped, and private


def _index(tensor: Any) -> int:
    """A scalar as the bound of a range. Before Triton 3.7, numpy 2.4 and later refuse it."""
    return int(tensor.handle.data.squeeze())


def _restore(launch: Callable[[], None], scopes: list[Any], patched: set[int]) -> None:
    """Restore what was patched last first."""
    for scope in reversed(scopes[1:]):
        scope.restore()
    scopes.clear()
    patched.clear()
    launch()


# --- arithmetic ----------------------------------------------------------------------------------

# What computes in floating point, and the type that stands in for bf16 there. From two bf16
# numbers, a result in fp32 can be rounded again as if it were exact; a fused product and sum can't.
ARITHMETIC = {
    "binary_op": np.float32,
    "unary_op": np.float32,
    "ternary_op": np.float32,
    "create_dot": np.float32,
    "create_rsqrt": np.float32,
    "create_fma": np.float64,
}

SHIFTS = ("create_shl", "create_lshr", "create_ashr")


def mend_arithmetic() -> None:
    """Give interpreted kernels the bf16 of a device, and no warning where IEEE 754 has a result.

    A shift by as many bits as the operand has, or more, has no value on a device; numpy shifts all
    bits out, which may be just what was meant. Here all bits are set, as long as anybody looks.

    The interpreter keeps bf16 as the integers of its bits, and adds, compares and multiplies those
    (in ``tl.dot`` too); conversions it truncates. Here an operation is on the values and rounds
    once, to nearest, ties to even. So does each step of a reduction or scan in bf16. Integers are
    converted by way of fp32, as torch does it.

    Overflow, division by 0 and NaN are silent in floating point, as on a device. Integers divided
    by 0 or made from NaN have no defined value, and still are warned of.

    May be called any number of times; without Triton, does nothing.
    """
    try:
        interpreter = import_module("triton.runtime.interpreter")
    except ImportError:
        return
    builder = interpreter.InterpreterBuilder
    if hasattr(builder.cast_impl, "__wrapped__"):
        return
    mend = _Arithmetic(interpreter)
    for name, stand_in in ARITHMETIC.items():
        setattr(builder, name, mend.operation(getattr(builder, name), stand_in))
    for name in SHIFTS:
        setattr(builder, name, mend.shift(getattr(builder, name)))
    builder.cast_impl = mend.cast(builder.cast_impl)
    builder.create_fp_to_fp = mend.cast_in_mode(builder.create_fp_to_fp)
    builder.get_bf16 = mend.constant  # there is none before Triton 3.9
    builder.get_fp16 = _silent(builder.get_fp16)
    builder.get_fp32 = _silent(builder.get_fp32)
    reduce, scan = interpreter.ReduceOps, interpreter.ScanOps
    reduce.min_max = mend.min_max(reduce.min_max)
    reduce.sum = mend.steps(reduce.sum, "generic_reduce")
    scan.cumsum = mend.steps(scan.cumsum, "generic_scan")
    scan.cumprod = mend.steps(scan.cumprod, "generic_scan")


class _Arithmetic:
    """Replacements for the methods of one version of the interpreter."""

    def __init__(self, interpreter: Any) -> None:
        self._handle = interpreter.TensorHandle
        self._toward_zero = interpreter._ir.ROUNDING_MODE.RTZ
        self._bfloat16 = interpreter.tl.bfloat16
        self._types = {np.float32: interpreter.tl.float32, np.float64: interpreter.tl.float64}

    def operation(self, compute: Callable[..., Any], stand_in: type[Any]) -> Callable[..., Any]:
        @wraps(compute)
        def computed(builder: Any, *operands: Any) -> Any:
            handles = [x for x in operands if isinstance(x, self._handle)]
            narrow = [self._is_bfloat16(handle) for handle in handles]
            floating = any(narrow) or any(handle.data.dtype.kind == "f" for handle in handles)
            if not floating or operands[-1] is np.where:  # which selects, and computes nothing
                return compute(builder, *operands)
            with np.errstate(all="ignore"):
                result = compute(builder, *(self._widened(x, stand_in) for x in operands))
                if narrow[-1] and result.data.dtype == stand_in:  # a comparison returns bool
                    result = self._rounded(result.data)
            return result

        return computed

    def cast(self, convert: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(convert)
        def converted(builder: Any, source: Any, target: Any) -> Any:
            source = self._widened(source, np.float32)
            if target.scalar == self._bfloat16:
                return self._rounded(source.data)
            if not target.scalar.is_floating():
                return convert(builder, source, target)
            with np.errstate(all="ignore"):
                return convert(builder, source, target)

        return converted

    def cast_in_mode(self, convert: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(convert)
        def converted(builder: Any, source: Any, target: Any, mode: Any) -> Any:
            if target.scalar == self._bfloat16 and source.data.dtype.kind == "f":  # no fp8
                return self._rounded(source.data, mode == self._toward_zero)
            return convert(builder, source, target, mode)

        return converted

    def shift(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compute)
        def shifted(builder: Any, operand: Any, by: Any) -> Any:
            result = compute(builder, operand, by)
            bits = 8 * operand.data.itemsize
            defined = (by.data >= 0) & (by.data < bits)
            ones = np.invert(np.zeros_like(result.data))
            return self._handle(np.where(defined, result.data, ones), result.dtype)

        return shifted

    def constant(self, value: float) -> Any:
        return self._rounded(np.array([value], np.float64))

    def steps(self, at_once: Callable[..., Any], by_steps: str) -> Callable[..., Any]:
        @wraps(at_once)
        def combined(operation: Any, operand: Any) -> Any:
            if self._is_bfloat16(operand.handle):
                return getattr(operation, by_steps)((operand,))
            with np.errstate(all="ignore"):
                return at_once(operation, operand)

        return combined

    def min_max(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        # Of nothing but NaN, these two warn whatever numpy is told to ignore.
        silent = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}

        @wraps(compute)
        def computed(
            operation: Any, operand: Any, val_reduce_op: Any, idx_reduce_op: Any = None
        ) -> Any:
            value, index = silent.get(val_reduce_op, val_reduce_op), idx_reduce_op
            if self._is_bfloat16(operand.handle):
                value, index = partial(_of_bits, value), index and partial(_of_bits, index)
            return compute(operation, operand, value, index)

        return computed

    def _is_bfloat16(self, handle: Any) -> bool:
        return bool(handle.dtype.scalar == self._bfloat16)

    def _widened(self, operand: Any, stand_in: type[Any]) -> Any:
        if isinstance(operand, self._handle) and self._is_bfloat16(operand):
            values = widen_bfloat16(operand.data).astype(stand_in)
            return self._handle(values, self._types[stand_in])
        return operand

    def _rounded(self, values: NDArray[Any], toward_zero: bool = False) -> Any:
        return self._handle(round_to_bfloat16(values, toward_zero), self._bfloat16)


def widen_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def _of_bits(reduce: Callable[..., Any], bits: NDArray[np.uint16], **axes: Any) -> Any:
    reduced = reduce(widen_bfloat16(bits), **axes)
    return round_to_bfloat16(reduced) if reduced.dtype == np.float32 else reduced


def round_to_bfloat16(values: NDArray[Any], toward_zero: bool = False) -> NDArray[np.uint16]:
    """The bits of each value in bf16, rounded once: to nearest, ties to even, or toward 0."""
    with np.errstate(all="ignore"):
        single = np.asarray(values, np.float32)
        bits = single.view(np.uint32)
        if values.dtype == np.float64:
            # What fp32 cannot hold becomes its odd neighbour on the side of 0: never a tie.
            widened = single.astype(np.float64)
            bits = (bits - (np.abs(widened) > np.abs(values))) | (widened != values)
        nearest = bits if toward_zero else bits + (0x7FFF + (bits >> 16 & 1))
        quiet = bits >> 16 | 0x40
        return np.asarray(np.where(np.isnan(single), quiet, nearest >> 16), np.uint16)


def _silent(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def silent(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return method(*arguments)

    return silent
