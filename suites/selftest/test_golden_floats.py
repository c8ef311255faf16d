"""A float in a golden file is a decimal and a bit pattern, and both are the same value."""

import json
import math
import struct
from typing import get_args

import pytest

from golden.canonical import canonical_tensor
from golden.files import vector_paths
from golden.floats import agree, bits_of, shortest, value_of
from golden.model import FloatType, Tensor


def ieee_754(bits: str, exponent_bits: int) -> float:
    """What a pattern means, worked out from nothing but its digits."""
    pattern, width = int(bits, 16), 4 * len(bits)
    fraction_bits = width - 1 - exponent_bits
    sign = -1.0 if pattern >> (width - 1) else 1.0
    exponent = pattern >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = pattern & ((1 << fraction_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        return math.nan if fraction else sign * math.inf
    significand = fraction + (1 << fraction_bits) if exponent else fraction
    bias = (1 << (exponent_bits - 1)) - 1
    return sign * math.ldexp(significand, max(exponent, 1) - bias - fraction_bits)


EXPONENT_BITS = {"float16": 5, "bfloat16": 8, "float32": 8, "float64": 11}


def test_a_reader_with_only_json_can_rebuild_the_floats() -> None:
    rebuilt = 0
    for path in vector_paths():
        for vector in json.loads(path.read_text())["vectors"]:
            values = [*vector["inputs"].values(), vector.get("expected")]
            for tensor in [t for v in values for t in (v if isinstance(v, list) else [v])]:
                if not isinstance(tensor, dict) or tensor["dtype"] not in EXPONENT_BITS:
                    continue
                for datum, bits in zip(tensor["data"], tensor.get("bits", []), strict=True):
                    assert nearest(float(datum), bits, EXPONENT_BITS[tensor["dtype"]])
                    rebuilt += 1
    assert rebuilt > 100


def nearest(number: float, bits: str, exponent_bits: int) -> bool:
    """Whether no neighbour of a pattern is nearer to the number; float64 has it exactly."""
    value = ieee_754(bits, exponent_bits)
    if len(bits) == 16 or not math.isfinite(value) or value == 0:
        return value == number or (math.isnan(value) and math.isnan(number))
    neighbours = (f"{int(bits, 16) + step:0{len(bits)}x}" for step in (-1, 1))
    return all(
        abs(value - number) <= abs(ieee_754(neighbour, exponent_bits) - number)
        for neighbour in neighbours
    )


# Known patterns of each type: one, the largest number, the smallest subnormal, signs and specials.
PATTERNS: list[tuple[FloatType, str, float | str]] = [
    ("float16", "3c00", 1.0),
    ("float16", "7bff", 65500.0),
    ("float16", "0001", 6e-08),
    ("float16", "2e66", 0.1),
    ("bfloat16", "3f80", 1.0),
    ("bfloat16", "7f7f", 3.39e38),
    ("bfloat16", "0001", 9e-41),
    ("bfloat16", "8000", -0.0),
    ("bfloat16", "3dcd", 0.1),
    ("float32", "3dcccccd", 0.1),
    ("float32", "7f7fffff", 3.4028235e38),
    ("float32", "00000001", 1e-45),
    ("float64", "3fb999999999999a", 0.1),
    ("float64", "7fefffffffffffff", 1.7976931348623157e308),
    ("float64", "0000000000000001", 5e-324),
    ("float64", "8000000000000000", -0.0),
    ("float16", "7c00", "inf"),
    ("bfloat16", "ff80", "-inf"),
    ("float32", "7fc00001", "nan"),
]


@pytest.mark.parametrize(("dtype", "bits", "datum"), PATTERNS)
def test_a_pattern_has_a_shortest_decimal(dtype: FloatType, bits: str, datum: float | str) -> None:
    assert repr(shortest(bits, dtype)) == repr(datum)
    assert agree(shortest(bits, dtype), bits, dtype)
    assert repr(value_of(bits, dtype)) == repr(ieee_754(bits, EXPONENT_BITS[dtype]))


@pytest.mark.parametrize("dtype", get_args(FloatType))
def test_every_kind_of_pattern_survives_the_round_trip(dtype: FloatType) -> None:
    digits = len(bits_of(1.0, dtype))
    step = 257 if digits == 4 else 0x10000001 if digits == 8 else 0x1000000000000D
    for pattern in range(0, 16**digits, step):
        bits = f"{pattern:0{digits}x}"
        decimal = shortest(bits, dtype)
        assert agree(decimal, bits, dtype)
        assert decimal == "nan" or bits_of(decimal, dtype) == bits


def test_a_bfloat16_is_rounded_once_and_ties_go_to_even() -> None:
    assert bits_of(1 + 2**-8, "bfloat16") == "3f80"
    assert bits_of(1 + 3 * 2**-8, "bfloat16") == "3f82"
    # float32 would drop the last term and leave a tie
    above_the_tie = 1 + 2**-8 + 2**-40
    assert struct.unpack(">f", struct.pack(">f", above_the_tie)) == (1 + 2**-8,)
    assert bits_of(above_the_tie, "bfloat16") == "3f81"


def test_nan_agrees_with_nan_alone_and_a_number_out_of_range_with_nothing() -> None:
    assert agree("nan", "7e01", "float16")
    assert not agree("nan", "7c00", "float16")
    assert not agree(1.0, "7e00", "float16")
    assert not agree("inf", "fc00", "float16")
    assert not agree(1e39, "7f800000", "float32")


def test_a_canonical_tensor_has_bits_and_the_shortest_decimals() -> None:
    written = Tensor("float32", (3,), (1, 0.10000000149011612, "inf"))
    canonical = canonical_tensor(written)
    assert repr(canonical.data) == "(1.0, 0.1, 'inf')"
    assert canonical.bits == ("3f800000", "3dcccccd", "7f800000")
    assert canonical_tensor(canonical) == canonical


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("int32", (1,), (4,)),
        Tensor("float32", (1,), (0.5,), ("3f800000",)),
        Tensor("float32", (1,), (0.5,), ("3f80",)),
        Tensor("float32", (2,), (0.5, 0.5), ("3f000000",)),
        Tensor("float16", (1,), (1e9,)),
    ],
)
def test_a_tensor_that_only_a_person_can_correct_stays_as_it_is(tensor: Tensor) -> None:
    assert canonical_tensor(tensor) == tensor
