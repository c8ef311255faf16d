"""Floats as bit patterns: what the ``bits`` of a tensor mean, and how ``data`` agrees with them.

``struct`` knows float16, float32 and float64; a bfloat16 is the upper half of a float32.
"""

import math
import struct
from typing import Literal, TypeGuard

from golden.model import ElementType, FloatType

Name = Literal["nan", "inf", "-inf"]
Datum = int | float | Name

_STRUCT_CODE = {"float16": ">e", "bfloat16": ">f", "float32": ">f", "float64": ">d"}
_DIGITS = {"float16": 4, "bfloat16": 4, "float32": 8, "float64": 16}

# Of bfloat16: bits in a significand, and the exponent of the smallest subnormal.
_BF16_PRECISION = 8
_BF16_LOWEST = -133


def is_float(dtype: ElementType) -> TypeGuard[FloatType]:
    """Whether an element type is a float, with bits to its data."""
    return dtype in _DIGITS


def _round_to_bfloat16(value: float) -> float:
    """To the nearest, ties to even, in one rounding: going through float32 would make it two."""
    exponent = max(math.frexp(value)[1] - _BF16_PRECISION, _BF16_LOWEST)
    # round() would turn -0.2 into the integer 0 and lose the sign
    steps = math.copysign(round(math.ldexp(value, -exponent)), value)
    return math.ldexp(steps, exponent)


def bits_of(datum: Datum, dtype: FloatType) -> str:
    """The pattern of the nearest value, as hexadecimal digits, most significant first.

    Raises OverflowError for a finite number that is out of the range of ``dtype``.
    """
    value = float(datum)
    if dtype == "bfloat16" and math.isfinite(value):
        value = _round_to_bfloat16(value)
    return struct.pack(_STRUCT_CODE[dtype], value).hex()[: _DIGITS[dtype]]


def value_of(bits: str, dtype: FloatType) -> float:
    """The value of a pattern, exactly. Raises ValueError for a wrong number of digits."""
    if len(bits) != _DIGITS[dtype]:
        raise ValueError(f"{dtype} has {_DIGITS[dtype]} hexadecimal digits, got {bits!r}")
    padded = bits + "0000" if dtype == "bfloat16" else bits
    (value,) = struct.unpack(_STRUCT_CODE[dtype], bytes.fromhex(padded))
    return float(value)


def agree(datum: Datum, bits: str, dtype: FloatType) -> bool:
    """Whether a datum rounds to a pattern; "nan" agrees with every NaN there is.

    Raises ValueError like ``value_of``.
    """
    if math.isnan(value_of(bits, dtype)):
        return datum == "nan"
    try:
        return bits_of(datum, dtype) == bits
    except OverflowError:
        return False


def shortest(bits: str, dtype: FloatType) -> float | Name:
    """The decimal with the fewest digits that rounds to a pattern; NaN and infinities by name."""
    value = value_of(bits, dtype)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    decimals = (float(f"{value:.{digits}e}") for digits in range(17))
    return next(decimal for decimal in decimals if agree(decimal, bits, dtype))
