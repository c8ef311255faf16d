"""Edits of a file's text: by rule, and which of a rule's many are made; and by hand."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final
from zlib import crc32

from kernels import catalog

KERNELS: Final = Path(catalog.__file__).parent


@cache
def text_of(file: str) -> str:
    """What a file below `kernels` says."""
    return (KERNELS / file).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Edit:
    """``text`` takes the place of the characters [start, end), by a rule and within a function.

    ``number`` counts the edits of one rule in one function, from 1, in the order of the text.
    """

    function: str
    rule: str
    start: int
    end: int
    text: str
    number: int = 0

    @property
    def site(self) -> tuple[str, str]:
        return self.function, self.rule

    def applied(self, text: str) -> str:
        return text[: self.start] + self.text + text[self.end :]


def numbered(edits: Iterable[Edit]) -> Iterator[Edit]:
    counts: Counter[tuple[str, str]] = Counter()
    for edit in edits:
        counts[edit.site] += 1
        yield replace(edit, number=counts[edit.site])


def chosen(edits: Iterable[Edit], text: str) -> list[Edit]:
    """One edit of each rule in each function, in the order of the text.

    Which one follows from the text that is replaced and from nothing else, so that a change of
    another line chooses no other.
    """

    def draw(edit: Edit) -> int:
        return crc32(f"{edit.rule} {text[edit.start : edit.end]} {edit.text}".encode())

    drawn: dict[tuple[str, str], Edit] = {}
    for edit in edits:
        drawn[edit.site] = min(drawn.get(edit.site, edit), edit, key=draw)
    return sorted(drawn.values(), key=lambda edit: (edit.start, edit.rule))


def changed(name: str, file: str, changes: Iterable[tuple[str, str]]) -> str:
    """A file below `kernels` with each change made: what it says once, and what is to stand there.

    Raises ValueError, with the ``name`` of what asks for it, where the file says something else.
    """
    text = text_of(file)
    for before, after in changes:
        if text.count(before) != 1:
            raise ValueError(
                f"{name}: {file} says {before!r} {text.count(before)} times, not once; "
                "mend the entry"
            )
        text = text.replace(before, after)
    return text
