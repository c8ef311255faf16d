"""The honest variants differ from each other, and pass: a small part here, all of it elsewhere."""

import pkgutil
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
import pytest
import torch

from golden import files
from golden.record import Footer, Header, Line, Measurement, Status, Verdict
from kernels import catalog
from suites.cases import MERGE, NORMALISE, ROWS, SCORES, SELECT, STATS, Case
from suites.mutation import honest
from suites.mutation.calling import run
from suites.mutation.honest import GENERATED, GIVEN
from suites.mutation.honest.__main__ import generated, given, main, tallied, write
from suites.mutation.honest.together import Tally
from suites.runner import Runner
from suites.selftest.mutation.elsewhere import elsewhere
from suites.selftest.whole_runs import ROOT, run_pytest
from suites.strategies.xattention import OPERATIONS

SHARED: Final = {"estimation", "rows", "together", "__main__"}
QUICK: Final[list[tuple[str, list[str]]]] = [
    ("suites/witness/test_differential.py::test_a_few_rows", [*ROWS]),
    ("suites/xattention/test_bounds.py::test_ordinary_cases", [STATS, MERGE, NORMALISE, SCORES]),
]
ESTIMATES: Final = "suites/xattention/test_estimate.py::test_chunks_of_another_size_change_nothing"
TIES: Final = (
    "suites/xattention/test_select.py::"
    "test_how_many_of_equal_sums_are_selected_does_not_depend_on_their_order"
)


def runner(name: str) -> Runner:
    return Runner(catalog.load(f"{honest.__name__}.{name}"), torch.device("cpu"))


def test_every_variant_is_listed() -> None:
    modules = {module.name for module in pkgutil.iter_modules(honest.__path__)}
    assert modules - SHARED == {*honest.VARIANTS}


@pytest.mark.parametrize("name", honest.VARIANTS)
def test_a_variant_has_all_that_a_kernel_author_has(name: str) -> None:
    assert {*runner(name).implementation.operations} == {*ROWS, *OPERATIONS}


@pytest.mark.parametrize("name", honest.VARIANTS)
def test_vectors_raise_no_alarm(name: str) -> None:
    variant = runner(name)
    for operation, vector in files.all_vectors():
        if operation in variant.implementation.operations:
            variant.judge_vector(Case(operation, vector.inputs), vector)
    assert variant.cases > 300


@pytest.mark.parametrize("name", honest.VARIANTS)
def test_generated_cases_raise_no_alarm(name: str) -> None:
    variant = runner(name)
    for test, operations in QUICK:
        for operation in operations:
            run(test, variant, {"operation": operation})
    for test in (ESTIMATES, TIES):
        run(test, variant)
    assert variant.error_ratio is not None
    assert variant.error_ratio <= 1


def test_no_two_variants_compute_alike() -> None:
    """Else there would be fewer ways than it seems. fp64 comes to what compensation does."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, 8, 128, generator=generator)
    kept = {}
    for name in {*honest.VARIANTS} - {"double"}:
        _, total = runner(name).implementation.operations[STATS](x, 4, 4, 1.0)
        kept[name] = tuple(total.flatten().tolist())
    assert len({*kept.values()}) == len(kept)


def test_ties_come_in_either_order() -> None:
    sums = torch.tensor([1.0, 2.0, 2.0, 1.0]).reshape(1, 1, 1, 4)
    selected = {
        name: runner(name).implementation.operations[SELECT](sums, 3, 0.5).flatten().tolist()
        for name in honest.VARIANTS
    }
    assert selected["backwards"] == [True, False, True, True]
    assert selected["tiles"] == [True, True, False, True]


def test_a_seed_gives_the_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    """But for the first line, which says how the run was asked for."""
    module = str(ROOT / "suites" / "xattention" / "test_merge.py")
    records = []
    for workers in ("0", "2"):
        folder = tmp_path / workers
        folder.mkdir()
        name = f"{honest.__name__}.tiles"
        result = run_pytest(folder, "--impl", name, "--seed", "5", "-n", workers, module)
        assert result.returncode == 0, result.stdout
        records.append((folder / ".conformance" / "record.jsonl").read_bytes().splitlines()[1:])
    assert records[0] == records[1]
    assert len(records[0]) > 5


def test_what_becomes_of_a_test_is_told_of_its_variant() -> None:
    statuses: tuple[Status, ...] = ("passed", "failed", "not-run")
    verdicts = [
        Verdict(f"a {status} test", f"{honest.__name__}.{name}", (), status, 4, "", 0.5)
        for name, status in [*product(("tiles", "oracle"), statuses), ("double", "passed")]
    ]
    assert tallied(["tiles", "double"], [*verdicts, Footer({}, 0, 0)]) == {
        "tiles": Tally(1, 12, 0.5, ["failed: a failed test: "]),
        "double": Tally(1, 4, 0.5),
    }


def test_seeds_are_dealt_out_and_the_rest_is_run_once(tmp_path: Path) -> None:
    tests = [str(ROOT / "suites" / "xattention" / "test_merge.py")]
    found = elsewhere(tmp_path, generated, ["tiles"], [5, 6], 2, tests)
    assert found == elsewhere(tmp_path, generated, ["tiles"], [5, 6], 1, tests)
    assert found["tiles"].runs == 2
    rest = given(["tiles"], 1, tests)["tiles"]
    assert (rest.runs, rest.cases, rest.failures) == (1, 1, [])  # there is one such test


def test_a_failure_is_counted_and_recorded(tmp_path: Path) -> None:
    tally = Tally(2)
    tally.count(4, None)
    tally.count(8, 0.5, "seed 3: tiles: a test: it is wrong")
    sound = Tally(1, 100, 0.25)
    path = tmp_path / "honest.jsonl"
    assert write(path, {GENERATED: {"tiles": tally}, GIVEN: {"tiles": sound}}, range(3, 5), []) == 1
    header, *lines = (
        msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()
    )
    assert isinstance(header, Header)
    assert (header.seed, header.implementations) == (3, ("tiles",))
    found = {(x.subject, x.quantity): x.value for x in lines if isinstance(x, Measurement)}
    assert found == {
        (GENERATED, "runs"): 2,
        (GENERATED, "cases"): 12,
        (GENERATED, "failures"): 1,
        (GENERATED, "error_ratio"): 0.5,
        (GIVEN, "runs"): 1,
        (GIVEN, "cases"): 100,
        (GIVEN, "failures"): 0,
        (GIVEN, "error_ratio"): 0.25,
    }
    assert lines[-1] == Footer({}, 112, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "3", "3"], "from A up to, not including, B"),
        (["-j", "0"], "-j 0: give a number of at least 1"),
        (["dishonest"], "dishonest: no such variant; use one of backwards"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
