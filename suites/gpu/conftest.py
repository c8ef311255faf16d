"""The device as a fixture."""

import pytest

from suites.gpu.device import Cuda, Device
from suites.session import STATE


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """The device that implementations are tested on."""
    name = request.config.stash[STATE].device
    if name.type != "cuda":
        pytest.skip(f"no device is chosen, but {name}; choose --device cuda, as -m gpu does")
    return Cuda(name)
