"""The kinds of bugs that kernels of this sort are known to have, and what finds each here.

`bug_classes.toml` has them all. An entry is ``planted``: the change of one of our files that makes
exactly that bug, and the test that must fail of it; or ``shown``: a test of the suite itself plants
it already; or ``absent``: no operation of the specification can have it, or not without a GPU.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kernels import catalog
from suites.mutation.edits import changed

PATH: Final = Path(__file__).with_suffix(".toml")


class Class(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``what`` goes wrong, in a sentence; ``link``: where it did, in public."""

    name: str
    what: str
    link: str = ""


class Planted(Class, frozen=True, kw_only=True):
    """``changes``: what the ``file`` below `kernels` says, once, and what is to stand there.

    ``test``: a test of the main job, called with ``parameters``; it checks each of the
    ``contracts``. ``says``: a regular expression, of what it then says.
    """

    file: str
    changes: tuple[tuple[str, str], ...]
    contracts: tuple[str, ...]
    test: str
    parameters: dict[str, str | int | float] = {}
    says: str


class Shown(Class, frozen=True, kw_only=True):
    """``test``: a test of the suite itself, or an example of one, which plants the bug."""

    test: str


class Absent(Class, frozen=True, kw_only=True):
    """``why`` it cannot be here, and what would find it."""

    why: str


class BugClasses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    planted: tuple[Planted, ...]
    shown: tuple[Shown, ...]
    absent: tuple[Absent, ...]

    def __iter__(self) -> Iterator[Planted | Shown | Absent]:
        yield from self.planted
        yield from self.shown
        yield from self.absent


def load() -> BugClasses:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads(PATH.read_text(encoding="utf-8")), BugClasses)


def plant(entry: Planted, folder: Path) -> catalog.Implementation:
    """The implementation with the bug, by way of a file in ``folder``, which is on the path."""
    name = "planted_" + re.sub(r"\W+", "_", entry.name)
    text = changed(entry.name, entry.file, entry.changes)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return catalog.load(name)
