"""Every golden vector, against every implementation and against the oracle."""

import pytest

from golden import files
from golden.model import Vector
from suites.cases import Case
from suites.contracts import contract
from suites.runner import Runner

VECTORS = [
    pytest.param(
        Case(operation, vector.inputs),
        vector,
        id=f"{operation}/{vector.id}",
        marks=contract(*vector.contracts),
    )
    for operation, vector in files.all_vectors()
]


@pytest.mark.parametrize(("case", "vector"), VECTORS)
def test_vector(implementation_or_oracle: Runner, case: Case, vector: Vector) -> None:
    implementation_or_oracle.judge_vector(case, vector)
