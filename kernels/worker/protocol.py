"""The messages between the harness and a worker, and their frames: docs/worker-protocol.md.

A frame is a prefix, a message in JSON, and raw buffers that the message describes.
"""

import json
import struct
from typing import Annotated, Any, Final, Literal

import msgspec

VERSION: Final = 1
MAGIC: Final = b"SCW1"
PREFIX: Final = struct.Struct("<4sIQ")  # the magic, then how many bytes of JSON and of buffers
HEADER_LIMIT: Final = 2**20  # bytes of JSON in a reply
BUFFER_LIMIT: Final = 2**31  # bytes of buffers in a reply

Size = Annotated[int, msgspec.Meta(ge=0)]
Poison = Literal["low", "high"]
Dot = Literal["ieee", "tf32"]
ElementType = Literal[
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
]
# What an implementation may say that it lacks, beside operations.
Capability = Literal[
    "float16", "bfloat16", "float32", "int64", "strided", "causal", "num_segments>64"
]


# --- arguments -----------------------------------------------------------------------------------


class Tensor(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="tensor"
):
    """A tensor argument and the memory around it, counted in elements of its dtype.

    Its storage has ``elements``, of which the buffers hold ``parts``, [start, stop) each, one after
    another; without parts, all of them. What lies in no part holds nothing that anyone looks at.
    Element (i, j, ...) of the tensor is element ``offset + i * strides[0] + j * strides[1] + ...``
    of its storage.
    """

    dtype: ElementType
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    elements: Size
    parts: tuple[tuple[Size, Size], ...] = ()


class Float(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="float"):
    """A number, float64: ``bits`` is its IEEE 754 pattern, 16 hexadecimal digits, highest first."""

    bits: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class Dtype(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="dtype"):
    """An element type as an argument."""

    dtype: ElementType


Argument = Tensor | tuple[Tensor, ...] | Float | Dtype | bool | int | str | None


# --- to the worker -------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hello"):
    """The first message. ``device``: where calls are to be carried out, as torch names it.

    ``operations``: every operation of the specification, with the names of its parameters.
    """

    protocol: int
    device: str
    operations: dict[str, tuple[str, ...]]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="call"):
    """One call. Every parameter has its argument; buffers are those of tensors, in their order.

    ``poison``: what memory is to hold that the worker allocates and has not written: NaN, the
    smallest integer, False ("low"), or -inf, the largest integer, True ("high").
    """

    number: int
    operation: str
    arguments: dict[str, Argument]
    poison: Poison | None = None


# --- from the worker -----------------------------------------------------------------------------


class Introduction(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="hello"
):
    """The answer to the first message: what the worker has, and what it says of itself.

    ``exponent_base``: 2, when the interface of XAttention's statistics is in that base. ``dot``:
    how it multiplies fp32. ``kernels``: which kernel an operation must launch. ``lacks``: what it
    refuses, operations or capabilities. ``versions``: of what it is made with.
    """

    protocol: int
    operations: tuple[str, ...]
    device: str = ""
    exponent_base: Literal[2] | None = None
    dot: Dot = "ieee"
    kernels: dict[str, str] = {}
    lacks: tuple[str, ...] = ()
    versions: dict[str, str] = {}


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tensor"):
    """A tensor that a call returned; its elements are in the buffers, row-major."""

    dtype: ElementType
    shape: tuple[Size, ...]


class Other(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="other"):
    """Something that a call returned and that is no result. ``name``: of its type."""

    name: str


class Returned(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="result"
):
    """A call was carried out. The buffers: what the call's held, as it is now, and the results.

    ``results``: none for an operation in place. ``launches``: the kernels that ran, by name.
    """

    number: int
    results: tuple[Result | Float | Other | tuple[int, ...] | bool | int, ...] = ()
    launches: tuple[str, ...] = ()


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="refusal"):
    """A call was refused (in Python: ValueError). The buffers are the call's, as they are now."""

    number: int
    message: str


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="error"):
    """A call went wrong, or the worker cannot serve (number 0). No buffers."""

    number: int
    message: str


Request = Hello | Call
Reply = Introduction | Returned | Refusal | Error


def schema_text() -> str:
    """The JSON Schema of every message, the text of docs/worker-protocol.json."""
    (request, reply), definitions = msgspec.json.schema_components(
        (Request, Reply), ref_template="#/$defs/{name}"
    )
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": [{"title": "Request", **request}, {"title": "Reply", **reply}],
        "$defs": definitions,
    }
    return json.dumps(document, indent=2) + "\n"
