"""From what tests attach to the record, and the tables that close a run."""

from pathlib import Path

import msgspec

from golden.record import Footer, Header, Line, Measurement, Mutant, Pair, Verdict
from suites import recording


def test_each_kind_of_measurement_has_a_table() -> None:
    """Those of a kind together, whatever came between; a gap where one was not made."""
    run = recording.Recording()
    run.measurements = [
        Measurement("torch", "L 128", "recall", "policy", 0.5),
        Measurement("torch", "find_blocks_chunked", "undecidable", "float32", 0.002),
        Measurement("triton", "L 64", "coverage", "policy", 1.0),
        Measurement("torch", "4 segments", "speed", "warm", 7.0),
    ]
    tables = {title: recording.render(table, colour=False) for title, table in run.figures()}
    real_rows, speed, undecidable = (tables[title] for title in sorted(tables))
    assert sorted(tables) == [recording.REAL_ROWS.title, "speed", recording.UNDECIDABLE.title]
    assert [line.split() for line in real_rows.splitlines()[4:]] == [
        ["L", "64", "triton", "1.000"],
        ["L", "128", "torch", "0.500"],
    ]
    assert "0.002" in undecidable
    assert "subject" in speed
    assert "7.000" in speed


def test_nothing_of_the_matrix_is_cut_off() -> None:
    """Neither a figure in the last of many columns nor what looks like markup."""
    run = recording.Recording()
    names = [f"implementation-{n}" for n in range(8)]
    run.verdicts = [
        Verdict("test", name, ("a.contract-[red]",), "passed", 123_456, "", 0.25) for name in names
    ]
    matrix = recording.render(run.matrix(["a.contract-[red]"], names))
    assert matrix.splitlines()[-1].split() == [
        "a.contract-[red]",
        *["passed", "123,456", "0.25"] * 8,
    ]


def test_every_line_reaches_the_record_whatever_the_order(tmp_path: Path) -> None:
    """As report properties carry them; what others attached is not ours."""
    lines: list[recording.Attached] = [
        Verdict("a", "torch", ("c",), "passed", 3, ""),
        Verdict("b", "torch", (), "failed", 1, "why", shown="what", rerun="how"),
        Measurement("torch", "s", "q", "v", 1.0),
        Pair("a", "torch", "confirmation", 1, "x", "y", 1.0, 2.0),
        Pair("a", "torch", "screen", 1, "x", "y", 1.0, 2.0, "power cap"),
        Pair("a", "torch", "screen", 2, "x", "y", 1.0, 2.0),
        Mutant("torch", "m", "killed", ("c",), 4, 0.5),
        Mutant("torch", "n", "survived", (), 40, 5.0),
    ]
    header = Header(2, "", "x", {}, "cpu", 0, ("torch",), ())
    files = []
    for name, order in (("a", lines), ("b", lines[::-1])):
        run = recording.Recording()
        run.add([("other", 1), *map(recording.attach, order)])
        run.write(tmp_path / name, header, 1)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]
    read = [msgspec.json.decode(line, type=Line) for line in files[0].splitlines()]
    assert read == [header, *lines, Footer({"failed": 1, "passed": 1}, 4, 1)]
