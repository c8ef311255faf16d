"""A test of the main job, called on an implementation: the least that can be run."""

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, settings

from suites.runner import Runner
from suites.session import RUNNERS
from suites.verdicts import Nonconformance


def function_of(test: str) -> Any:
    """The function of a test, by its file and name, ``suites/x.py::test_y``.

    Raises ImportError or AttributeError where there is none.
    """
    file, _, name = test.partition("::")
    return getattr(import_module(file.removesuffix(".py").replace("/", ".")), name)


def run(
    test: str, runner: Runner, parameters: Mapping[str, Any] | None = None, seed: int | None = None
) -> None:
    """Call a test with its parameters, without making a failure smaller.

    ``seed``: of the generated cases; that of the session without it. Raises what the test raises.
    """
    function = function_of(test)
    fixtures = inspect.signature(function).parameters
    arguments = {each: runner for each in RUNNERS if each in fixtures} | dict(parameters or {})
    given = getattr(function, "_hypothesis_internal_use_settings", None)
    phases = (Phase.explicit, Phase.generate)
    internal = {"settings": settings(given, phases=phases)} | (
        {} if seed is None else {"seed": seed}
    )
    with ExitStack() as stack:
        for name, value in internal.items():
            attribute = f"_hypothesis_internal_use_{name}"
            stack.enter_context(patch.object(function, attribute, value, create=True))
        try:
            function(**arguments)
        except BaseExceptionGroup as group:  # a failure that does not come again
            found = group.subgroup(Nonconformance)
            raise found.exceptions[0] if found else group from group
