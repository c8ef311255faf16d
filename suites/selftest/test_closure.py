"""Contracts and tests are closed both ways: none without a test, none that is not known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from golden import files
from suites.cases import ESTIMATE

ROOT = Path(__file__).parent.parent.parent

# A plug-in that writes down which contracts each collected test names, and what it calls.
COLLECTOR = """
import json, os

def pytest_collection_finish(session):
    from suites.session import operations_of
    contracts = {
        item.nodeid: [id_ for mark in item.iter_markers("contract") for id_ in mark.args]
        for item in session.items
    }
    called = {item.nodeid: sorted(operations_of(item)) for item in session.items}
    with open(os.environ["COLLECTED"], "w") as file:
        json.dump([contracts, called], file)
"""

ByTest = dict[str, list[str]]  # by node id


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[ByTest, ByTest]:
    """Of every test of the main job the contracts that it names and the operations it calls."""
    folder = tmp_path_factory.mktemp("collector")
    (folder / "collector.py").write_text(COLLECTOR, encoding="utf-8")
    out = folder / "collected.json"
    subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "collector"],
        cwd=ROOT,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "COLLECTED": str(out)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    contracts, called = json.loads(out.read_text())
    return contracts, called


@pytest.fixture(scope="module")
def collected(found: tuple[ByTest, ByTest]) -> ByTest:
    """The contracts named by every test of the main job."""
    return found[0]


def test_every_contract_is_tested(collected: ByTest) -> None:
    tested = {id_ for ids in collected.values() for id_ in ids}
    assert contracts() == tested


def test_every_contract_is_tested_on_generated_cases(collected: ByTest) -> None:
    """A vector alone is a few points; a property or a comparison with the oracle is behind each."""
    generated = {
        id_ for test, ids in collected.items() if "test_golden.py" not in test for id_ in ids
    }
    assert contracts() - generated == ONLY_VECTORS


def contracts() -> set[str]:
    """Those of the families that have a suite."""
    return {
        id_
        for id_, contract in files.load_contracts().items()
        if (ROOT / "suites" / contract.family).is_dir()
    }


ONLY_VECTORS = {"witness.fallback.length-read-as-one"}


def test_every_test_of_the_main_job_names_a_contract(collected: ByTest) -> None:
    assert not [test for test, ids in collected.items() if not ids]


def test_every_test_of_the_main_job_says_what_it_calls(found: tuple[ByTest, ByTest]) -> None:
    """By it the plug-in knows whom to ask."""
    _, called = found
    assert not [test for test, operations in called.items() if not operations]


def test_a_test_calls_an_operation_of_each_contract_that_it_names(
    found: tuple[ByTest, ByTest],
) -> None:
    """In one of its parametrizations at least."""
    known, (named, called) = files.load_contracts(), found
    operations: dict[str, set[str]] = {}
    for test, names in called.items():
        operations.setdefault(test.partition("[")[0], set()).update(names)
    pairs = {(test.partition("[")[0], id_) for test, ids in named.items() for id_ in ids}
    assert not [pair for pair in pairs if not operations[pair[0]] & {*known[pair[1]].operations}]


def test_an_implementation_that_only_estimates_is_held_to_all_about_it(collected: ByTest) -> None:
    asked = {id_ for test, ids in collected.items() if "[triton_streaming" in test for id_ in ids}
    assert asked == {
        id_ for id_, each in files.load_contracts().items() if ESTIMATE in each.operations
    }
