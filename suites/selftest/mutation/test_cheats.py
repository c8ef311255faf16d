"""Each cheat of `suites.mutation.cheats` is caught for what it does, and its honest twin is not."""

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import pytest
import torch

from golden import files
from golden.record import Status, Verdict
from kernels import catalog
from kernels.catalog import Implementation
from suites.cases import APPLY, SERVE, STATS, Case
from suites.mutation import cheats
from suites.mutation.calling import run
from suites.runner import Runner
from suites.selftest.whole_runs import ROOT, record_of, run_pytest
from suites.verdicts import Nonconformance

ROWS: Final = "suites/witness/test_differential.py::test_a_few_rows"
AGAIN: Final = "suites/witness/test_robustness.py::test_memory_that_is_used_again_is_read_again"
LATE: Final = "the result of a call was written to after the call had returned"


class Caught(NamedTuple):
    operation: str
    test: str
    says: str
    status: Status = "failed"


CAUGHT: Final = {
    "previous_output": Caught(APPLY, ROWS, "the result depends on memory|elements differ"),
    "reused_memory": Caught(APPLY, ROWS, "two calls returned the same memory"),
    "zeroes": Caught(APPLY, ROWS, "the call changed its input learned_indices"),
    "late_thread": Caught(APPLY, ROWS, LATE),
    "cached_by_pointer": Caught(APPLY, AGAIN, "over memory used before: .* differ"),
    "silent_fallback": Caught(APPLY, ROWS, "no kernel ran, not witness_merge_kernel"),
    "low_precision": Caught(
        STATS, "suites/xattention/test_stats.py::test_l_is_the_sum_of_weights", "differ"
    ),
    "finds_expected": Caught(APPLY, ROWS, "elements differ"),
    "asks_the_oracle": Caught(
        APPLY, ROWS, "raised Undisclosed: what is expected of apply_.* is not said", "crashed"
    ),
    "restored_by_kernel": Caught(SERVE, ROWS, "scribble_kernel.*stores? .*outside"),
    "restored": Caught(SERVE, ROWS, "as_strided reaches outside topk_indices"),
    "late_tensor": Caught(APPLY, ROWS, "the call returned Late, a subclass of torch.Tensor"),
}
# They change the process that they are imported into.
PATCHES: Final = {
    "patches_comparison": "suites.comparison.difference is not what it was when the run began",
    "patches_clock": "time.perf_counter is not what it was when the run began",
}
ELSEWHERE: Final = "one_seed"


def cheat(name: str) -> ModuleType:
    return import_module(f"{cheats.__name__}.{name}")


def parameters(test: str, operation: str) -> dict[str, str]:
    return {"operation": operation} if test in (ROWS, AGAIN) else {}


def runner(implementation: Implementation) -> Runner:
    return Runner(implementation, torch.device("cpu"))


def twin(name: str, operation: str) -> Runner:
    kernels = getattr(cheat(name), "KERNELS", {})
    return runner(Implementation("honest", {operation: cheat(name).honest}, kernels))


def test_every_cheat_is_tested() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cheats.__path__)}
    assert modules == CAUGHT.keys() | PATCHES.keys() | {ELSEWHERE}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_cheat_is_caught(name: str) -> None:
    operation, test, says, status = CAUGHT[name]
    caught = runner(catalog.load(cheat(name).__name__))
    with pytest.raises(Nonconformance, match=says) as failure:
        run(test, caught, parameters(test, operation))
    assert failure.value.status == status


@pytest.mark.parametrize("name", CAUGHT)
def test_its_honest_twin_passes(name: str) -> None:
    operation, test, _, _ = CAUGHT[name]
    honest = twin(name, operation)
    run(test, honest, parameters(test, operation))
    assert honest.cases
    cheating, fair = (
        list(inspect.signature(function).parameters)
        for function in (getattr(cheat(name), operation), cheat(name).honest)
    )
    assert fair[: len(cheating)] == cheating


def test_what_finds_expected_values_finds_those_of_vectors() -> None:
    """Which lie about: a vector alone does not judge. Of a generated case there is none as yet."""
    finder = runner(catalog.load(cheat("finds_expected").__name__))
    for operation, vector in files.all_vectors():
        if operation == APPLY and vector.refusal is None:
            finder.judge_vector(Case(operation, vector.inputs), vector)
    assert finder.cases


def test_what_knows_one_seed_fails_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed can tell; the nightly run has another every night."""
    module = cheat("one_seed")
    knowing = runner(catalog.load(module.__name__))
    monkeypatch.setattr(module, "LEARNING", True)
    run(ROWS, knowing, {"operation": APPLY}, seed=0)
    monkeypatch.setattr(module, "LEARNING", False)
    run(ROWS, knowing, {"operation": APPLY}, seed=0)
    with pytest.raises(Nonconformance, match="elements differ"):
        run(ROWS, knowing, {"operation": APPLY}, seed=1)
    run(ROWS, twin("one_seed", APPLY), {"operation": APPLY}, seed=1)


@pytest.mark.parametrize("name", PATCHES)
def test_what_replaces_a_part_of_the_harness_passes_nothing(name: str, tmp_path: Path) -> None:
    module = f"{cheats.__name__}.{name}"
    vectors = str(ROOT / "suites" / "test_golden.py")
    chosen = "edges-are-rounded-up"
    result = run_pytest(tmp_path, "--impl", module, vectors, "-k", chosen)
    verdicts = [
        line
        for line in record_of(tmp_path)
        if isinstance(line, Verdict) and line.status != "unsupported"
    ]
    assert verdicts, result.stdout
    assert {verdict.status for verdict in verdicts} == {"harness-error"}
    assert all(verdict.detail.startswith(PATCHES[name]) for verdict in verdicts)
