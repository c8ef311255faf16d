"""What ``python -m golden`` writes: vectors in canonical form, the lock file, the schemas."""

from pathlib import Path

from golden.canonical import schema_texts, vector_text
from golden.files import (
    LOCK,
    ROOT,
    GoldenError,
    load_contracts,
    read_vectors,
    regression_paths,
    vector_paths,
)
from golden.lock import ids_in_use, lock_text, read_lock


def write_vectors_and_lock(root: Path = ROOT) -> list[str]:
    """Rewrite each vector file and lock the ids that are new; locked ids stay as they are.

    Returns the problems: a file that cannot be read stays as it is, and without the contracts or
    the lock no id is locked.
    """
    problems: list[str] = []
    files = []
    for path in vector_paths(root) + regression_paths(root):
        try:
            file = read_vectors(path, root)
            files.append(file)
            _write(path, vector_text(file))
        except GoldenError as error:
            problems.append(str(error))
    try:
        contracts = load_contracts(root)
        _write(root / LOCK, lock_text(ids_in_use(contracts, files) | read_lock(root)))
    except GoldenError as error:
        problems.append(str(error))
    return problems


def write_schemas(root: Path = ROOT) -> list[str]:
    """Rewrite the schemas. Returns no problems."""
    for path, text in schema_texts().items():
        _write(root / path, text)
    return []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if not path.is_file() or path.read_bytes() != text.encode():
        path.write_bytes(text.encode())
