"""docs/teeth.md: what it says of a run, what it refuses, and that it lists what there is."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from docs import teeth
from golden.record import Footer, Header, Line, Measurement, Mutant
from suites.mutation import bug_classes
from suites.mutation.honest import GENERATED, GIVEN

HEADER = Header(
    2,
    "",
    "a" * 40,
    {"python": "3.11.7", "torch": "2.13.0", "triton": "3.7.1"},
    "cpu",
    0,
    ("torch",),
    ("--matrix",),
)
KILLS: dict[str, tuple[tuple[str, ...], ...]] = {"segment_of": (("witness.arithmetic.exact",),)}
FOUND = [
    Mutant("torch", "a.py:f:width:1", "killed", ("a",), 4, 0.5, KILLS, ("segment_of/x",)),
    Mutant("torch", "a.py:f:width:2", "timed-out", ("a",), 10, 60.0),
    Mutant("torch", "a.py:g:axis:1", "survived", (), 50, 9.0),
    Mutant("cuda", "b.cu:g:axis:1", "equivalent", (), 50, 9.0),
]
QUANTITIES: dict[str, float] = {"runs": 2, "cases": 12345, "failures": 0, "error_ratio": 0.25}
MEASURED = [
    Measurement(variant, kind, quantity, "seeds 0 to 1", value)
    for variant in ("tiles", "double")
    for kind in (GENERATED, GIVEN)
    for quantity, value in QUANTITIES.items()
]


def record(path: Path, *lines: Line) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_the_page_says_what_a_run_came_to(tmp_path: Path) -> None:
    ended = Footer({}, 0, 1)
    found = teeth.read(record(tmp_path / "a", HEADER, *FOUND, ended), Mutant, "tox -e mutants")
    honest = teeth.read(record(tmp_path / "b", HEADER, *MEASURED, ended), Measurement, "it")
    text = teeth.page(FOUND, [found], [honest])
    assert "**2 of 3 wrong kernels are found: 66.7 %.** 1 more mutants are equivalent." in text
    assert "| `torch` | 3 | 2 | 0 | 0 | 1 | 7 | 10 | 30.2 | 60.0 |" in text
    assert "| `axis` | 2 | 0 | 1 | 0 | 1 | 0 | 0 | 0.0 | 0.0 |" in text
    assert "| `tiles` | 2 | 12,345 | 0 | 0.25 |" in text
    assert (
        "*cpu; python 3.11.7, torch 2.13.0, triton 3.7.1; commit aaaaaaaaaaaa; `--matrix`.*" in text
    )
    assert all(each.what in text for each in bug_classes.load())


def test_of_two_records_the_last_word_on_a_mutant_that_there_is_counts(tmp_path: Path) -> None:
    again = replace(FOUND[2], outcome="equivalent")
    runs = [
        teeth.read(record(tmp_path / "a", HEADER, *lines, Footer({}, 0, 0)), Mutant, "it")
        for lines in (FOUND, [again])
    ]
    names = {line.mutant for line in FOUND[1:]}
    assert teeth.mutants_of(runs, names) == [FOUND[1], again, FOUND[3]]


def campaigns(folder: Path, *seeds: int, failures: int = 0) -> list[teeth.Run]:
    """Of two seeds each, from one of those given."""
    found = [
        replace(line, value=failures) if line.quantity == "failures" else line for line in MEASURED
    ]
    return [
        teeth.read(
            record(folder / str(seed), replace(HEADER, seed=seed), *found, Footer({}, 0, 0)),
            Measurement,
            "it",
        )
        for seed in seeds
    ]


def test_a_campaign_goes_on_from_record_to_record(tmp_path: Path) -> None:
    text = "\n".join(teeth.campaign(campaigns(tmp_path, 0, 2, 4, failures=1)))
    assert "**12 full runs' worth of generated cases, 74,070 of them: 6 failures.**" in text
    assert "| `tiles` | 6 | 37,035 | 3 | 0.25 |\n| `double` | 6 | 37,035 | 3 | 0.25 |" in text
    assert "judged once a record: 74,070 of all variants, 6 failures" in text


def test_what_one_commit_came_to_on_one_machine_is_from_one_place() -> None:
    headers = (
        HEADER,
        replace(HEADER, commit="b" * 40),
        replace(HEADER, arguments=("-j", "2")),
        replace(HEADER, device="cuda"),
    )
    versions = "python 3.11.7, torch 2.13.0, triton 3.7.1"
    assert [*teeth.origins(teeth.Run(header, ()) for header in headers)] == [
        f"*cpu; {versions}; commit aaaaaaaaaaaa; `--matrix`, `-j 2`.*\n",
        f"*cpu; {versions}; commit bbbbbbbbbbbb; `--matrix`.*\n",
        f"*cuda; {versions}; commit aaaaaaaaaaaa; `--matrix`.*\n",
    ]


def test_no_seed_counts_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--honest: two records have seed 3; leave one out"):
        list(teeth.campaign(campaigns(tmp_path, 0, 2, 3)))


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path / "a", HEADER, *MEASURED, Footer({}, 0, 0))
    with pytest.raises(ValueError, match="nothing of `tox -e mutants` in it"):
        teeth.read(path, Mutant, "tox -e mutants")


def test_the_page_that_is_kept_lists_todays_classes_and_cheats() -> None:
    text = teeth.PAGE.read_text(encoding="utf-8")
    assert teeth.class_list() in text
    assert all(line in text for line in teeth.cheat_list())


def test_the_page_that_is_kept_has_the_campaign_that_is_kept() -> None:
    kept = sorted((teeth.HERE / "campaign").glob("*.jsonl"))
    runs = [teeth.read(path, Measurement, "it") for path in kept]
    text = teeth.PAGE.read_text(encoding="utf-8")
    assert all(part in text for part in teeth.campaign(runs))
