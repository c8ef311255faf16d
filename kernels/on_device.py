"""Where a kernel of Triton runs: on the current device, wherever its tensors are."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Inside, the tensor's GPU is the current one; nothing changes for a tensor on the CPU."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
