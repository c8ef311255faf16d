"""What is closed, what is not, and what is said of it; and that every contract is spoken of."""

import re

import msgspec
import pytest

from golden import files
from golden.model import Operation, Vector
from golden.record import Mutant
from suites.mutation import closure
from suites.mutation.closure import Closure, Excuse


def killed(name: str, kills: dict[str, tuple[tuple[str, ...], ...]], *vectors: str) -> Mutant:
    return Mutant("torch", name, "killed", ("a",), 1, 0.1, kills, vectors)


def test_a_contract_is_alone_where_all_that_fails_of_an_operation_is_about_it() -> None:
    found = [
        killed("one", {"segment_of": (("a",), ("b",)), "random_null": (("b",),)}),
        killed("two", {"segment_of": (("a", "c"), ("b", "c"))}),
        killed("three", {}),
        msgspec.structs.replace(killed("four", {"segment_of": (("a",),)}), implementation="cuda"),
    ]
    assert closure.found_alone(found, "abc") == {"a": [], "b": ["one"], "c": ["two"]}


def test_a_note_is_shown_by_any_vector_of_it() -> None:
    every: list[tuple[Operation, Vector]] = [
        ("segment_of", vector("x", "n", "m")),
        ("segment_of", vector("y", "n")),
    ]
    found = [killed("one", {}, "segment_of/y"), killed("two", {}, "random_null/x")]
    assert closure.found_by_note(found, every) == {"segment_of/n": ["one"], "segment_of/m": []}


def vector(id_: str, *notes: str) -> Vector:
    return Vector(id_, ("a.b",), notes, {}, 0)


@pytest.mark.parametrize(
    ("excused", "says"),
    [
        ((), ["b: no mutant shows what it is for; make one in closure.toml, or say why none can"]),
        (("b",), []),
        (("a", "b"), ["a: one shows what it is for; remove it from closure.toml"]),
        (("b", "c"), ["c: there is no such name; mend closure.toml"]),
    ],
)
def test_what_is_open_or_stale_is_a_line(
    excused: tuple[str, ...], says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closure, "load", lambda: Closure(contracts=(Excuse(excused, "a reason"),)))
    found = [killed("one", {"segment_of": (("a",),)})]
    assert closure.gaps(found, "ab", []) == says


def test_ours_speaks_of_contracts_and_notes_that_there_are() -> None:
    known = closure.load()
    contracts = files.load_contracts()
    notes = {f"{op}/{note}" for op, vector in files.all_vectors() for note in vector.notes}
    assert {each.contract for each in known.made} <= {*contracts}
    for excuses, names in ((known.contracts, {*contracts}), (known.notes, notes)):
        excused = [name for excuse in excuses for name in excuse.named]
        assert len(excused) == len({*excused})
        assert {*excused} <= names
        assert all(re.match(r"[A-Z].+\.$", excuse.reason) for excuse in excuses)
