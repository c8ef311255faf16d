"""Where the golden files are, and the one way to read them.

Every function takes the ``golden`` folder as ``root``, so that a copy of it can be read as well.
A file that cannot be used raises GoldenError, whose one line says what, where and what to do next.
"""

from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from golden import record
from golden.model import (
    Contract,
    ContractFile,
    CounterexampleFile,
    Family,
    Operation,
    Vector,
    VectorFile,
)

ROOT = Path(__file__).parent
CONTRACTS = "contracts.toml"
LOCK = "ids.lock"
REGRESSIONS = "regressions"
SCHEMAS: dict[str, Any] = {
    "schema/record.json": record.Line,
    "schema/contracts.json": ContractFile,
    "schema/counterexample.json": CounterexampleFile,
    "schema/vectors.json": VectorFile,
}

FAMILIES: tuple[str, ...] = get_args(Family)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

File = TypeVar("File", ContractFile, CounterexampleFile, VectorFile)


class GoldenError(ValueError):
    """A golden file is missing, unreadable or not what its type says."""


def shown(path: Path, root: Path) -> str:
    """A path as messages show it: from the golden folder on, or as given when outside of it."""
    inside = path.is_relative_to(root.parent)
    return (path.relative_to(root.parent) if inside else path).as_posix()


def read_bytes(path: Path, root: Path) -> bytes:
    """The file's content. Raises GoldenError when there is none to read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise GoldenError(
            f"{shown(path, root)}: cannot be read, {error.strerror}; restore it or write it"
        ) from None


def _decode(path: Path, kind: type[File], schema: str, root: Path) -> File:
    content = read_bytes(path, root)
    try:
        if path.suffix == ".toml":
            return msgspec.toml.decode(content, type=kind)
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors of its own
        reason = " ".join(str(error).split())
        raise GoldenError(f"{shown(path, root)}: {reason}; compare with {schema}") from None


def load_contracts(root: Path = ROOT) -> dict[str, Contract]:
    """Every contract by its id. Raises GoldenError."""
    path = root / CONTRACTS
    contracts: dict[str, Contract] = {}
    for index, contract in enumerate(
        _decode(path, ContractFile, "golden/schema/contracts.json", root).contract
    ):
        if contract.id in contracts:
            raise GoldenError(
                f"{shown(path, root)}: a second contract `{contract.id}`, at "
                f"`$.contract[{index}].id`; give it an id of its own"
            )
        contracts[contract.id] = contract
    return contracts


def vector_paths(root: Path = ROOT) -> list[Path]:
    """The vector files that there are, ``<family>/<operation>.json``, in a fixed order."""
    return sorted(path for family in FAMILIES for path in (root / family).glob("*.json"))


def regression_paths(root: Path = ROOT) -> list[Path]:
    """The files of promoted counterexamples, ``regressions/<operation>.json``, in a fixed order."""
    return sorted((root / REGRESSIONS).glob("*.json"))


def read_cases(path: Path, root: Path = ROOT) -> CounterexampleFile:
    """A counterexample or a vector file, of any name. Raises GoldenError."""
    return _decode(path, CounterexampleFile, "golden/schema/counterexample.json", root)


def read_vectors(path: Path, root: Path = ROOT) -> VectorFile:
    """One vector file. Raises GoldenError, also when it is named after another operation."""
    file = _decode(path, VectorFile, "golden/schema/vectors.json", root)
    if file.operation != path.stem:
        raise GoldenError(
            f"{shown(path, root)}: holds vectors of `{file.operation}`, at `$.operation`; "
            f"name the file {file.operation}.json"
        )
    return file


def load_vectors(operation: str, root: Path = ROOT) -> VectorFile:
    """The vectors of one operation. Raises GoldenError."""
    for path in vector_paths(root):
        if path.stem == operation:
            return read_vectors(path, root)
    raise GoldenError(
        f"{root.name}: no vectors for `{operation}`; write <family>/{operation}.json there"
    )


def all_vectors(root: Path = ROOT) -> list[tuple[Operation, Vector]]:
    """Every vector worked out by hand, with its operation. Raises GoldenError."""
    return _vectors(vector_paths(root), root)


def all_regressions(root: Path = ROOT) -> list[tuple[Operation, Vector]]:
    """Every promoted counterexample, with its operation. Raises GoldenError.

    What they expect is the oracle's, so that they test implementations, and no oracle.
    """
    return _vectors(regression_paths(root), root)


def _vectors(paths: list[Path], root: Path) -> list[tuple[Operation, Vector]]:
    files = [read_vectors(path, root) for path in paths]
    return [(file.operation, vector) for file in files for vector in file.vectors]
