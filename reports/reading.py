"""Records in: typed, bounded and held to their own words, as a stranger may have made them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from golden.record import (
    SCHEMA,
    Footer,
    Header,
    Line,
    Measurement,
    Mutant,
    Pair,
    Verdict,
)
from reports.text import cut

LARGEST: Final = 64 * 2**20  # bytes a side: fifty times the record of the main job
LONGEST: Final = 2**18  # bytes of a line; what is shown of a failure takes some thousands
FILES: Final = 200  # records a side
RED: Final = frozenset({"harness-error", "crashed", "timed-out", "failed", "stale-deviation"})
AGAIN: Final = "run it again"


class RecordError(ValueError):
    """A file that is no record to rely on: one line that says what, where and what to do."""


@dataclass(frozen=True)
class Record:
    """What one run left. ``footer`` is None where the run was cut short."""

    path: Path
    header: Header
    verdicts: tuple[Verdict, ...]
    measurements: tuple[Measurement, ...]
    pairs: tuple[Pair, ...]
    mutants: tuple[Mutant, ...]
    footer: Footer | None


def records_in(path: Path) -> list[Record]:
    """The record of that name, or every one in the folder of that name. Raises RecordError."""
    if not path.exists():
        raise RecordError(f"{path}: no such file or folder; {AGAIN}, or name another record")
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise RecordError(f"{path}: no record (*.jsonl) in this folder; {AGAIN}")
    if len(files) > FILES:
        raise RecordError(f"{path}: {len(files)} records, {FILES} at most; name a smaller folder")
    if (size := sum(file.stat().st_size for file in files)) > LARGEST:
        raise RecordError(f"{path}: {_mib(size)}, {_mib(LARGEST)} at most; {AGAIN}")
    return [read(file) for file in files]


def read(path: Path) -> Record:
    """One record. Raises RecordError for a file that is none, or that contradicts itself."""
    try:
        with path.open("rb") as file:
            return _sorted(path, _lines(path, file))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read, {error.strerror}; name another file") from None


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, Line]]:
    """Each line with its place, the header's schema looked at before anything else."""
    number = 0
    while text := file.readline(LONGEST + 1):
        number += 1
        place = f"{path}, line {number}"
        if len(text) > LONGEST:
            raise RecordError(f"{place}: longer than {LONGEST // 1024} KiB; this is no record")
        if not text.endswith(b"\n"):
            return  # cut short while it was written: without a footer, which says so
        try:
            if number == 1:
                _check_schema(place, text)
            yield place, msgspec.json.decode(text, type=Line)
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecordError):
                raise
            reason = cut(" ".join(str(error).split()), 120)
            raise RecordError(
                f"{place}: {reason}; this is no record, or one of another version"
            ) from None


class _Schema(msgspec.Struct, frozen=True):
    type: str = ""
    schema: int = 0


def _check_schema(place: str, text: bytes) -> None:
    header = msgspec.json.decode(text, type=_Schema)
    if header.type != "header":
        raise RecordError(f"{place}: no header of a record; name a file that `--record` wrote")
    if header.schema != SCHEMA:
        raise RecordError(
            f"{place}: schema {header.schema}, and this version reads {SCHEMA}; {AGAIN} with it"
        )


def _sorted(path: Path, lines: Iterator[tuple[str, Line]]) -> Record:
    header: Header | None = None
    footer: Footer | None = None
    verdicts, measurements = list[Verdict](), list[Measurement]()
    pairs, mutants = list[Pair](), list[Mutant]()
    for place, line in lines:
        if footer is not None:
            raise RecordError(f"{place}: a line after the footer; {AGAIN}")
        match line:
            case Header() if header is not None:
                raise RecordError(f"{place}: a second header; one record a file")
            case Header():
                header = line
            case Verdict():
                verdicts.append(_consistent(place, line))
            case Measurement():
                measurements.append(line)
            case Pair():
                pairs.append(line)
            case Mutant():
                mutants.append(line)
            case Footer():
                footer = line
    if header is None:
        raise RecordError(f"{path}: empty, so the run ended before its first verdict; {AGAIN}")
    if footer is not None:
        _check_footer(path, footer, verdicts)
    kept = tuple(verdicts), tuple(measurements), tuple(pairs), tuple(mutants)
    return Record(path, header, *kept, footer)


def _consistent(place: str, verdict: Verdict) -> Verdict:
    """What the suite never writes was written by something else."""
    ratio = verdict.error_ratio
    if verdict.status == "passed" and verdict.cases < 1:
        raise RecordError(f"{place}: passed without judging a case; {AGAIN}")
    if verdict.status == "passed" and ratio is not None and not 0 <= ratio <= 1:
        raise RecordError(f"{place}: passed with an |error| of {ratio:g} times its bound; {AGAIN}")
    if verdict.cases < 0:
        raise RecordError(f"{place}: {verdict.cases} cases; {AGAIN}")
    return verdict


def _check_footer(path: Path, footer: Footer, verdicts: list[Verdict]) -> None:
    counted = Counter(verdict.status for verdict in verdicts)
    if dict(counted) != footer.statuses or sum(v.cases for v in verdicts) != footer.cases:
        raise RecordError(f"{path}: the footer counts other verdicts than there are; {AGAIN}")
    if footer.exit_status == 0 and counted.keys() & RED:
        raise RecordError(f"{path}: exit status 0 in spite of failures; {AGAIN}")
