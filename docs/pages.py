"""What the pages here that are made have in common: a record, a table, a picture."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import msgspec
from matplotlib import pyplot as plt

from golden.record import Footer, Header, Line

SHOWN: Final = ("python", "torch", "triton")  # versions


def complete(path: Path, command: str) -> tuple[Header, Sequence[Line]]:
    """The header of a record that ``command`` leaves, and what lies between that and its end.

    Raises ValueError, in one line, where there is no complete one.
    """
    try:
        header, *lines = (
            msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; run `{command}` first") from error
    if not isinstance(header, Header) or not lines or not isinstance(lines[-1], Footer):
        raise ValueError(f"{path}: the run was cut short; run `{command}` again")
    return header, lines[:-1]


def revision(header: Header) -> str:
    """What was run: versions, and the commit."""
    versions = [f"{name} {header.versions[name]}" for name in SHOWN if name in header.versions]
    changed = ", with changes" if header.commit.endswith("+") else ""
    return f"{', '.join(versions)}; commit {header.commit[:12] or 'unknown'}{changed}"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A table, whose first ``left`` columns are words and the others figures."""
    sides = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, sides, *rows))


def begin_pictures(salt: str) -> None:
    """No window opens, and the same picture is the same bytes."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = salt


def save(chart: Any, path: Path) -> None:
    chart.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(chart)
