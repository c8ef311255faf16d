"""What is called to see what it launches."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from kernels import api, catalog
from suites.compile.calls import calls


def test_every_operation_is_called() -> None:
    wanted = {
        operation
        for protocol in (api.WitnessKernels, api.XAttentionKernels)
        for operation in catalog.operations(protocol)
    }
    assert {call.operation for call in calls()} == wanted


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        yield from value


def test_aligned_rows_are_aligned_and_odd_ones_are_not() -> None:
    for call in calls():
        for name, value in call.arguments.items():
            for tensor in tensors(value):
                *_, row, columns = (1, *tensor.stride())
                if call.rows == "aligned":
                    assert tensor.data_ptr() % 16 == 0, (call.label, name)
                    assert columns == 1
                    assert row == 1 or row % 16 == 0, (call.label, name)
                if call.rows == "odd":
                    assert tensor.data_ptr() % 16 != 0, (call.label, name)
                    assert columns == 2
                    assert row == 1 or row % 2 == 1, (call.label, name)
