"""What the author of an implementation declares of it: a file of deviations, and what it covers."""

import datetime
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from golden.model import Contract, ContractId, ElementType, Layout, Operation, Tensor, Text
from kernels.catalog import Implementation, signatures
from suites.cases import Case, number

Declarable = Literal["failed", "crashed", "timed-out"]
Scalar = bool | int | float | str


class DeviationError(ValueError):
    """A file of deviations that cannot be used: one line that says what, where, what to do."""


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must hold of an input for a deviation to be about a case: all that is given here.

    ``equals`` to ``not_multiple_of`` are about a number, and of a tensor or of several about some
    one element. A limit is a number or the name of another input. ``dtype`` and ``layout`` are
    about tensors, of several about some one: any of those listed.
    """

    equals: Scalar | None = None
    at_least: float | str | None = None
    at_most: float | str | None = None
    multiple_of: float | str | None = None
    not_multiple_of: float | str | None = None
    dtype: tuple[ElementType, ...] = ()
    layout: tuple[Layout, ...] = ()


class Deviation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One departure of an implementation from one contract.

    What it is about: ``cases``, ids of vectors (``operation/id``) and of tests as pytest names
    them, or ``inputs``, a condition for each of some inputs, of ``operation`` or of any. How it
    fails: ``status``, and ``statement``, a regular expression that the statement of the failure
    contains. Why: ``reason`` and ``link``. Until when: through the day ``expires``, or while
    distributions have the ``versions`` given. An input is a parameter's name, a size as in
    ``scores.shape[3]``, or a difference of two such numbers, ``chunk_start - kv_offset``.
    """

    contract: ContractId
    statement: Text
    reason: str
    cases: tuple[Text, ...] = ()
    inputs: dict[str, Condition | Scalar] | None = None
    operation: Operation | None = None
    status: Declarable = "failed"
    link: str = ""
    expires: datetime.date | None = None
    versions: dict[str, str] = {}

    def is_about(self, case: Case) -> bool:
        """Whether its ``inputs`` and ``operation`` hold of a case."""
        if self.inputs is None or self.operation not in (None, case.operation):
            return False
        given = _Inputs(case)
        return all(given.fulfil(name, condition) for name, condition in self.inputs.items())

    def explains(self, status: str, statement: str) -> bool:
        """Whether a failure is the one declared."""
        return status == self.status and re.search(self.statement, statement) is not None

    def lapsed(self, today: datetime.date) -> str:
        """Why it is no longer in force; nothing where it is."""
        if self.expires is not None and today > self.expires:
            return f"expired on {self.expires}"
        for distribution, wanted in self.versions.items():
            version = metadata.version(distribution)
            if not SpecifierSet(wanted).contains(version, prereleases=True):
                return f"holds for {distribution} {wanted}, and {version} is installed"
        return ""


class DeviationFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of deviations of one implementation, the one of that name."""

    schema: Literal[1]
    implementation: Text
    deviation: Annotated[tuple[Deviation, ...], msgspec.Meta(min_length=1)]


# --- what holds of a case ------------------------------------------------------------------------

_TERM: Final = re.compile(r"(\w+)(?:\.shape\[(-?\d+)\])?")


def _divides(step: float, value: float) -> bool:
    return bool(step) and math.isfinite(value) and value % step == 0


# By the field of a condition: whether a number, or a word, is within its limit.
_TESTS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "equals": lambda value, limit: value == limit or (value != value and limit != limit),
    "at_least": lambda value, limit: value >= limit,
    "at_most": lambda value, limit: value <= limit,
    "multiple_of": lambda value, limit: _divides(limit, value),
    "not_multiple_of": lambda value, limit: math.isfinite(limit) and not _divides(limit, value),
}


class _Inputs:
    """The inputs of a case, those that it leaves out by their defaults."""

    def __init__(self, case: Case) -> None:
        parameters = signatures()[case.operation].parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._values: dict[str, Any] = {
            **defaults,
            **{name: number(value) for name, value in case.inputs.items()},
        }

    def fulfil(self, name: str, condition: Condition | Scalar) -> bool:
        if not isinstance(condition, Condition):
            condition = Condition(equals=condition)
        tensors = self._tensors(name)
        if condition.dtype and not any(tensor.dtype in condition.dtype for tensor in tensors):
            return False
        if condition.layout and not any(tensor.layout in condition.layout for tensor in tensors):
            return False
        limits = {test: getattr(condition, test) for test in _TESTS}
        limits = {test: self._limit(test, x) for test, x in limits.items() if x is not None}
        return not limits or any(
            all(_TESTS[test](value, limit) for test, limit in limits.items())
            for value in self._numbers(name)
            if not isinstance(value, str) or limits.keys() <= {"equals"}
        )

    def _limit(self, test: str, limit: Scalar) -> Any:
        """A limit that is the name of an input as its number; as NaN, which limits all, if none."""
        if test == "equals" or not isinstance(limit, str):
            return limit
        return next(self._numbers(limit), math.nan)

    def _numbers(self, name: str) -> Iterator[Any]:
        """The numbers that a name stands for: of tensors all elements, of nothing known none."""
        if " - " in name:
            parts = [list(self._numbers(part)) for part in name.split(" - ")]
            if all(len(part) == 1 and not isinstance(part[0], str) for part in parts):
                yield parts[0][0] - sum(part[0] for part in parts[1:])
            return
        match = _TERM.fullmatch(name)
        if match is None:
            return
        if match[2] is not None:
            axis = int(match[2])
            for tensor in self._tensors(match[1]):
                if -len(tensor.shape) <= axis < len(tensor.shape):
                    yield tensor.shape[axis]
        elif tensors := self._tensors(name):
            for tensor in tensors:
                yield from (float(x) if isinstance(x, str) else x for x in tensor.data)
        elif (value := self._values.get(name)) is not None:
            yield value

    def _tensors(self, name: str) -> list[Tensor]:
        value = self._values.get(name)
        return [
            x for x in (value if isinstance(value, tuple) else [value]) if isinstance(x, Tensor)
        ]


# --- files ---------------------------------------------------------------------------------------


def load(path: Path, shown: str, contracts: Mapping[str, Contract]) -> DeviationFile:
    """The file at ``path``, which messages call ``shown``. Raises DeviationError."""
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=DeviationFile)
    except OSError as error:
        raise DeviationError(
            f"{shown}: cannot be read, {error.strerror}; write it, or --write-deviations drafts one"
        ) from None
    except ValueError as error:  # msgspec raises ValueErrors of its own
        raise DeviationError(f"{shown}: {' '.join(str(error).split())}; correct it") from None
    for count, deviation in enumerate(file.deviation, 1):
        for problem in _problems(deviation, contracts):
            raise DeviationError(f"{shown}: deviation {count}: {problem}")
    return file


def _problems(deviation: Deviation, contracts: Mapping[str, Contract]) -> Iterator[str]:
    contract = contracts.get(deviation.contract)
    if contract is None:
        yield f"no contract `{deviation.contract}`; golden/contracts.toml has them all"
        return
    if not deviation.reason.strip():
        yield f"no reason for departing from `{contract.id}`; say why it does"
    if bool(deviation.cases) == (deviation.inputs is not None):
        yield "it needs `cases` or `inputs`, and not both; say what it is about"
    if deviation.operation is not None and deviation.inputs is None:
        yield "`operation` belongs to `inputs`; remove it"
    if deviation.operation not in (None, *contract.operations):
        yield f"`{contract.id}` is not about {deviation.operation}; correct the operation"
    if deviation.expires is None and not deviation.versions:
        yield "nothing ends it; set `expires` to a date, or `versions`"
    try:
        re.compile(deviation.statement)
    except re.error as error:
        yield f"`statement` is no regular expression, {error}; escape what is meant literally"
    for distribution, wanted in deviation.versions.items():
        try:
            SpecifierSet(wanted)
            metadata.version(distribution)
        except InvalidSpecifier:
            yield f'`{wanted}` is no range of versions; write it as in ">=1.2,<2"'
        except metadata.PackageNotFoundError:
            yield f"no distribution `{distribution}` is installed; correct `versions`"
    yield from _unknown_inputs(deviation, contract)


def _unknown_inputs(deviation: Deviation, contract: Contract) -> Iterator[str]:
    operations = [deviation.operation] if deviation.operation else contract.operations
    known = {name for operation in operations for name in signatures()[operation].parameters}
    for name, condition in (deviation.inputs or {}).items():
        named = [name]
        if isinstance(condition, Condition):
            limits = [getattr(condition, test) for test in _TESTS if test != "equals"]
            named += [limit for limit in limits if isinstance(limit, str)]
        for term in (part for each in named for part in each.split(" - ")):
            match = _TERM.fullmatch(term)
            if match is None or match[1] not in known:
                yield (
                    f"no operation of `{contract.id}` has an input `{term}`; "
                    f"name one of {', '.join(sorted(known))}"
                )


class Declared(NamedTuple):
    """A file of deviations, and what messages call it."""

    shown: str
    deviations: tuple[Deviation, ...]


def of_implementations(
    paths: Iterable[str],
    implementations: Sequence[Implementation],
    folder: Path,
    contracts: Mapping[str, Contract],
) -> dict[str, Declared]:
    """What is declared of each implementation, by its name.

    ``paths``: the files on the command line, from ``folder`` on. An implementation may name a file
    of its own. Raises DeviationError.
    """
    tested = {implementation.name: implementation for implementation in implementations}
    own = {str(each.deviations): each.name for each in implementations if each.deviations}
    found: dict[str, Declared] = {}
    for shown in [*own, *paths]:
        file = load(folder / shown, shown, contracts)
        name = file.implementation
        if name != own.get(shown, name) or name not in tested:
            raise DeviationError(
                f"{shown}: it is about the implementation {name}, which is not the one tested, "
                f"{own.get(shown) or ', '.join(tested)}; correct `implementation`, or --impl"
            )
        if name in found:
            raise DeviationError(
                f"{shown}: {found[name].shown} is about {name} already; make them one file"
            )
        for count, deviation in enumerate(file.deviation, 1):
            if not {*tested[name].operations} & {*contracts[deviation.contract].operations}:
                raise DeviationError(
                    f"{shown}: deviation {count}: {name} has no operation of "
                    f"`{deviation.contract}`; remove the deviation"
                )
        found[name] = Declared(shown, file.deviation)
    return found
