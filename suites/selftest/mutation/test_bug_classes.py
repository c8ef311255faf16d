"""Every known kind of bug is found where `suites/mutation/bug_classes.toml` says that it is."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from golden import files
from kernels import catalog
from suites.mutation import bug_classes
from suites.mutation.bug_classes import Planted, Shown, plant
from suites.mutation.calling import function_of, run
from suites.mutation.edits import changed
from suites.runner import Runner
from suites.session import ROOT
from suites.verdicts import Nonconformance

CLASSES = bug_classes.load()
CPU = torch.device("cpu")
SOUND = {"witness/torch_reference.py": "torch", "xattention/torch_reference.py": "torch"}


def named(entries: tuple[bug_classes.Class, ...]) -> list[object]:
    return [pytest.param(entry, id=entry.name) for entry in entries]


def test_every_class_is_there_once() -> None:
    names = Counter(entry.name for entry in CLASSES)
    assert max(names.values()) == 1
    planted = Counter((entry.file, entry.changes) for entry in CLASSES.planted)
    assert max(planted.values()) == 1


@pytest.mark.parametrize("entry", named(CLASSES.planted))
def test_a_planted_bug_is_found_by_the_test_that_is_named(
    entry: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Nonconformance, match=entry.says):
        run(entry.test, Runner(plant(entry, tmp_path), CPU), entry.parameters)


@pytest.mark.parametrize("entry", named(CLASSES.planted))
def test_without_the_bug_the_same_test_passes(entry: Planted) -> None:
    runner = Runner(catalog.load(SOUND[entry.file]), CPU)
    run(entry.test, runner, entry.parameters)
    assert runner.cases


@pytest.mark.parametrize("entry", named(CLASSES.planted))
def test_the_test_checks_the_contracts(entry: Planted) -> None:
    marks = {
        id_
        for mark in function_of(entry.test).pytestmark
        if mark.name == "contract"
        for id_ in mark.args
    }
    assert set(entry.contracts) <= marks & {*files.load_contracts()}
    assert entry.contracts


@pytest.mark.parametrize("entry", named(CLASSES.shown))
def test_the_test_that_plants_a_bug_exists(entry: Shown) -> None:
    """And has that example, by name, where one is named."""
    file, _, test = entry.test.partition("::")
    name, _, example = test.removesuffix("]").partition("[")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not example or example in strings


def test_a_change_that_fits_no_more_is_told() -> None:
    file = CLASSES.planted[0].file
    said = re.escape(f"stale: {file} says 'no such line' 0 times, not once; mend the entry")
    with pytest.raises(ValueError, match=said):
        changed("stale", file, [("no such line", "")])
