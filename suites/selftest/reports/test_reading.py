"""A record is held to its type, to its size and to its own words."""

from collections.abc import Callable
from pathlib import Path

import pytest

from golden.record import Footer, Line
from reports import reading
from reports.reading import RecordError, read, records_in
from suites.selftest.reports.records import compiled, header, mutants, pairs, verdicts, write

LINES: list[Line] = [*verdicts(), *compiled(40, 0), *pairs(1, (0,), 2), *mutants()]


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = read(write(tmp_path / "a.jsonl", header(), LINES))
    assert record.header == header()
    found = [*record.verdicts, *record.measurements, *record.pairs, *record.mutants]
    assert found == LINES
    assert record.footer == Footer({"passed": 6}, 240, 0)


BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda text: "", "empty, so the run ended before its first verdict"),
    "foreign": (lambda text: "<xml/>\n", "line 1: JSON is malformed"),
    "other JSON": (lambda text: '{"tests": 3}\n', "line 1: no header of a record"),
    "no header": (lambda text: text.partition("\n")[2], "line 1: no header of a record"),
    "other schema": (
        lambda text: changed(text, '"schema":2', '"schema":1'),
        "line 1: schema 1, and this version reads 2",
    ),
    "unknown field": (
        lambda text: changed(text, '"cases":40', '"cases":40,"luck":1'),
        "line 2: Object contains unknown field `luck`",
    ),
    "unknown status": (
        lambda text: changed(text, '"status":"passed"', '"status":"fine"'),
        "line 2: Invalid enum value 'fine'",
    ),
    "wrong type": (
        lambda text: changed(text, '"cases":40', '"cases":"40"'),
        "line 2: Expected `int`, got `str`",
    ),
    "deep": (lambda text: text + "[" * 100_000 + "\n", "this is no record"),
    "second header": (lambda text: text.partition("\n")[0] + "\n" + text, "a second header"),
    "after the footer": (lambda text: text + text.split("\n")[1] + "\n", "after the footer"),
    "judged nothing": (
        lambda text: changed(text, '"cases":40', '"cases":0'),
        "line 2: passed without judging a case",
    ),
    "fewer cases than none": (
        lambda text: changed(
            changed(text, '"cases":40', '"cases":-1'), '"status":"passed"', '"status":"not-run"'
        ),
        "line 2: -1 cases",
    ),
    "beyond its bound": (
        lambda text: changed(text, '"error_ratio":0.25', '"error_ratio":1.5'),
        "passed with an |error| of 1.5 times its bound",
    ),
    "forged verdict": (
        lambda text: changed(text, '"status":"passed"', '"status":"failed"'),
        "the footer counts other verdicts than there are",
    ),
    "forged footer": (
        lambda text: changed(
            changed(text, '"status":"passed"', '"status":"failed"'),
            '{"passed":6}',
            '{"failed":1,"passed":5}',
        ),
        "exit status 0 in spite of failures",
    ),
    "long line": (
        lambda text: changed(text, '"detail":""', f'"detail":"{"x" * 10_000_000}"'),
        "line 2: longer than 256 KiB",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_no_record_is_named_in_one_line(fault: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", header(), LINES)
    change, reason = BROKEN[fault]
    path.write_text(change(path.read_text()))
    with pytest.raises(RecordError) as error:
        read(path)
    assert str(path) in str(error.value)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("lost", [1, 40, 200])
def test_a_run_that_was_cut_short_has_no_footer(lost: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", header(), LINES)
    path.write_bytes(path.read_bytes()[:-lost])
    record = read(path)
    assert record.footer is None
    assert record.verdicts == tuple(verdicts())


def test_a_folder_holds_several(tmp_path: Path) -> None:
    for name in ("b/c.jsonl", "a.jsonl"):
        write(tmp_path / name, header(), LINES)
    (tmp_path / "other.txt").write_text("no record")
    assert [record.path.name for record in records_in(tmp_path)] == ["a.jsonl", "c.jsonl"]


def test_a_folder_without_any_and_a_name_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record"):
        records_in(tmp_path)
    with pytest.raises(RecordError, match="no such file or folder"):
        records_in(tmp_path / "missing.jsonl")


def test_too_many_and_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", header(), LINES)
    monkeypatch.setattr(reading, "FILES", 2)
    with pytest.raises(RecordError, match="3 records, 2 at most"):
        records_in(tmp_path)
    monkeypatch.setattr(reading, "FILES", 3)
    monkeypatch.setattr(reading, "LARGEST", 2**10)
    with pytest.raises(RecordError, match="at most"):
        records_in(tmp_path)
