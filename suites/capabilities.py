"""What an implementation says that it cannot do: which calls that is about, and what it may refuse.

A declared lack is put to the proof: the call is made all the same, and must be refused. A size that
is not the multiple an implementation needs may be refused by name, like strides.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch

from golden.model import Tensor
from kernels.catalog import Implementation, signatures
from kernels.worker.declaration import Extent
from kernels.worker.protocol import Capability
from suites.cases import Case

# The inputs that have a dtype of the caller's choice, statistics being fp32 always (R-X10).
TYPED: Final = ("query_states", "key_states", "attn_weights_slice", "input_tensor", "context_lens")

Tensors = Mapping[str, torch.Tensor]


def _of_dtype(dtype: torch.dtype) -> Callable[[Case, Tensors], bool]:
    def covers(case: Case, tensors: Tensors) -> bool:
        name = str(dtype).removeprefix("torch.")
        given = (tensors[each].dtype for each in TYPED if each in tensors)
        return dtype in given or case.inputs.get("out_dtype") == name

    return covers


def _strided(case: Case, tensors: Tensors) -> bool:
    return not all(tensor.is_contiguous() for tensor in tensors.values())


def _causal(case: Case, tensors: Tensors) -> bool:
    parameters = signatures()[case.operation].parameters
    return any(
        case.inputs.get(name, parameters[name].default) is True
        for name in ("is_causal", "causal")
        if name in parameters
    )


def _many_segments(case: Case, tensors: Tensors) -> bool:
    segments = case.inputs.get("num_segments")
    return isinstance(segments, int) and segments > 64


COVERS: Final[Mapping[Capability, Callable[[Case, Tensors], bool]]] = {
    "float16": _of_dtype(torch.float16),
    "bfloat16": _of_dtype(torch.bfloat16),
    "float32": _of_dtype(torch.float32),
    "int64": _of_dtype(torch.int64),
    "strided": _strided,
    "causal": _causal,
    "num_segments>64": _many_segments,
}


def lacking(implementation: Implementation, case: Case, tensors: Tensors) -> str:
    """What a call with these tensors needs of what the implementation says it lacks; or nothing."""
    if case.operation in implementation.lacks:
        return case.operation
    return next(
        (
            name
            for name, covers in COVERS.items()
            if name in implementation.lacks and covers(case, tensors)
        ),
        "",
    )


# --- sizes ---------------------------------------------------------------------------------------

# Dims by name: of which input, and which of its dims.
DIMS: Final[Mapping[Extent, tuple[tuple[str, int], ...]]] = {
    "q_len": (("query_states", 2), ("attn_weights_slice", 2)),
    "k_len": (("key_states", 2), ("attn_weights_slice", 3)),
    "head_dim": (("query_states", 3),),
}


def refusable_sizes(implementation: Implementation, case: Case) -> tuple[str, ...]:
    """What a refusal may name on account of a size that is not the multiple it needs."""
    names: list[str] = []
    for size, multiple in implementation.multiples.items():
        value = case.inputs.get(size)
        if isinstance(value, int) and value % multiple:
            names.append(size)
        for name, dim in DIMS.get(size, ()):  # type: ignore[call-overload]
            tensor = case.inputs.get(name)
            if (
                isinstance(tensor, Tensor)
                and dim < len(tensor.shape)
                and tensor.shape[dim] % multiple
            ):
                names += [size, name]
    return tuple(names)
