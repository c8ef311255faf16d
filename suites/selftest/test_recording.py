"""The tables that close a run."""

from golden.record import Measurement, Verdict
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
