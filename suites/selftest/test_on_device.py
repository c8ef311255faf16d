"""Kernels of Triton run where their tensors are."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from kernels.on_device import on_device_of


def test_the_device_of_a_tensor_is_the_current_one_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []

    def enter(device: torch.device) -> Any:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    with on_device_of(torch.zeros(1)):
        assert entered == []
    second = torch.device("cuda", 1)
    with on_device_of(cast(torch.Tensor, SimpleNamespace(is_cuda=True, device=second))):
        assert entered == [second]
