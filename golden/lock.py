"""The lock file: every id that was ever given out, so that none is removed and none reused.

One line a contract, ``contract <id>``, and one a vector, ``vector <operation>/<id> <digest>``,
sorted. The digest is of the vector's inputs: an expected value can be corrected, an input cannot.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from golden.canonical import inputs_digest
from golden.files import LOCK, GoldenError, read_bytes, shown
from golden.model import VectorFile

_LINE = re.compile(r"(contract [a-z0-9.-]+)|(vector [A-Za-z0-9_]+/[a-z0-9-]+) ([0-9a-f]{16})")

# The id with its kind, and the digest of its inputs: empty for a contract.
Ids = dict[str, str]


def read_lock(root: Path) -> Ids:
    """The ids of the lock file. Raises GoldenError."""
    path = root / LOCK
    ids: Ids = {}
    lines = read_bytes(path, root).decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        name = match and (match[1] or match[2])
        if not match or not name or name in ids:
            fault = "is a second line for its id" if name else "is no lock line"
            raise GoldenError(
                f"{shown(path, root)}: `{line}` {fault}, in line {number}; "
                f"restore the file from version control"
            )
        ids[name] = match[3] or ""
    return ids


def lock_text(ids: Ids) -> str:
    """The lock file that holds these ids."""
    return "".join(f"{line}\n" for line in sorted(f"{name} {ids[name]}".strip() for name in ids))


def ids_in_use(contracts: Iterable[str], files: Iterable[VectorFile]) -> Ids:
    """The ids that contracts and vectors have."""
    ids = {f"contract {contract}": "" for contract in contracts}
    for file in files:
        for vector in file.vectors:
            ids.setdefault(f"vector {file.operation}/{vector.id}", inputs_digest(vector))
    return ids
