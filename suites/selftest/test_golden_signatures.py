"""Every vector can be passed to its operation, as the signatures in kernels.api declare it."""

import inspect
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
import torch

from golden.files import OPERATIONS, load_vectors
from golden.model import FloatType, IntegerType, Mode, Operation, Tensor
from kernels import api

PROTOCOLS = (api.WitnessKernels, api.WitnessMeasures, api.XAttentionKernels)

# An annotation of kernels.api, and whether a value of a vector can be passed as one.
FITS: list[tuple[object, Callable[[object], bool]]] = [
    (torch.Tensor, lambda value: isinstance(value, Tensor)),
    (Sequence[torch.Tensor], lambda value: isinstance(value, tuple)),
    (tuple[torch.Tensor, torch.Tensor], lambda value: isinstance(value, tuple) and len(value) == 2),
    (bool, lambda value: isinstance(value, bool)),
    (int, lambda value: isinstance(value, int) and not isinstance(value, bool)),
    (float, lambda v: isinstance(v, Tensor) and (v.dtype, v.shape) == ("float64", ())),
    (str, lambda value: value in get_args(Mode)),
    (torch.dtype | None, lambda value: value in get_args(IntegerType) + get_args(FloatType)),
]


def signature(operation: str) -> inspect.Signature:
    (protocol,) = (protocol for protocol in PROTOCOLS if hasattr(protocol, operation))
    return inspect.signature(getattr(protocol, operation))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_inputs_are_named_after_the_parameters(operation: Operation) -> None:
    parameters = {n: p for n, p in signature(operation).parameters.items() if n != "self"}
    for vector in load_vectors(operation).vectors:
        given = [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty or name in vector.inputs
        ]
        assert list(vector.inputs) == given, vector.id


@pytest.mark.parametrize("operation", OPERATIONS)
def test_values_are_what_the_signature_takes_and_returns(operation: Operation) -> None:
    call = signature(operation)
    for vector in load_vectors(operation).vectors:
        # what must be None is given only to be refused, and an in-place call returns a buffer
        values = [
            (call.parameters[name].annotation, value)
            for name, value in vector.inputs.items()
            if call.parameters[name].annotation is not None
        ]
        if vector.expected is not None:
            values.append((call.return_annotation or torch.Tensor, vector.expected))
        for annotation, value in values:
            (fits,) = (fits for known, fits in FITS if known == annotation)
            assert fits(value), f"{vector.id}: {value} is no {annotation}"
