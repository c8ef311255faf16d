"""An edit of a file's text, and which of a rule's many are made."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from zlib import crc32


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
