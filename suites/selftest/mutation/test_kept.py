"""Outcomes that are kept: found again for the same mutant and suite, and for no other."""

from dataclasses import replace
from pathlib import Path

import pytest

from suites.mutation import kept
from suites.mutation.engine import ROOT, Outcome
from suites.mutation.mutants import Mutant, mutants

OUTCOME = Outcome("killed", ("a", "b"), 3, 0.5, "a test", "a reason")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def one(file: str) -> Mutant:
    return next(mutant for mutant in mutants() if mutant.file == file)


def test_an_outcome_is_found_again() -> None:
    mutant = one("witness/torch_reference.py")
    assert kept.find(mutant, "failure") is None
    kept.keep(mutant, "failure", OUTCOME)
    assert kept.find(mutant, "failure") == OUTCOME


def test_another_text_is_another_mutant() -> None:
    mutant = one("witness/torch_reference.py")
    kept.keep(mutant, "failure", OUTCOME)
    assert kept.find(replace(mutant, edit=replace(mutant.edit, text="other")), "failure") is None


def test_what_other_operations_it_serves_matters() -> None:
    """For other tests are asked."""
    mutant = one("witness/torch_reference.py")
    kept.keep(mutant, "failure", OUTCOME)
    assert kept.find(replace(mutant, operations=frozenset()), "failure") is None


def test_up_to_the_first_failure_is_not_all_tests() -> None:
    mutant = one("witness/torch_reference.py")
    kept.keep(mutant, "failure", OUTCOME)
    assert kept.find(mutant, "all") is None


def test_a_broken_file_is_no_outcome(tmp_path: Path) -> None:
    mutant = one("witness/torch_reference.py")
    kept.keep(mutant, "failure", OUTCOME)
    (path,) = tmp_path.rglob("*.json")
    path.write_text("{", encoding="utf-8")
    assert kept.find(mutant, "failure") is None


@pytest.mark.parametrize(
    ("file", "matters"),
    [
        ("oracles/witness.py", True),
        ("golden/contracts.toml", True),
        ("suites/witness/test_merge.py", True),
        ("suites/mutation/engine.py", True),
        ("kernels/cuda/on_host.h", True),
        ("kernels/xattention/refusals.py", True),
        ("kernels/xattention/torch_reference.py", True),
        ("kernels/witness/cuda_fused.cu", False),
        ("suites/selftest/test_house.py", False),
        ("suites/mutation/summary.py", False),
    ],
)
def test_what_is_tested_again_when_a_file_changes(
    file: str, matters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def changed(path: Path) -> bytes:
        return b"changed" if path == ROOT / file else read(path)

    before = kept._surroundings.__wrapped__("torch")
    monkeypatch.setattr(Path, "read_bytes", changed)
    assert (kept._surroundings.__wrapped__("torch") != before) == matters
