"""A counterexample that a run has left becomes a vector, and stays one."""

import re
from pathlib import Path

import msgspec

from golden.canonical import inputs_digest, vector_text
from golden.files import (
    REGRESSIONS,
    ROOT,
    GoldenError,
    read_cases,
    read_vectors,
    regression_paths,
    vector_paths,
)
from golden.lint import file_problems
from golden.lock import read_lock
from golden.model import Note, Vector, VectorFile
from golden.write import write_vectors_and_lock

SLUG = r"[a-z0-9]+(-[a-z0-9]+)*"
ORIGIN = "oracle-expected"
ORIGIN_NOTE = Note(
    "What is expected is what the oracle gave when the counterexample was found, and nobody has "
    "worked it out by hand: the vector tests implementations, and no oracle."
)


def promote(file: Path, id_: str, reason: str, root: Path = ROOT) -> list[str]:
    """Add the case of a counterexample file to ``regressions/<operation>.json`` and lock its id.

    The inputs, the contracts and what is expected stay as the run left them; ``reason`` says why
    the vector exists. Returns the problems, a line each; where there is one, nothing is written.
    """
    try:
        case = _counterexample(file)
        operation, (vector,) = case.operation, case.vectors
        target = root / REGRESSIONS / f"{operation}.json"
        _require_new(vector, id_, reason, operation, root)
        there = read_vectors(target, root) if target.exists() else VectorFile(1, operation, {}, ())
    except GoldenError as error:
        return [str(error)]
    promoted = msgspec.structs.replace(vector, id=id_, notes=(id_, ORIGIN))
    notes = {ORIGIN: ORIGIN_NOTE, **there.notes, id_: Note(reason)}
    target.parent.mkdir(exist_ok=True)
    text = vector_text(VectorFile(1, operation, notes, (*there.vectors, promoted)))
    target.write_text(text, encoding="utf-8")
    return write_vectors_and_lock(root)


def _counterexample(path: Path) -> VectorFile:
    file = read_cases(path)
    if file.found is None or len(file.vectors) != 1:
        raise GoldenError(
            f"{path}: no counterexample of a run; give a file of .conformance/failures"
        )
    for problem in file_problems(file):
        raise GoldenError(f"{path}: {problem}")
    return file


def _require_new(vector: Vector, id_: str, reason: str, operation: str, root: Path) -> None:
    """Require a slug that was never given out, a reason, and inputs that no vector has."""
    if not re.fullmatch(SLUG, id_):
        raise GoldenError(f"--id {id_}: no slug; use small letters, digits and single hyphens")
    if not reason.strip():
        raise GoldenError("--note: it is empty; say why the vector exists")
    if f"vector {operation}/{id_}" in read_lock(root) or id_ == ORIGIN:
        raise GoldenError(f"--id {id_}: it is taken, and ids are never reused; choose another")
    for path in vector_paths(root) + regression_paths(root):
        for other in read_vectors(path, root).vectors if path.stem == operation else ():
            if inputs_digest(other) == inputs_digest(vector):
                raise GoldenError(
                    f"{operation}/{other.id} has these inputs already; nothing to add"
                )
