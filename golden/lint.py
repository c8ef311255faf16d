"""The rules that the golden files keep. A problem is a line, ``path: what, where; what to do``."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import ParamSpec, TypeVar

from golden.canonical import schema_texts, vector_text
from golden.files import (
    CONTRACTS,
    LOCK,
    OPERATIONS,
    ROOT,
    GoldenError,
    load_contracts,
    read_bytes,
    read_vectors,
    regression_paths,
    shown,
    vector_paths,
)
from golden.floats import agree, is_float
from golden.lock import Ids, ids_in_use, lock_text, read_lock
from golden.model import Contract, Tensor, Value, Vector, VectorFile

_RANGES = {
    "int32": range(-(2**31), 2**31),
    "int64": range(-(2**63), 2**63),
    "uint64": range(2**64),
    "bool": range(2),
}

Arguments = ParamSpec("Arguments")
Loaded = TypeVar("Loaded")


def lint(root: Path = ROOT) -> list[str]:
    """Every problem of the golden folder; none when it is in order."""
    problems: list[str] = []

    def attempt(
        load: Callable[Arguments, Loaded], *of: Arguments.args, **named: Arguments.kwargs
    ) -> Loaded | None:
        try:
            return load(*of, **named)
        except GoldenError as error:
            problems.append(str(error))
            return None

    def report(path: Path, found: Iterable[str]) -> None:
        problems.extend(f"{shown(path, root)}: {problem}" for problem in found)

    contracts = attempt(load_contracts, root)
    lock = attempt(read_lock, root)
    paths, regressions = vector_paths(root), regression_paths(root)
    files = {path: file for path in paths if (file := attempt(read_vectors, path, root))}
    found = {path: file for path in regressions if (file := attempt(read_vectors, path, root))}
    every = files | found
    missing = sorted({*OPERATIONS} - {path.stem for path in paths})
    report(root, (f"no vectors for `{name}`; write <family>/{name}.json" for name in missing))

    for path, file in every.items():
        report(path, file_problems(file))
        if contracts is not None:
            family = path.parent.name if path in files else ""
            report(path, reference_problems(file, family, contracts))
    for path, file in found.items():
        report(path, repeated_problems(file, files.values()))
    # Of a file that cannot be read nobody knows which ids it holds: say that once, above.
    if contracts is not None and len(every) == len(paths + regressions) and not missing:
        report(root / CONTRACTS, coverage_problems(contracts.values(), files.values()))
        if lock is not None:
            report(root / LOCK, lock_problems(lock, ids_in_use(contracts, every.values())))

    texts = [(path, vector_text(file), "format") for path, file in every.items()]
    texts += [(root / LOCK, lock_text(lock), "format")] if lock is not None else []
    texts += [(root / path, text, "schema") for path, text in schema_texts().items()]
    for path, text, command in texts:
        content = attempt(read_bytes, path, root)
        if content is not None and content != text.encode():
            report(path, [f"differs from what is generated; run `python -m golden {command}`"])
    return problems


def file_problems(file: VectorFile) -> Iterator[str]:
    """What a vector file gets wrong by itself: repeated ids, notes left open, tensors."""
    for vector_id, times in Counter(vector.id for vector in file.vectors).items():
        if times > 1:
            yield f"{times} vectors with the id `{vector_id}`; give each an id of its own"
    used = {note for vector in file.vectors for note in vector.notes}
    for note in sorted(file.notes.keys() - used):
        yield f"no vector uses the note `{note}`, at `$.notes`; remove it or use it"
    for index, vector in enumerate(file.vectors):
        where = f"`{vector.id}`, at `$.vectors[{index}]"
        for note in vector.notes:
            if note not in file.notes:
                yield f"unknown note `{note}` in {where}.notes`; explain it in `$.notes`"
        if not vector.notes:
            yield f"no note in {where}.notes`; say why the vector exists"
        if vector.refusal and vector.refusal.argument not in vector.inputs:
            yield (
                f"refused argument `{vector.refusal.argument}` is no input of {where}.refusal`; "
                f"name one of {', '.join(vector.inputs)}"
            )
        for place, tensor in tensors(vector):
            for problem, remedy in tensor_problems(tensor):
                yield f"{problem} in {where}.{place}`; {remedy}"


def tensors(vector: Vector) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a vector, each with its place in it."""
    values: dict[str, Value | None] = {f"inputs.{n}": value for n, value in vector.inputs.items()}
    for place, value in (values | {"expected": vector.expected}).items():
        if isinstance(value, Tensor):
            yield place, value
        elif isinstance(value, tuple):
            yield from ((f"{place}[{index}]", tensor) for index, tensor in enumerate(value))


def tensor_problems(tensor: Tensor) -> Iterator[tuple[str, str]]:
    """What contradicts itself in a tensor, and what to do about it."""
    dtype = tensor.dtype
    count = prod(tensor.shape)
    if len(tensor.data) != count:
        found = f"{len(tensor.data)} values for {count} elements"
        yield found, "make `data` and `shape` agree"
    if not is_float(dtype):
        if tensor.bits:
            yield f"bits of {dtype} values", "remove them: only floats have any"
        for value in tensor.data:
            # to Python, though not to the reader of a file, a boolean is an integer
            alike = isinstance(value, bool) == (dtype == "bool")
            if not (alike and isinstance(value, int) and value in _RANGES[dtype]):
                yield f"{value} is no {dtype}", "correct the value or the dtype"
        return
    if not tensor.bits and tensor.data:
        yield f"{dtype} values without bits", "run `python -m golden format`, which adds them"
    elif len(tensor.bits) != len(tensor.data):
        found = f"{len(tensor.bits)} bit patterns for {len(tensor.data)} values"
        yield found, "remove `bits` and run `python -m golden format`"
    else:
        for value, bits in zip(tensor.data, tensor.bits, strict=True):
            try:
                if not agree(value, bits, dtype):
                    yield f"{value} and {bits} are different {dtype}", "correct the wrong one"
            except ValueError as error:
                yield str(error), "correct the digits"


def reference_problems(
    file: VectorFile, family: str, contracts: Mapping[str, Contract]
) -> Iterator[str]:
    """Where the vectors of a file name contracts that are not theirs, or none.

    ``family``: the one in whose folder the file is; empty where folders are of no family.
    """
    for index, vector in enumerate(file.vectors):
        where = f"`{vector.id}`, at `$.vectors[{index}].contracts`"
        if not vector.contracts:
            yield f"no contract in {where}; name what the vector shows"
        for name in vector.contracts:
            contract = contracts.get(name)
            if contract is None:
                yield f"unknown contract `{name}` in {where}; correct it or add it to {CONTRACTS}"
            elif family not in ("", contract.family) or file.operation not in contract.operations:
                subject = f"{family} {file.operation}".strip()
                yield (
                    f"contract `{name}` is not about {subject}, in {where}; "
                    f"remove it or extend the contract"
                )


def repeated_problems(regressions: VectorFile, files: Iterable[VectorFile]) -> Iterator[str]:
    """Promoted counterexamples whose id is that of another vector of their operation."""
    vectors = {
        v.id for file in files if file.operation == regressions.operation for v in file.vectors
    }
    for vector in regressions.vectors:
        if vector.id in vectors:
            yield f"`{vector.id}` is the id of a vector, too; give it one of its own"


def coverage_problems(contracts: Iterable[Contract], files: Iterable[VectorFile]) -> Iterator[str]:
    """Contracts that no vector shows, and those that have both a vector and a reason for none."""
    shown_by = {
        name: f"{file.operation}/{vector.id}"
        for file in files
        for vector in file.vectors
        for name in vector.contracts
    }
    for contract in contracts:
        if contract.id not in shown_by and not contract.no_vector:
            yield f"no vector shows `{contract.id}`; write one, or say why not in `no_vector`"
        if contract.id in shown_by and contract.no_vector:
            yield (
                f"`{contract.id}` has a `no_vector` reason and the vector "
                f"{shown_by[contract.id]}; remove the reason"
            )


def lock_problems(locked: Ids, in_use: Ids) -> Iterator[str]:
    """Ids that are gone, that hold other inputs than they did, or that are not locked yet."""
    for name in sorted(locked.keys() | in_use.keys()):
        if name not in in_use:
            yield f"`{name}` is gone, but ids are never removed; put it back"
        elif name not in locked:
            yield f"`{name}` is not locked yet; run `python -m golden format`"
        elif locked[name] != in_use[name]:
            yield (
                f"the inputs of `{name}` changed, but ids are never reused; "
                f"restore them and give the new case an id of its own"
            )
