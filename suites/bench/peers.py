"""What is timed beside the implementations that are given: torch as it is, and compiled by torch.

The built-in ``torch`` is the first. The second is the same functions by ``torch.compile``, on a GPU
only: on a CPU it would take longer to compile than everything else to run.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from kernels.catalog import Implementation, load

EAGER: Final = "torch"
COMPILED: Final = "torch_compile"


def peers(full_size: bool) -> list[Implementation]:
    eager = load(EAGER)
    return [eager, Implementation(COMPILED, eager.operations)] if full_size else [eager]


def prepared(implementation: Implementation, operation: str) -> Callable[..., Any]:
    """The function to call. Of the compiled peer, compiled for the next shapes and no others."""
    function = implementation.operations[operation]
    if implementation.name != COMPILED:
        return function
    torch.compiler.reset()  # else it would give up after some shapes, and run eagerly
    return torch.compile(function, dynamic=False)
