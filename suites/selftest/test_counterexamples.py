"""What a failure leaves behind: a file to run again, a script to send away, perhaps a vector."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import torch

from golden import files
from golden.__main__ import main
from golden.canonical import vector_text
from golden.files import GoldenError
from golden.lint import lint
from golden.model import CounterexampleFile, Refusal, Tensor, Value
from golden.promote import ORIGIN, promote
from golden.record import SCHEMA, Header
from kernels import catalog
from suites import counterexamples, test_golden
from suites.cases import APPLY, MERGE, SERVE, Case, Results
from suites.reproduction import script
from suites.runner import Runner
from suites.verdicts import Nonconformance

HEADER: Final = Header(
    schema=SCHEMA,
    version="checkout",
    commit="abc123+",
    versions={"torch": "2.13.0"},
    device="cpu",
    seed=5,
    implementations=("wrong",),
    arguments=(),
)

# Modules of a user's, who has none of this project.
ALONE: Final = """
import importlib.util
import torch

assert importlib.util.find_spec("suites") is None or {found}
EXPONENT_BASE = 2


def apply_topology_witnesses(
    learned_indices, context_lens, learned_keep, num_segments, max_replacements
):
    if {crashes}:
        raise RuntimeError("no luck")
    if {refuses} and learned_keep > learned_indices.shape[1]:
        raise ValueError("learned_keep is too large")
    merged = learned_indices.clone()
    merged[:, 3] = {token}
    if {writes}:
        learned_indices[:] = 0
    return merged


def scatter_topology_witnesses_(topk_indices, context_lens, num_segments):
    topk_indices[:, 0] = {token}
    if {strays}:
        topk_indices.as_strided((1,), (1,), topk_indices.storage_offset() - 1)[0] = 1


def merge_softmax_stats(m_chunks, l_chunks):
    m = torch.stack(list(m_chunks)).amax(0)
    total = sum(l * {exp}(each - m) for each, l in zip(m_chunks, l_chunks))
    return m, total
"""
HONEST: Final = {
    "found": "True",
    "crashes": "False",
    "refuses": "True",
    "token": "12",
    "writes": "False",
    "strays": "False",
    "exp": "torch.exp2",
}


def rows(operation: str, **changes: Value) -> Case:
    learned = "topk_indices" if operation == SERVE else "learned_indices"
    inputs: dict[str, Value] = {
        learned: Tensor("int32", (2, 4), (0, 5, 9, -1, 0, 5, 9, -1), layout="padded"),
        "context_lens": Tensor("int64", (2,), (16, 16), layout="broadcast"),
        "num_segments": 4,
    }
    if operation == APPLY:
        inputs |= {"learned_keep": 3, "max_replacements": 1}
    return Case(operation, inputs | changes)  # type: ignore[arg-type]


CHUNKS: Final = tuple(
    Tensor("float32", (1, 2, 2), values, bits, layout="transposed")
    for values, bits in (
        ((0.5, 1.0, -2.0, 3.0), ("3f000000", "3f800000", "c0000000", "40400000")),
        ((1.5, -1.0, 4.0, 0.25), ("3fc00000", "bf800000", "40800000", "3e800000")),
    )
)
SUMS: Final = tuple(
    Tensor(
        "float32", (1, 2, 2), (1.0, 2.0, 1.5, 3.0), ("3f800000", "40000000", "3fc00000", "40400000")
    )
    for _ in CHUNKS
)
STATISTICS: Final = Case(MERGE, {"m_chunks": CHUNKS, "l_chunks": SUMS})

# A case, in what a module is wrong in it, and what its script says.
WRONG: Final[dict[str, tuple[Case, dict[str, str], str]]] = {
    "integers": (rows(APPLY), {"token": "11"}, "2 of 8 elements of result differ"),
    "in place": (rows(SERVE), {"token": "11"}, "2 of 8 elements of result differ"),
    "base 2": (STATISTICS, {"exp": "torch.exp"}, "4 of 4 elements of l differ"),
    "accepted": (
        rows(APPLY, learned_keep=5),
        {"refuses": "False"},
        "the call must be refused with ValueError; it was accepted",
    ),
    "an input": (rows(APPLY), {"writes": "True"}, "the call changed its input learned_indices"),
    "outside": (rows(SERVE), {"strays": "True"}, "the call wrote outside topk_indices"),
    "a crash": (rows(APPLY), {"crashes": "True"}, "RuntimeError: no luck"),
}


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the modules."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("wrong_one", None)


def failure_of(runner: Runner, case: Case) -> Nonconformance:
    judge: Any = runner.refuse if case.inputs.get("learned_keep") == 5 else runner.judge
    with pytest.raises(Nonconformance) as caught:
        judge(case)
    return caught.value


def broken(folder: Path, **behaviour: str) -> Runner:
    (folder / "wrong_one.py").write_text(ALONE.format(**HONEST | behaviour), encoding="utf-8")
    return Runner(catalog.load("wrong_one"), torch.device("cpu"))


def send(path: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script where nothing of this project is, with the modules of one folder."""
    away = folder / "away"
    away.mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=away,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("how", WRONG)
def test_a_script_shows_the_failure_alone(how: str, wrong: Path) -> None:
    case, behaviour, says = WRONG[how]
    runner = broken(wrong, **behaviour)
    failure = failure_of(runner, case)
    kept = wrong / counterexamples.keep(failure, ("a.b",), runner, wrong, HEADER)
    path = kept.with_suffix(".py")
    # Now the project must not be found.
    text = ALONE.format(**HONEST | behaviour | {"found": "False"})
    (wrong / "wrong_one.py").write_text(text, encoding="utf-8")
    honest = ALONE.format(**HONEST | {"found": "False"})
    (wrong / "honest.py").write_text(honest, encoding="utf-8")
    shown = send(path, wrong)
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert says in shown.stdout + shown.stderr
    right = send(path, wrong, "honest")
    assert right.returncode == 0, right.stdout + right.stderr


def test_a_script_says_what_it_needs(wrong: Path) -> None:
    runner = broken(wrong, token="11")
    failure = failure_of(runner, rows(APPLY))
    path = wrong / counterexamples.keep(failure, ("a.b",), runner, wrong, HEADER)
    text = path.with_suffix(".py").read_text(encoding="utf-8")
    assert text.startswith('"""apply_topology_witnesses of wrong_one: 2 of 8 elements differ')
    assert "seed 5, torch 2.13.0." in text
    assert "need not fail" not in text
    lacking = send(path.with_suffix(".py"), wrong, "none_such")
    assert lacking.returncode == 2
    assert lacking.stdout == (
        "No module named 'none_such'; put the folder of none_such on PYTHONPATH\n"
    )


def test_a_script_warns_of_a_failure_that_it_need_not_show(wrong: Path) -> None:
    """A property of results that are, each by itself, what is expected."""
    runner = broken(wrong)
    case = rows(APPLY)
    results = runner.judge(case)
    failure = Nonconformance("two calls differ", case, actual=results)
    assert "need not fail" in script("a.py", failure, runner, case.expected(), "seed 0")
    other: Results = (results[0] + 1,)
    failure = Nonconformance("two calls differ", case, actual=other)
    assert "need not fail" not in script("a.py", failure, runner, case.expected(), "seed 0")


@pytest.mark.parametrize(
    ("name", "case", "module"),
    [
        ("torch", rows(APPLY), "kernels.witness.torch_reference"),
        ("torch", STATISTICS, "kernels.xattention.torch_reference"),
    ],
)
def test_a_script_names_the_module_of_a_built_in_one(name: str, case: Case, module: str) -> None:
    runner = Runner(catalog.load(name), torch.device("cpu"))
    failure = Nonconformance("it is wrong", case)
    text = script("a.py", failure, runner, case.expected(), "seed 0")
    assert f'else "{module}"' in text


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def kept(wrong: Path) -> Path:
    runner = broken(wrong, token="11")
    failure = failure_of(runner, rows(APPLY))
    contracts = ("witness.merge.budget",)
    return wrong / counterexamples.keep(failure, contracts, runner, wrong, HEADER)


def test_a_file_says_how_it_was_found(kept: Path) -> None:
    file = counterexamples.load(str(kept))
    assert file.found is not None
    found = file.found
    assert (found.implementation, found.seed, found.commit) == ("wrong_one", 5, "abc123+")
    assert found.versions == {"torch": "2.13.0"}
    assert found.actual == Tensor("int32", (2, 4), (0, 5, 9, 11, 0, 5, 9, 11))
    assert file.vectors[0].expected == Tensor("int32", (2, 4), (0, 5, 9, 12, 0, 5, 9, 12))
    assert vector_text(file) == kept.read_text(encoding="utf-8")
    schema = json.loads((files.ROOT / "schema" / "counterexample.json").read_text())
    jsonschema.validate(json.loads(kept.read_text(encoding="utf-8")), schema)


def test_implementations_that_fail_alike_leave_a_file_each(wrong: Path) -> None:
    case = rows(APPLY)
    runners = [broken(wrong, token="11"), Runner(catalog.load("torch"), torch.device("cpu"))]
    paths = {
        counterexamples.keep(Nonconformance("so", case), ("a.b",), runner, wrong, HEADER)
        for runner in runners
    }
    assert len(paths) == 2


def test_a_vector_file_is_read_as_a_counterexample_is(kept: Path) -> None:
    vectors = counterexamples.load(str(files.ROOT / "witness" / f"{APPLY}.json"))
    assert vectors.found is None
    assert len(vectors.vectors) > 1
    with pytest.raises(GoldenError, match="unknown field `found`"):
        files.read_vectors(kept)


# --- promotion -----------------------------------------------------------------------------------


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    copy = tmp_path / "golden"
    shutil.copytree(files.ROOT, copy, ignore=shutil.ignore_patterns("recorded", "compiled"))
    return copy


def test_a_counterexample_becomes_a_vector_that_says_where_it_is_from(
    kept: Path, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["promote", str(kept), "--id", "held-slot", "--note", "a slot was kept"]
    assert main(arguments, golden) == 0
    assert capsys.readouterr().out == "0 problems\n"
    assert lint(golden) == []
    (found,) = [v for operation, v in files.all_regressions(golden) if operation == APPLY]
    before = counterexamples.load(str(kept)).vectors[0]
    assert (found.id, found.inputs, found.expected) == ("held-slot", before.inputs, before.expected)
    assert found.contracts == ("witness.merge.budget",)
    assert found.notes == ("held-slot", ORIGIN)
    file = files.read_vectors(golden / "regressions" / f"{APPLY}.json", golden)
    assert file.notes["held-slot"].reason == "a slot was kept"
    assert "tests implementations, and no oracle" in file.notes[ORIGIN].reason
    assert f"vector {APPLY}/held-slot " in (golden / "ids.lock").read_text()
    assert not [v for _, v in files.all_vectors(golden) if v.id == "held-slot"]


@pytest.mark.parametrize(
    ("id_", "note", "message"),
    [
        (
            "Held slot",
            "so",
            "--id Held slot: no slug; use small letters, digits and single hyphens",
        ),
        ("held-slot", " ", "--note: it is empty; say why the vector exists"),
        ("taken", "so", "--id taken: it is taken, and ids are never reused; choose another"),
        (ORIGIN, "so", f"--id {ORIGIN}: it is taken, and ids are never reused; choose another"),
    ],
)
def test_what_cannot_be_promoted(
    id_: str, note: str, message: str, kept: Path, golden: Path
) -> None:
    with (golden / "ids.lock").open("a") as lock:
        lock.write(f"vector {APPLY}/taken 0123456789abcdef\n")
    before = (golden / "ids.lock").read_bytes()
    assert promote(kept, id_, note, golden) == [message]
    assert (golden / "ids.lock").read_bytes() == before
    assert not (golden / "regressions" / f"{APPLY}.json").exists()


def test_a_case_is_promoted_once(kept: Path, golden: Path) -> None:
    assert promote(kept, "held-slot", "so", golden) == []
    assert promote(kept, "again", "so", golden) == [
        f"{APPLY}/held-slot has these inputs already; nothing to add"
    ]
    other = counterexamples.load(str(kept))
    (vector,) = other.vectors
    inputs = vector.inputs | {"max_replacements": 0}
    kept.write_text(
        vector_text(
            CounterexampleFile(
                1,
                other.operation,
                other.notes,
                (type(vector)(vector.id, vector.contracts, vector.notes, inputs, vector.expected),),
                other.found,
            )
        )
    )
    assert promote(kept, "again", "so", golden) == []
    assert lint(golden) == []
    assert len([v for operation, v in files.all_regressions(golden) if operation == APPLY]) == 2


def test_only_a_counterexample_is_promoted(golden: Path) -> None:
    """A vector that a person wrote has an expected value that a person worked out."""
    path = golden / "witness" / f"{APPLY}.json"
    assert promote(path, "some", "so", golden) == [
        f"{path}: no counterexample of a run; give a file of .conformance/failures"
    ]


def test_regressions_are_held_against_implementations_alone() -> None:
    (fixture, *_) = inspect.signature(test_golden.test_regression).parameters
    assert fixture == "implementation"
    assert files.all_regressions()


def test_the_linter_covers_regressions(kept: Path, golden: Path) -> None:
    assert promote(kept, "held-slot", "so", golden) == []
    path = golden / "regressions" / f"{APPLY}.json"
    sound = path.read_text(encoding="utf-8")
    vector = files.load_vectors(APPLY, golden).vectors[0].id
    for old, new, problem in (
        ('"id": "held-slot"', f'"id": "{vector}"', f"`{vector}` is the id of a vector, too; give"),
        ('"id": "held-slot"', '"id": "other"', f"`vector {APPLY}/held-slot` is gone, but ids are"),
        ("witness.merge.budget", "witness.merge.budgt", "unknown contract `witness.merge.budgt`"),
        (
            "witness.merge.budget",
            "xattention.merge.formula",
            f"contract `xattention.merge.formula` is not about {APPLY}, in",
        ),
        ('"held-slot": {', '"held":  {', "unknown note `held-slot`"),
        ("{", "{{", "JSON is malformed"),
    ):
        assert old in sound
        path.write_text(sound.replace(old, new, 1), encoding="utf-8")
        assert any(problem in found for found in lint(golden)), problem
    path.write_text(sound, encoding="utf-8")
    assert lint(golden) == []


def test_a_refusal_is_kept_as_one(wrong: Path) -> None:
    runner = broken(wrong, refuses="False")
    failure = failure_of(runner, rows(APPLY, learned_keep=5))
    path = counterexamples.keep(failure, ("a.b",), runner, wrong, HEADER)
    (vector,) = counterexamples.load(str(wrong / path)).vectors
    assert vector.refusal == Refusal("learned_keep")
