"""docs/performance.md: what was measured where, and what was not."""

from pathlib import Path

import pytest

from docs import performance
from golden.record import Header, Measurement, Verdict
from suites import recording
from suites.bench.figures import BYTES, COPYING, MEDIAN, RATIO, THROTTLED

SUBJECT = "scatter_topology_witnesses_ rows 32"


def record(path: Path, device: str, throttled: float = 0.0) -> Path:
    found = recording.Recording()
    found.verdicts.append(Verdict("test", "torch", (), "passed", 1, ""))
    values = {MEDIAN: 12.5, BYTES: 262144, RATIO: 1.5, COPYING: 8.33, THROTTLED: throttled}
    found.measurements += [
        Measurement("torch", SUBJECT, quantity, "cold eager", value)
        for quantity, value in values.items()
    ]
    header = Header(1, "", "a" * 40, {"torch": "2.13.0"}, device, 0, ("torch",), ())
    found.write(path, header, 0)
    return path


def test_without_a_gpu_the_page_says_so_first(tmp_path: Path) -> None:
    run = performance.read(record(tmp_path / "record.jsonl", "cpu (x86_64)"))
    text = performance.page([run])
    assert text.splitlines()[2].startswith("**Device figures are outstanding.**")
    assert "| `scatter_topology_witnesses_` | rows 32 | torch | cold eager | 12.5 | 1.5 |" in text
    tables = text.split("\n\n")
    (index,) = [i for i, part in enumerate(tables) if "| rows 32 | torch | cold" in part]
    assert "no GPU" in tables[index + 1]
    assert "**computed, not measured**" in text


def test_figures_of_a_gpu_are_of_that_gpu(tmp_path: Path) -> None:
    run = performance.read(record(tmp_path / "record.jsonl", "cuda:0 (NVIDIA H200)"))
    text = performance.page([run])
    assert "outstanding" not in text
    assert "Measured on cuda:0 (NVIDIA H200); torch 2.13.0; commit aaaaaaaaaaaa" in text


def test_a_throttled_figure_is_marked(tmp_path: Path) -> None:
    run = performance.read(record(tmp_path / "record.jsonl", "cuda:0 (NVIDIA H200)", 1.0))
    assert "cold eager (throttled) |" in performance.page([run])


def test_a_record_without_a_benchmark_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path / "record.jsonl", "cpu (x86_64)")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b"measurement" not in line))
    with pytest.raises(ValueError, match="no benchmark in it; run `tox -e bench`"):
        performance.read(path)


def test_the_page_that_is_kept_has_todays_floors() -> None:
    """They are computed from shapes and peaks: another shape, another page."""
    assert performance.floors() in performance.PAGE.read_text(encoding="utf-8")
