"""Merge, indices and serving entry, in relation to copying the same buffer."""

import pytest

from suites.bench.calls import Call, witness_calls
from suites.bench.conftest import TimeIt
from suites.bench.timing import Cache, Launch


@pytest.mark.calls(of=witness_calls)
def test_rows(call: Call, cache: Cache, launch: Launch, time_it: TimeIt) -> None:
    time_it(call, cache, launch, against_copy=True)
