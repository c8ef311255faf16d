"""What the design of the fused Triton kernels promises beyond their results.

One load and one store a slot: a second store of a slot would need a barrier to be ordered after
the first, and neither the interpreter nor a race checker would miss it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.witness import triton_fused

interpreter = import_module("triton.runtime.interpreter")


class Traffic:
    """Stands in for the interpreter's C++ module; counts the loads and stores of each address."""

    def __init__(self) -> None:
        self.loads: Counter[int] = Counter()
        self.stores: Counter[int] = Counter()
        self._real = interpreter._interpreter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self.loads.update(np.asarray(pointers)[np.asarray(mask, bool)].ravel().tolist())
        return self._real.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        self.stores.update(np.asarray(pointers)[np.asarray(mask, bool)].ravel().tolist())
        return self._real.store(pointers, values, mask)


@contextmanager
def traffic() -> Iterator[Traffic]:
    counted = Traffic()
    with patch.object(interpreter, "_interpreter", counted):
        yield counted


def addresses(tensor: torch.Tensor) -> set[int]:
    start = tensor.data_ptr()
    return {start + 4 * i for i in range(tensor.numel())}


def rows_and_lengths(topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows: one that misses segments, one that is all padding, one without context."""
    generator = torch.Generator().manual_seed(topk)
    learned = torch.randint(0, 300, (3, topk), dtype=torch.int32, generator=generator)
    learned[1] = -1
    return learned, torch.tensor([4000, 4000, 0])


TOPKS = [1, 64, 65, 1024, 2500]


@pytest.mark.parametrize("topk", TOPKS)
@pytest.mark.parametrize(("keep", "replacements"), [(0, 64), (0, 1), (0.5, 64), (0.5, 3), (1, 64)])
def test_the_merge_loads_and_stores_each_slot_once(
    topk: int, keep: float, replacements: int
) -> None:
    learned, lengths = rows_and_lengths(topk)
    with traffic() as counted:
        merged = triton_fused.apply_topology_witnesses(
            learned, lengths, int(keep * topk), 64, replacements
        )
    assert counted.stores == Counter(addresses(merged))
    assert {a: n for a, n in counted.loads.items() if a in addresses(learned)} == Counter(
        addresses(learned)
    )


@pytest.mark.parametrize("topk", TOPKS)
@pytest.mark.parametrize("segments", [1, 7, 64])
def test_serving_loads_each_slot_once_and_stores_what_changes(topk: int, segments: int) -> None:
    buffer, lengths = rows_and_lengths(topk)
    before = buffer.clone()
    with traffic() as counted:
        triton_fused.scatter_topology_witnesses_(buffer, lengths, segments)
    changed = (buffer != before).flatten().nonzero().flatten().tolist()
    assert changed
    assert counted.stores == Counter(buffer.data_ptr() + 4 * i for i in changed)
    assert {a: n for a, n in counted.loads.items() if a in addresses(buffer)} == Counter(
        addresses(buffer)
    )


@pytest.mark.parametrize("segments", [1, 64, 65, 200])
def test_the_indices_store_each_slot_once(segments: int) -> None:
    learned, lengths = rows_and_lengths(70)
    with traffic() as counted:
        witnesses = triton_fused.topology_witness_indices(lengths, learned, segments)
    assert counted.stores == Counter(addresses(witnesses))


class TorchCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The torch operations that a call carries out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations.append(str(func))
        return func(*args, **kwargs or {})


def test_serving_needs_no_temporary_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper calls on torch for nothing; the kernel is left out, for the interpreter does."""
    buffer, lengths = rows_and_lengths(70)
    launched: list[tuple[Any, ...]] = []
    kernel = {(3,): lambda *arguments, **constants: launched.append(arguments)}
    monkeypatch.setattr(triton_fused, "witness_serve_kernel", kernel)
    with TorchCalls() as torch_calls:
        triton_fused.scatter_topology_witnesses_(buffer, lengths, 64)
    assert launched[0][0] is buffer
    assert not torch_calls.operations
