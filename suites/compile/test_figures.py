"""The figures of compiled kernels are those that were accepted."""

from suites.compile.accepted import compare
from suites.compile.figures import CompiledFile, path_of, write


def test_figures_are_the_accepted_ones(
    module: str, made: CompiledFile, accept: bool, reported: dict[str, str]
) -> None:
    """By another toolchain they may be others: then they are reported, after the run."""
    path = path_of(module)
    if accept:
        write(path, made)
    elif report := compare(path, made):
        reported[module] = report
