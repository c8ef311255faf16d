"""The figures of compiled kernels are those that were accepted."""

import pytest

from suites.compile.accepted import compare, path_of, write
from suites.compile.figures import CompiledFile


@pytest.mark.timeout(3600)  # it may be the one that waits for all of a module
def test_figures_are_the_accepted_ones(
    module: str, made: CompiledFile, accept: bool, reported: dict[str, str]
) -> None:
    """By another toolchain they may be others: then they are reported, after the run."""
    path = path_of(module)
    if accept:
        write(path, made)
        reported[module] = f"accepted: golden/compiled/{module}.json"
    elif report := compare(path, made):
        reported[module] = report
