"""Every golden vector, against every implementation and against the oracle."""

from collections.abc import Iterable

import pytest

from golden import files
from golden.model import Operation, Vector
from suites.cases import Case
from suites.contracts import contract
from suites.runner import Runner


def each(vectors: Iterable[tuple[Operation, Vector]]) -> pytest.MarkDecorator:
    """A test for each vector, of the contracts that the vector shows."""
    parameters = [
        pytest.param(
            Case(operation, vector.inputs),
            vector,
            id=f"{operation}/{vector.id}",
            marks=contract(*vector.contracts),
        )
        for operation, vector in vectors
    ]
    return pytest.mark.parametrize(("case", "vector"), parameters)


@each(files.all_vectors())
def test_vector(implementation_or_oracle: Runner, case: Case, vector: Vector) -> None:
    implementation_or_oracle.judge_vector(case, vector)


@each(files.all_regressions())
def test_regression(implementation: Runner, case: Case, vector: Vector) -> None:
    """What it expects is the oracle's, which it therefore does not test."""
    implementation.judge_vector(case, vector)
