"""The one way a golden file is written, so that people can read it and a change shows as a diff."""

import hashlib
import json
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

from golden.files import SCHEMAS
from golden.floats import agree, bits_of, is_float, shortest
from golden.model import Tensor, Value, Vector, VectorFile

WIDTH = 100
INDENT = "  "
EXPANDED = 2  # the depths that never share a line: the file and its lists


def canonical_tensor(tensor: Tensor) -> Tensor:
    """A float tensor with its bits and with the shortest decimals; others as they are.

    So is a tensor whose data and bits contradict each other: only a person knows which is right.
    """
    dtype = tensor.dtype
    if not is_float(dtype):
        return tensor
    try:
        bits = tensor.bits or tuple(bits_of(datum, dtype) for datum in tensor.data)
        if not all(agree(d, b, dtype) for d, b in zip(tensor.data, bits, strict=True)):
            return tensor
    except (OverflowError, ValueError):
        return tensor
    return msgspec.structs.replace(tensor, data=tuple(shortest(b, dtype) for b in bits), bits=bits)


def canonical_vector(vector: Vector) -> Vector:
    """A vector with its tensors in canonical form."""
    return msgspec.structs.replace(
        vector,
        inputs={name: _canonical_value(value) for name, value in vector.inputs.items()},
        expected=_canonical_value(vector.expected),
    )


def _canonical_value(value: Value | None) -> Value | None:
    if isinstance(value, Tensor):
        return canonical_tensor(value)
    if isinstance(value, tuple):
        return tuple(canonical_tensor(tensor) for tensor in value)
    return value


def vector_text(file: VectorFile) -> str:
    """The text of a vector file. Notes, vectors and inputs stay in the order they are in."""
    vectors = tuple(canonical_vector(vector) for vector in file.vectors)
    return _lines(msgspec.to_builtins(msgspec.structs.replace(file, vectors=vectors))) + "\n"


def schema_texts() -> dict[str, str]:
    """The text of each JSON Schema, by its path in the golden folder."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        path: json.dumps(dialect | msgspec.json.schema(kind), indent=2) + "\n"
        for path, kind in SCHEMAS.items()
    }


def inputs_digest(vector: Vector) -> str:
    """What the lock file remembers of a vector: 16 digits of the SHA-256 of its inputs."""
    inputs = msgspec.to_builtins(canonical_vector(vector).inputs)
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- layout of the text --------------------------------------------------------------------------


def _lines(value: Any, depth: int = 0, before: int = 0, width: int = 0) -> str:
    """JSON on one line where it fits after ``before`` characters, else an item a line.

    Scalars fill the lines of a list; ``width`` of them make a line in the data of a matrix.
    """
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | tuple) or not value:
        return flat
    rows_apart = _row_width(value) if isinstance(value, dict) else width
    fits = len(INDENT) * depth + before + len(flat) < WIDTH  # a comma may follow
    if fits and not rows_apart and depth >= EXPANDED:
        return flat
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            label = json.dumps(key, ensure_ascii=False) + ": "
            in_rows = rows_apart if key in ("data", "bits") else 0
            items.append(label + _lines(item, depth + 1, len(label), in_rows))
        return _block("{", items, "}", depth)
    if any(isinstance(item, dict) for item in value):
        return _block("[", [_lines(item, depth + 1) for item in value], "]", depth)
    step = width or len(value)
    rows = [value[start : start + step] for start in range(0, len(value), step)]
    return _block("[", [_filled(row, depth + 1) for row in rows], "]", depth)


def _row_width(value: dict[str, Any]) -> int:
    """The width of a tensor with several rows of several values, for a line each; else 0."""
    shape, data = value.get("shape"), value.get("data")
    if not (isinstance(shape, tuple) and isinstance(data, tuple) and shape):
        return 0
    width: int = shape[-1]
    return width if 1 < width < len(data) else 0


def _filled(scalars: Sequence[Any], depth: int) -> str:
    text = ", ".join(json.dumps(scalar, ensure_ascii=False) for scalar in scalars)
    room = WIDTH - len(INDENT) * depth - 1
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return ("\n" + INDENT * depth).join(lines)


def _block(opening: str, items: list[str], closing: str, depth: int) -> str:
    inner = INDENT * (depth + 1)
    return f"{opening}\n{inner}" + f",\n{inner}".join(items) + f"\n{INDENT * depth}{closing}"
