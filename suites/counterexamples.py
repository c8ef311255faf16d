"""A failing case is kept: as a vector file that can be run again, and as a script of its own."""

import re
from pathlib import Path

from golden import files
from golden.canonical import vector_text
from golden.lint import file_problems
from golden.model import CounterexampleFile, Found, Note, Refusal, Tensor, Vector
from golden.record import Header
from kernels.catalog import signatures
from suites.cases import Case, Results, to_golden
from suites.reproduction import script
from suites.runner import Runner
from suites.verdicts import Nonconformance


def keep(
    failure: Nonconformance,
    contracts: tuple[str, ...],
    runner: Runner,
    folder: Path,
    header: Header,
) -> Path:
    """Write the case below ``folder``; its path, relative to that.

    Beside it, of an implementation that Python can import, a script that shows it.
    ``header``: of the record of the run that found it.
    """
    case = failure.case
    outcome = _outcome(case)
    vector = Vector(
        id=f"counterexample-{case.digest}",
        contracts=contracts,
        notes=("counterexample",),
        inputs=dict(case.inputs),
        expected=None if isinstance(outcome, Refusal) else _tensors(outcome),
        refusal=outcome if isinstance(outcome, Refusal) else None,
    )
    found = Found(
        implementation=runner.name,
        seed=header.seed,
        device=header.device,
        commit=header.commit,
        versions=header.versions,
        actual=None if failure.actual is None else _tensors(failure.actual),
    )
    notes = {"counterexample": Note(failure.statement)}
    name = re.sub(r"[^\w.-]+", "_", f"{runner.name}-{case.operation}-{case.digest}")
    path = Path(".conformance", "failures", f"{name}.json")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    text = vector_text(CounterexampleFile(1, case.operation, notes, (vector,), found))
    (folder / path).write_text(text, encoding="utf-8")
    if runner.implementation.modules:
        versions = ", ".join(f"{tool} {version}" for tool, version in header.versions.items())
        text = script(f"{name}.py", failure, runner, outcome, f"seed {header.seed}, {versions}")
        (folder / path.with_suffix(".py")).write_text(text, encoding="utf-8")
    return path


def _outcome(case: Case) -> Results | Refusal:
    try:
        return case.expected()
    except ValueError as error:  # the oracle's messages begin with the argument at fault
        return Refusal(str(error).partition(" ")[0])


def _tensors(results: Results) -> Tensor | tuple[Tensor, ...]:
    each = tuple(map(to_golden, results))
    return each if len(each) > 1 else each[0]


def load(path: str) -> CounterexampleFile:
    """The cases of a file that a person may have edited. Raises GoldenError."""
    file = files.read_cases(Path(path))
    for problem in file_problems(file):
        raise files.GoldenError(f"{path}: {problem}")
    for vector in file.vectors:
        parameters = signatures()[file.operation].parameters.values()
        needed = {each.name for each in parameters if each.default is each.empty}
        for missing in needed - vector.inputs.keys():
            raise files.GoldenError(f"{path}: `{vector.id}` has no input `{missing}`; add it")
    return file
