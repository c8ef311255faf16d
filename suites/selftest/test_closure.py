"""Contracts and tests are closed both ways: none without a test, none that is not known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from golden import files

ROOT = Path(__file__).parent.parent.parent

# A plug-in that writes down which contracts each collected test names.
COLLECTOR = """
import json, os

def pytest_collection_finish(session):
    found = {
        item.nodeid: [id_ for mark in item.iter_markers("contract") for id_ in mark.args]
        for item in session.items
    }
    with open(os.environ["COLLECTED"], "w") as file:
        json.dump(found, file)
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The contracts named by every test of the main job, by node id."""
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
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found


def test_every_contract_is_tested(collected: dict[str, list[str]]) -> None:
    tested = {id_ for ids in collected.values() for id_ in ids}
    assert contracts() == tested


def test_every_contract_is_tested_on_generated_cases(collected: dict[str, list[str]]) -> None:
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


def test_every_test_of_the_main_job_names_a_contract(collected: dict[str, list[str]]) -> None:
    assert not [test for test, ids in collected.items() if not ids]
