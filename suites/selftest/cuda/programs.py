"""What the tests of CUDA C++ on the host share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.cuda import Module

SEEDS = [0, 1, 2, 7]
FULL = 0xFFFFFFFF

VALUES = {  # C++ name -> dtype
    "int": torch.int32,
    "long long": torch.int64,
    "float": torch.float32,
    "double": torch.float64,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
}

Build = Callable[..., Module]


def integers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)
