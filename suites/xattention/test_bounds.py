"""Every implementation against the oracle, within the derived bounds (R-X14)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.model import Operation
from suites.contracts import contract
from suites.runner import Runner
from suites.strategies.xattention import OPERATIONS, cases


@contract("xattention.bounds.derived")
@pytest.mark.parametrize("operation", OPERATIONS)
@given(data=st.data())
def test_ordinary_cases(implementation: Runner, operation: Operation, data: st.DataObject) -> None:
    implementation.judge(data.draw(cases(operation)))
