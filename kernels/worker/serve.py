"""The worker of an implementation in Python: this file, torch, and the module that it serves.

``python serve.py MODULE [PATH ...]`` speaks the protocol of docs/worker-protocol.md. It runs in
the environment of the module, so it makes do with Python 3.9 and torch 2.4 and imports nothing of
this project, which is not on its path. What the module prints goes to the log.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import math
import os
import platform
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PROTOCOL = 1
MAGIC = b"SCW1"
PREFIX = struct.Struct("<4sIQ")  # the magic, then how many bytes of JSON and of buffers follow


def main(module: str, *path: str) -> None:
    """Serve a module, the folders of ``path`` before all others, until stdin ends."""
    # Whatever the module reads or prints must not touch the frames.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [*path, *(folder for folder in sys.path if os.path.abspath(folder) != here)]
    greeting, _ = _receive(requests)
    try:
        served = _Served(module, greeting)
    except _Unusable as reason:
        _send(replies, {"type": "error", "number": 0, "message": str(reason)})
        sys.exit(1)
    _send(replies, served.introduction())
    while True:
        request, buffers = _receive(requests)
        _send(replies, *served.answer(request, buffers))


# --- frames --------------------------------------------------------------------------------------


def _receive(stream: BinaryIO) -> tuple[dict[str, Any], bytearray]:
    magic, header_size, size = PREFIX.unpack(_exactly(stream, PREFIX.size))
    if magic != MAGIC:
        sys.exit("what came on stdin is no frame")
    header: dict[str, Any] = json.loads(_exactly(stream, header_size))
    return header, _exactly(stream, size)


def _exactly(stream: BinaryIO, size: int) -> bytearray:
    """That many bytes; the harness has gone where there are fewer, and so does the worker."""
    read = bytearray(size)
    if size and stream.readinto(read) < size:  # type: ignore[attr-defined]
        sys.exit()
    return read


def _send(stream: BinaryIO, header: Mapping[str, Any], buffers: bytes | bytearray = b"") -> None:
    text = json.dumps(header).encode()
    stream.write(PREFIX.pack(MAGIC, len(text), len(buffers)) + text)
    stream.write(buffers)
    stream.flush()


# --- a module ------------------------------------------------------------------------------------


class _Unusable(Exception):  # noqa: N818 - one line for whoever named the module
    """The module cannot be served."""


class _Served:
    """The operations of one module. ``greeting``: the harness's first message."""

    def __init__(self, name: str, greeting: Mapping[str, Any]) -> None:
        self._device = torch.device(greeting["device"])
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise _Unusable(f"torch {torch.__version__} finds no device {self._device} here")
        self._module = _imported(name)
        self._launches = _noted_launches()
        self._parameters: dict[str, list[str]] = {}
        for operation, parameters in greeting["operations"].items():
            if hasattr(self._module, operation):
                mistake = signature_mistake(getattr(self._module, operation), operation, parameters)
                if mistake:
                    raise _Unusable(mistake)
                self._parameters[operation] = parameters

    def introduction(self) -> dict[str, Any]:
        """What the module has, and what it says of itself."""
        said = {
            "dot": getattr(self._module, "DOT", None),
            "kernels": getattr(self._module, "KERNELS", None),
            "lacks": getattr(self._module, "LACKS", None),
        }
        base = getattr(self._module, "EXPONENT_BASE", math.e)
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "operations": list(self._parameters),
            "device": str(self._device),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            **({} if base == math.e else {"exponent_base": base}),
            **{key: value for key, value in said.items() if value is not None},
        }

    def answer(
        self, request: Mapping[str, Any], buffers: bytearray
    ) -> tuple[dict[str, Any], bytearray]:
        """Carry out one call: the header of the reply, and its buffers."""
        memory = _Memory(buffers, self._device)
        operation = request["operation"]
        arguments = [
            memory.argument(request["arguments"][parameter])
            for parameter in self._parameters[operation]
        ]
        poison = next((each for each in Poison if each.word == request.get("poison")), None)
        self._launches.clear()
        reply: dict[str, Any] = {"number": request["number"]}
        try:
            with poisoned_allocations(poison):
                returned = getattr(self._module, operation)(*arguments)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except ValueError as refusal:
            reply.update(type="refusal", message=str(refusal))
            return reply, memory.taken_back([])
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self._end_if_lost()
            reply.update(type="error", message=one_line(error))
            return reply, bytearray()
        several = isinstance(returned, (tuple, list)) and any(
            isinstance(value, Tensor) for value in returned
        )
        each = returned if several else (returned,)
        tensors = [value for value in each if isinstance(value, Tensor)]
        results = [] if returned is None else [_described(value) for value in each]
        reply.update(type="result", results=results, launches=list(self._launches))
        return reply, memory.taken_back(tensors)

    def _end_if_lost(self) -> None:
        """A GPU that a kernel has made unusable is unusable to this process until it ends."""
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError:
                sys.stderr.flush()
                os._exit(1)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        said = " ".join(str(error).split())
        raise _Unusable(f"the import of {name} fails: {type(error).__name__}: {said}") from error


def one_line(error: BaseException) -> str:
    """The exception, and where in the implementation it came from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({frame.filename}:{frame.lineno})"


def signature_mistake(function: Any, operation: str, names: Sequence[str]) -> str:
    """What is wrong with the signature of an operation whose parameters have these names, if any.

    They come first and in their order; further ones need defaults.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return (
            f"{operation} is not a function with a readable signature; "
            f"define it as {operation}({', '.join(names)})"
        )
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first, further = parameters[: len(names)], parameters[len(names) :]
    matches = [p.name for p in first if p.kind in positional] == list(names)
    optional = all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in further
    )
    if matches and optional:
        return ""
    return (
        f"{operation}({', '.join(p.name for p in parameters)}) has another signature; "
        f"the specification's is {operation}({', '.join(names)})"
    )


def _noted_launches() -> list[str]:
    """A list to which every launch of a Triton kernel adds its name from now on."""
    launches: list[str] = []
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        _note(interpreter.GridExecutor, "__call__", launches)
    if compiled := sys.modules.get("triton.runtime.jit"):
        _note(compiled.JITFunction, "run", launches)
    return launches


def _note(kind: Any, method: str, launches: list[str]) -> None:
    launch = getattr(kind, method)

    def note_and_launch(kernel: Any, *arguments: Any, **named: Any) -> Any:
        launches.append(kernel.fn.__name__)
        return launch(kernel, *arguments, **named)

    setattr(kind, method, note_and_launch)


# --- arguments and results -----------------------------------------------------------------------


class _Memory:
    """The memory of one call: storages as the harness filled them, to be given back as they are."""

    def __init__(self, buffers: bytearray, device: torch.device) -> None:
        self._buffers = buffers
        self._position = 0
        self._device = device
        self._parts: list[Tensor] = []  # bytes, on the device

    def argument(self, value: Any) -> Any:
        """An argument as the module takes it."""
        if isinstance(value, list):
            return [self.argument(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value["type"] == "float":
            return struct.unpack(">d", bytes.fromhex(value["bits"]))[0]
        dtype = getattr(torch, value["dtype"])
        if value["type"] == "dtype":
            return dtype
        elements, size = value["elements"], dtype.itemsize
        storage = torch.empty(elements, dtype=dtype, device=self._device)
        for start, stop in value.get("parts") or [[0, elements]]:
            part = storage[start:stop].view(torch.uint8)
            count = (stop - start) * size
            if count:
                given = torch.frombuffer(
                    self._buffers, dtype=torch.uint8, count=count, offset=self._position
                )
                part.copy_(given)
            self._position += count
            self._parts.append(part)
        return storage.as_strided(value["shape"], value["strides"], value["offset"])

    def taken_back(self, results: Sequence[Tensor]) -> bytearray:
        """The storages as they are now, and then the elements of results, row-major."""
        # `contiguous` leaves odd strides to a tensor of one element.
        dense = [result.detach().clone(memory_format=torch.contiguous_format) for result in results]
        flat = [result.reshape(-1).view(torch.uint8) for result in dense]
        pieces = [piece for piece in (*self._parts, *flat) if len(piece)]
        buffers = bytearray(sum(map(len, pieces)))
        position = 0
        for piece in pieces:
            target = torch.frombuffer(buffers, dtype=torch.uint8, count=len(piece), offset=position)
            target.copy_(piece)
            position += len(piece)
        return buffers


def _described(value: Any) -> Any:
    """A result in a header."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).replace("torch.", "")
        return {"type": "tensor", "dtype": dtype, "shape": list(value.shape)}
    if isinstance(value, int) or (
        isinstance(value, list) and all(isinstance(each, int) for each in value)
    ):
        return value
    if isinstance(value, float):
        return {"type": "float", "bits": struct.pack(">d", value).hex()}
    return {"type": "other", "name": type(value).__name__}


# --- memory that nobody wrote --------------------------------------------------------------------


class Poison(enum.Enum):
    """What memory holds that nobody wrote.

    LOW: NaN, the smallest integer, or False. HIGH: -inf, the largest integer, or True. What
    depends on such memory differs between the two.
    """

    LOW = enum.auto()
    HIGH = enum.auto()

    @property
    def word(self) -> Literal["low", "high"]:
        """Its name in the protocol."""
        return "low" if self is Poison.LOW else "high"

    def of(self, dtype: torch.dtype) -> float | int | bool:
        """The fill value of a dtype."""
        if dtype == torch.bool:
            return self is Poison.HIGH
        if dtype.is_floating_point or dtype.is_complex:
            # Some 8-bit formats have no infinity.
            lowest = torch.finfo(dtype).min if dtype.itemsize == 1 else -math.inf
            return math.nan if self is Poison.LOW else lowest
        limits = torch.iinfo(dtype)
        return limits.min if self is Poison.LOW else limits.max


# The poison of the call that is being made: a worker is told of it.
active_poison: ContextVar[Poison | None] = ContextVar("active_poison", default=None)

_aten = torch.ops.aten
_UNINITIALISED = (
    _aten.empty,
    _aten.empty_like,
    _aten.empty_permuted,
    _aten.empty_strided,
    _aten.new_empty,
    _aten.new_empty_strided,
)


@contextmanager
def poisoned_allocations(poison: Poison | None) -> Iterator[None]:
    """Inside, memory that torch hands out uninitialised holds the poison of its dtype.

    So does what ``resize_`` adds. Storage is filled as a whole, the gaps of strided allocations
    included. Without a poison nothing is filled.
    """
    if poison is None:
        yield
        return
    token = active_poison.set(poison)
    try:
        with _Poisoning(poison):
            yield
    finally:
        active_poison.reset(token)


class _Poisoning(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, poison: Poison) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._poison = poison

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        grows = func.overloadpacket is _aten.resize_
        held = args[0].untyped_storage().nbytes() if grows else 0
        result = func(*args, **kwargs)
        if grows or func.overloadpacket in _UNINITIALISED:
            self._fill(result, held)
        return result

    def _fill(self, tensor: Tensor, held: int) -> None:
        """Poison a tensor's storage from byte ``held`` on."""
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        size = tensor.element_size()
        storage = tensor.as_strided((tensor.untyped_storage().nbytes() // size,), (1,), 0)
        storage[-(-held // size) :].fill_(self._poison.of(tensor.dtype))


if __name__ == "__main__":
    main(*sys.argv[1:])
