"""A worker of the standard library alone: honest, but for one sin when asked for 13 segments.

``hostile.py SIN`` has `topology_witness_indices`. It imports nothing of this project, and is itself
written from docs/worker-protocol.md.
"""

import ctypes
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

PREFIX: Final = struct.Struct("<4sIQ")
UNLUCKY: Final = 13
HOURS: Final = 10_000
CODES: Final = {"int32": "i", "int64": "q"}

Request = dict[str, Any]


def receive() -> tuple[Request, bytes]:
    prefix = sys.stdin.buffer.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        sys.exit()
    _, size, rest = PREFIX.unpack(prefix)
    return json.loads(sys.stdin.buffer.read(size)), sys.stdin.buffer.read(rest)


def frame(message: object, buffers: bytes = b"") -> bytes:
    text = json.dumps(message).encode()
    return PREFIX.pack(b"SCW1", len(text), len(buffers)) + text + buffers


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# --- an honest call ------------------------------------------------------------------------------


def values(tensor: Request, storage: tuple[int, ...]) -> list[Any]:
    def at(offset: int, shape: list[int], strides: list[int]) -> Any:
        if not shape:
            return storage[offset]
        return [at(offset + i * strides[0], shape[1:], strides[1:]) for i in range(shape[0])]

    nested: list[Any] = at(tensor["offset"], tensor["shape"], tensor["strides"])
    return nested


def witnesses(length: int, learned: list[int], segments: int) -> list[int]:
    divisor = max(length, 1)
    effective = min(segments, divisor)
    marked = {min(token * effective // divisor, segments - 1) for token in learned if token >= 0}
    return [
        -(-s * length // effective) if s < length and s not in marked else -1
        for s in range(segments)
    ]


def result(
    request: Request, body: bytes, *, more: int = 0, written: int | None = None, **changed: Any
) -> bytes:
    """``more`` elements than there are, and ``written`` the element of the first tensor."""
    arguments, position = request["arguments"], 0
    rows: dict[str, list[Any]] = {}
    for name in ("context_lens", "learned_indices"):
        tensor = arguments[name]
        code = f"<{tensor['elements']}{CODES[tensor['dtype']]}"
        rows[name] = values(tensor, struct.unpack_from(code, body, position))
        position += struct.calcsize(code)
    segments = arguments["num_segments"]
    found = [
        witness
        for length, learned in zip(rows["context_lens"], rows["learned_indices"], strict=True)
        for witness in witnesses(length, learned, segments)
    ]
    shape = [len(rows["context_lens"]), segments]
    tensor = {"type": "tensor", "dtype": "int32", "shape": shape} | changed
    message = {"type": "result", "number": request["number"], "results": [tensor]}
    found += [-1] * more
    if written is not None:
        first = arguments["context_lens"]
        size = struct.calcsize(CODES[first["dtype"]])
        start = (first["offset"] + written) * size
        body = body[:start] + b"\1" * size + body[start + size :]
    return frame(message, body + struct.pack(f"<{len(found)}i", *found))


# --- the sins ------------------------------------------------------------------------------------


def sin_hang(request: Request, body: bytes) -> None:
    # A child, which must not outlive it either; it is known by the folder.
    subprocess.Popen(["sh", "-c", f"sleep {HOURS}; : {sys.argv[-1]}"])
    time.sleep(HOURS)


def sin_partial(request: Request, body: bytes) -> None:
    write(result(request, body)[:-5])
    sys.exit(0)


def sin_stall(request: Request, body: bytes) -> None:
    write(result(request, body)[:-5])
    time.sleep(HOURS)


def sin_silent(request: Request, body: bytes) -> None:
    os.close(1)
    time.sleep(HOURS)


def sin_guard(request: Request, body: bytes) -> None:
    """It writes the element before the first tensor."""
    write(result(request, body, written=-1))


def sin_input(request: Request, body: bytes) -> None:
    """It writes the first element of the first tensor."""
    write(result(request, body, written=0))


previous = frame({"type": "result", "number": 0})

SINS: dict[str, Callable[[Request, bytes], object]] = {
    "none": lambda request, body: write(result(request, body)),
    "segv": lambda request, body: ctypes.string_at(0),
    "abort": lambda request, body: os.abort(),
    "exits": lambda request, body: sys.exit(3),
    "hang": sin_hang,
    "garbage": lambda request, body: write(b"loading weights ...\n"),
    "no_json": lambda request, body: write(PREFIX.pack(b"SCW1", 5, 0) + b"{'no'"),
    "no_message": lambda request, body: write(frame({"type": "tree"})),
    "shape": lambda request, body: write(result(request, body, shape=[2, UNLUCKY + 1], more=2)),
    "dtype": lambda request, body: write(result(request, body, dtype="float32")),
    "no_dtype": lambda request, body: write(result(request, body, dtype="int31")),
    "partial": sin_partial,
    "stall": sin_stall,
    "silent": sin_silent,
    "short": lambda request, body: write(result(request, body, shape=[2**40])),
    "huge": lambda request, body: write(PREFIX.pack(b"SCW1", 2, 2**40)),
    "previous": lambda request, body: write(previous),
    "raises": lambda request, body: write(
        frame({"type": "error", "number": request["number"], "message": "Overflow: too many"})
    ),
    "guard": sin_guard,
    "input": sin_input,
}


def main(sin: str) -> None:
    global previous
    print(f"a worker that sins by {sin}", file=sys.stderr)
    if sin == "exits_at_start":
        sys.exit("no licence")
    receive()
    hello = {"type": "hello", "protocol": 1, "operations": ["topology_witness_indices"]}
    if sin == "version":
        hello["protocol"] = 2
    if sin == "unknown_operation":
        hello["operations"] = ["softmax"]
    write(frame(hello))
    while True:
        request, body = receive()
        if request["arguments"]["num_segments"] == UNLUCKY:
            SINS[sin](request, body)
        else:
            previous = result(request, body)
            write(previous)


if __name__ == "__main__":
    main(sys.argv[1])
