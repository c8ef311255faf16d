"""Fixtures of the tests of CUDA C++."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.cuda import Module, scheduled
from suites.selftest.cuda.programs import SEEDS, Build


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each of several orders in turn, set for the launches of the test."""
    with scheduled(request.param):
        yield request.param


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.fixture
def build(sources: Path) -> Build:
    """A module of one source text; ``kernels``: from expressions to parameter types."""

    def build(text: str, name: str = "test", /, **kernels: str) -> Module:
        path = sources / f"{name}.cu"
        path.write_text(text, encoding="utf-8")
        return Module(path, kernels)

    return build
