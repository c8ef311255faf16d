"""What pages in docs/ that are made take from a record, and the table of numerics.md."""

from pathlib import Path

import msgspec
import pytest

from docs import numerics, pages
from golden.record import Footer, Header, Line, Verdict

HEADER = Header(1, "", "a" * 40, {}, "cpu", 0, ("torch",), ())
PASSED = Verdict("a", "torch", (), "passed", 1, "")
ENDED = Footer({}, 1, 0)


def record(path: Path, *lines: Line) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_a_complete_record_is_read(tmp_path: Path) -> None:
    path = record(tmp_path / "record.jsonl", HEADER, PASSED, PASSED, ENDED)
    assert pages.complete(path, "it") == (HEADER, [PASSED, PASSED])


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "not enough values to unpack .* run `it` first"),
        ([HEADER], "the run was cut short; run `it` again"),
        ([HEADER, PASSED], "the run was cut short; run `it` again"),
        ([PASSED, ENDED], "the run was cut short; run `it` again"),
    ],
)
def test_what_is_no_complete_record_is_refused(
    lines: list[Line], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        pages.complete(record(tmp_path / "record.jsonl", *lines), "it")


def test_where_there_is_no_record_it_is_said_what_leaves_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No such file .* run `it` first"):
        pages.complete(tmp_path / "record.jsonl", "it")


@pytest.mark.parametrize(
    ("commit", "versions", "says"),
    [
        (
            "a" * 40,
            {"torch": "2", "python": "3", "ptxas": "12"},
            "python 3, torch 2; commit " + 12 * "a",
        ),
        ("a" * 40 + "+", {"python": "3"}, "python 3; commit aaaaaaaaaaaa, with changes"),
        ("", {"python": "3"}, "python 3; commit unknown"),
    ],
)
def test_what_was_run_is_said(commit: str, versions: dict[str, str], says: str) -> None:
    assert pages.revision(msgspec.structs.replace(HEADER, commit=commit, versions=versions)) == says


def verdict(test: str, implementation: str, ratio: float | None) -> Verdict:
    return Verdict(test, implementation, (), "passed", 1, "", ratio)


def test_the_largest_ratio_of_an_operation_and_an_implementation_counts(tmp_path: Path) -> None:
    path = record(
        tmp_path / "record.jsonl",
        HEADER,
        verdict("a.py::test_any[triton-xattn_estimate]", "triton", 0.25),
        verdict("a.py::test_vector[xattn_estimate/of-a-vector-torch]", "torch", 0.75),
        verdict("a.py::test_any[torch-xattn_estimate]", "torch", 0.5),
        verdict("a.py::test_exact[torch-xattn_estimate]", "torch", None),
        verdict("a.py::test_any[torch-merge_softmax_stats]", "torch", 0.125),
        verdict("a.py::test_of_several[cuda]", "cuda", 0.99),
        verdict("a.py::test_any[mine-softmax_fuse_block_sum]", "mine", 0.99),
        ENDED,
    )
    assert numerics.table(path).splitlines() == [
        "| operation | torch | triton |",
        "| --- | ---: | ---: |",
        "| `merge_softmax_stats` | 0.12 |  |",
        "| `xattn_estimate` | 0.75 | 0.25 |",
    ]
