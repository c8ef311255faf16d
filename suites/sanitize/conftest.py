"""Which kernels the tier is about, and what makes their launches sanitized ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kernels.cuda import SANITIZE, host
from suites.runner import Runner

HERE: Final = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Before the plug-in loads them: the kernels in CUDA C++ are the default here.

    A replay is of no test of this folder, and sanitized all the same.
    """
    if not config.option.impl:
        config.option.impl = ["cuda"]
    if config.option.replay:
        SANITIZE.set(True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a module lacks is for the main job to say; here it would hide what it has."""
    items[:] = [item for item in items if item.path.parent != HERE or _exists(item)]


def _exists(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return "operation" in parameters and (
        parameters["operation"] in parameters["implementation"].operations
    )


class Launches:
    """How many sanitized launches a test has made. Without one it has shown nothing."""

    def __init__(self, name: str, operation: str) -> None:
        self.count = 0
        self._what = f"{name}: {operation}"

    def require(self) -> None:
        """Leave the test as not run where nothing was launched."""
        if not self.count:
            pytest.skip(f"{self._what} launches no CUDA C++ through kernels.cuda on the host")


@pytest.fixture
def launches(
    implementation: Runner, operation: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Launches]:
    """Every launch of the test is sanitized, and counted."""
    made = Launches(implementation.name, operation)
    launch = host.SanitizedLibrary.launch

    def counted(*arguments: Any) -> None:
        made.count += 1
        launch(*arguments)

    monkeypatch.setattr(host.SanitizedLibrary, "launch", counted)
    token = SANITIZE.set(True)
    yield made
    SANITIZE.reset(token)
