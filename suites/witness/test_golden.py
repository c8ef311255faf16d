"""Every golden vector, against every implementation and against the oracle."""

import pytest

from golden import files
from golden.model import Vector
from suites.cases import ROWS, SPECIFICATIONS, Case
from suites.contracts import contract
from suites.runner import Runner

VECTORS = [
    (operation, vector) for operation, vector in files.all_vectors() if operation in SPECIFICATIONS
]


def _parameters(*, rows: bool) -> list[object]:
    return [
        pytest.param(
            Case(operation, vector.inputs),
            vector,
            id=f"{operation}/{vector.id}",
            marks=contract(*vector.contracts),
        )
        for operation, vector in VECTORS
        if (operation in ROWS) == rows
    ]


@pytest.mark.parametrize(("case", "vector"), _parameters(rows=True))
def test_vector(implementation_or_oracle: Runner, case: Case, vector: Vector) -> None:
    implementation_or_oracle.judge_vector(case, vector)


@pytest.mark.measures
@pytest.mark.parametrize(("case", "vector"), _parameters(rows=False))
def test_vector_of_a_measure(implementation_or_oracle: Runner, case: Case, vector: Vector) -> None:
    implementation_or_oracle.judge_vector(case, vector)
