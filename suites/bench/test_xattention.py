"""The stages of XAttention, as shares of what the device does at best, and whole estimates."""

import pytest

from suites.bench.calls import Call, estimate_calls, stage_calls
from suites.bench.conftest import TimeIt
from suites.bench.timing import Cache, Launch


@pytest.mark.calls(of=stage_calls)
def test_stage(call: Call, cache: Cache, launch: Launch, time_it: TimeIt) -> None:
    time_it(call, cache, launch)


@pytest.mark.calls(of=estimate_calls)
def test_estimate(call: Call, cache: Cache, launch: Launch, time_it: TimeIt) -> None:
    time_it(call, cache, launch)
