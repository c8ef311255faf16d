"""The cases of the vector file given to ``--replay``."""

from golden.model import Operation, Vector
from suites.cases import Case
from suites.runner import Runner


def test_replay(implementation_or_oracle: Runner, replayed: tuple[Operation, Vector]) -> None:
    operation, vector = replayed
    implementation_or_oracle.judge_vector(Case(operation, vector.inputs), vector)
