"""Operations that a worker carries out, called with tensors like any other.

A tensor travels with its whole storage, and what comes back is written over it: so whoever gave the
tensor sees each write of the worker, inside of it and around it, where it would see its own.
"""

import ctypes
import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import UntypedStorage

from kernels.worker.protocol import (
    Argument,
    Call,
    Dtype,
    Float,
    Other,
    Refusal,
    Result,
    Returned,
    Tensor,
)
from kernels.worker.serve import active_poison
from kernels.worker.supervision import Worker

LARGE: Final = 2**28  # bytes of a storage that does not travel as a whole
AROUND: Final = 64  # elements that travel with each part of it, before and after


class Refused(ValueError):  # noqa: N818 - a legal answer
    """A refusal that a worker sent."""


class Operation:
    """One operation. ``parameters``: their names, in their order.

    Raises Refused, and what `Worker.call` does: WorkerFault for a reply that fits no call, too.
    """

    def __init__(self, worker: Worker, name: str, parameters: Sequence[str]) -> None:
        self._worker, self._name, self._parameters = worker, name, parameters

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        values = dict(zip(self._parameters, arguments, strict=False)) | named
        memories: list[_Memory] = []
        poison = active_poison.get()
        call = Call(
            number=0,
            operation=self._name,
            arguments={name: _argument(value, memories) for name, value in values.items()},
            poison=None if poison is None else poison.word,
        )
        buffers = [part for memory in memories for part in memory.parts]
        reply, body = self._worker.call(call, buffers)
        rest = memoryview(body)
        expected = sum(map(len, buffers)) + _size(reply)
        if len(rest) != expected:
            raise self._worker.lose(
                self._name, f"its reply has {len(rest)} bytes of buffers where it needs {expected}"
            )
        for memory in memories:
            rest = memory.take_back(rest)
        if isinstance(reply, Refusal):
            raise Refused(reply.message)
        launched(reply.launches)
        device = memories[0].device if memories else torch.device("cpu")
        results = list(_results(reply, rest, device))
        return None if not results else results[0] if len(results) == 1 else tuple(results)


def launched(kernels: Sequence[str]) -> None:
    """What a worker says that a call has launched: for whoever watches it."""


class _Memory:
    """The storage of a tensor, as bytes that can be sent and written over."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self._storage = tensor.untyped_storage()
        self._size = tensor.element_size()
        self.elements = self._storage.nbytes() // self._size
        self.ranges = _ranges(tensor) if self._storage.nbytes() > LARGE else ()
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # on the device, on the host
        self.parts = [
            self._bytes(start, stop) for start, stop in self.ranges or ((0, self.elements),)
        ]

    def _bytes(self, start: int, stop: int) -> memoryview:
        """A part of the storage on the host, in elements."""
        offset, count = start * self._size, (stop - start) * self._size
        storage: UntypedStorage = self._storage
        if self.device.type != "cpu":
            part = torch.empty(0, dtype=torch.uint8, device=self.device)
            part.set_(storage, offset, (count,), (1,))
            storage, offset = _on_host(part, self._copies), 0
        if not count:
            return memoryview(b"")
        # Torch's own ways there take a copy or an operation, which watchers would see.
        memory = (ctypes.c_char * count).from_address(storage.data_ptr() + offset)
        return memoryview(memory).cast("B")

    def take_back(self, buffers: memoryview) -> memoryview:
        """Write the beginning of ``buffers`` over the parts; what is left of it."""
        for part in self.parts:
            if len(part):
                part[:] = buffers[: len(part)]
            buffers = buffers[len(part) :]
        for on_device, on_host in self._copies:
            on_device.copy_(on_host)
        return buffers


def _on_host(part: torch.Tensor, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> UntypedStorage:
    copies.append((part, part.cpu()))
    return copies[-1][1].untyped_storage()


def _ranges(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """The parts of a large storage around the tensor's slices along its widest stride."""
    strides = tensor.stride()
    widest = max(range(tensor.dim()), key=lambda dim: strides[dim])
    extent = 1 + sum(
        (size - 1) * stride
        for dim, (size, stride) in enumerate(zip(tensor.shape, strides, strict=True))
        if dim != widest
    )
    starts = (
        int(tensor.storage_offset()) + i * strides[widest] for i in range(tensor.shape[widest])
    )
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tuple(
        (max(start - AROUND, 0), min(start + extent + AROUND, elements)) for start in starts
    )


def _argument(value: Any, memories: list[_Memory]) -> Argument:
    """An argument in a message; the memory of tensors is added to ``memories``."""
    if isinstance(value, torch.Tensor):
        memory = _Memory(value)
        memories.append(memory)
        return Tensor(
            dtype=_name(value.dtype),
            shape=tuple(value.shape),
            strides=tuple(value.stride()),
            offset=int(value.storage_offset()),
            elements=memory.elements,
            parts=memory.ranges,
        )
    if isinstance(value, list | tuple):
        tensors: list[Any] = [_argument(each, memories) for each in value]
        return tuple(tensors)
    if isinstance(value, torch.dtype):
        return Dtype(_name(value))
    if isinstance(value, float):
        return Float(struct.pack(">d", value).hex())
    return value  # type: ignore[no-any-return]  # a bool, int, str or None


def _name(dtype: torch.dtype) -> Any:
    return str(dtype).removeprefix("torch.")


def _size(reply: Returned | Refusal) -> int:
    """The bytes of the results of a reply."""
    if isinstance(reply, Refusal):
        return 0
    return sum(
        prod(result.shape) * getattr(torch, result.dtype).itemsize
        for result in reply.results
        if isinstance(result, Result)
    )


def _results(reply: Returned, buffers: memoryview, device: torch.device) -> Iterator[Any]:
    for result in reply.results:
        if isinstance(result, Result):
            dtype: torch.dtype = getattr(torch, result.dtype)
            count = prod(result.shape)
            elements = bytearray(buffers[: count * dtype.itemsize])
            buffers = buffers[len(elements) :]
            flat = torch.frombuffer(elements, dtype=dtype) if count else torch.zeros(0, dtype=dtype)
            yield flat.reshape(result.shape).to(device)
        elif isinstance(result, Float):
            yield struct.unpack(">d", bytes.fromhex(result.bits))[0]
        elif isinstance(result, Other):
            yield type(result.name, (), {})()
        else:
            yield list(result) if isinstance(result, tuple) else result
