"""A failing case is kept as a vector file, and such a file is run again."""

from pathlib import Path

from golden import files
from golden.canonical import vector_text
from golden.lint import file_problems
from golden.model import Note, Refusal, Tensor, Vector, VectorFile
from kernels.catalog import signatures
from suites.cases import Case, to_golden
from suites.verdicts import Nonconformance


def keep(failure: Nonconformance, contracts: tuple[str, ...], folder: Path) -> Path:
    """Write the case below ``folder``; the file's path, relative to it."""
    case = failure.case
    expected, refusal = _outcome(case)
    vector = Vector(
        id=f"counterexample-{case.digest}",
        contracts=contracts,
        notes=("counterexample",),
        inputs=dict(case.inputs),
        expected=expected,
        refusal=refusal,
    )
    notes = {"counterexample": Note(failure.statement)}
    path = Path(".conformance", "failures", f"{case.operation}-{case.digest}.json")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    text = vector_text(VectorFile(1, case.operation, notes, (vector,)))
    (folder / path).write_text(text, encoding="utf-8")
    return path


def _outcome(case: Case) -> tuple[Tensor | tuple[Tensor, ...] | None, Refusal | None]:
    try:
        results = tuple(map(to_golden, case.expected()))
        return results if len(results) > 1 else results[0], None
    except ValueError as error:  # the oracle's messages begin with the argument at fault
        return None, Refusal(str(error).partition(" ")[0])


def load(path: str) -> VectorFile:
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
