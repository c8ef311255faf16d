"""What stands on a page, in words and in its order, whatever the format."""

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from reports.conformance import ORACLE
from reports.deciding import LABELS, PERF
from reports.model import Conformance, Report, Timing

FINDINGS: Final = {  # what a reader needs to hear of each, in a word or two
    "failed": "new failure",
    "changed": "fails differently",
    "known": "fails as before",
    "gone": "no longer tested",
    "unsupported": "newly unsupported",
    "stale-deviation": "stale deviation",
    "not-run": "not run",
}
PLAIN: Final = re.compile(r"\w[\w./:-]*", re.ASCII)
RERUN: Final = re.compile(r"python -m pytest( [\w./:=-]+)*", re.ASCII)
IMPLEMENTATION: Final = re.compile(r" --impl ([\w./:-]+)")  # as it was given, perhaps a file
FIGURE_WORDS: Final = {"code": "bytes of code"}


class Column(NamedTuple):
    """``code``: what a test or a kernel is called."""

    heading: str
    kind: Literal["words", "code", "number"] = "words"


@dataclass(frozen=True)
class Failure:
    """A case that failed, for a person to read and to run again."""

    contract: str
    title: str
    where: str
    shown: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A heading and a table, and the failures below it. ``folded``: open it to read it."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[str, ...]]
    failures: Sequence[Failure] = ()
    folded: bool = False


def sections(report: Report) -> list[Section]:
    """Those that have something to say."""
    every = (
        _conformance(report),
        _accuracy(report),
        _speed(report),
        _resources(report),
        _memory(report),
        _kills(report),
        _undecided(report),
        _matrix(report),
        _timings(report),
        _environment(report),
    )
    return [section for section in every if section.rows]


def context(report: Report) -> str:
    """One line: what was compared with what, where, and what was not measured at all."""
    head, base = report.head, report.base
    if head is None:
        return ""
    commits = [shown_commit(side.commit) for side in (base, head) if side is not None]
    parts = [" → ".join(commits), ", ".join(head.devices)]
    counts = f"{head.cases:,} cases in {head.verdicts:,} verdicts"
    if base is not None and (base.cases, base.verdicts) != (head.cases, head.verdicts):
        counts += f" (base {base.cases:,} in {base.verdicts:,})"
    parts.append(counts)
    if absent := list(_not_measured(report)):
        parts.append(f"not measured: {', '.join(absent)}")
    return " · ".join(parts)


def shown_commit(commit: str) -> str:
    """``0123456789ab``, ``0123456789ab with changes``, or ``unknown commit``."""
    return commit[:12] + (" with changes" if commit.endswith("+") else "") or "unknown commit"


def _not_measured(report: Report) -> Iterator[str]:
    quantities = {line.quantity for line in report.measured}
    if report.base is not None:
        if not report.speed:
            yield "speed"
        if "registers" not in quantities:
            yield "compiled kernels"
        if not quantities & {"peak MiB", "peak KiB"}:
            yield "memory"
    if not report.mutants:
        yield "mutants"


# --- conformance and accuracy --------------------------------------------------------------------


def _conformance(report: Report) -> Section:
    compared = report.base is not None
    statuses = ("base", "head") if compared else ()
    columns = "", "contract", "implementation", *statuses, "tests", "what"
    rows = [
        (
            FINDINGS.get(line.finding, line.finding) if compared else line.head,
            line.contract,
            _place(line.implementation, line.device),
            *((line.base, line.head) if compared else ()),
            f"{line.tests:,}",
            line.detail,
        )
        for line in report.conformance
    ]
    typed = _columns(columns, code=["contract"], number=["tests"])
    return Section("Conformance", typed, rows, list(_failures(report)))


def _failures(report: Report) -> Iterator[Failure]:
    """Each case that a person can read, once, though it be the worst of several contracts."""
    seen = set()
    for line in report.conformance:
        if line.finding in ("failed", "changed", "stale-deviation") and line.test not in seen:
            seen.add(line.test)
            yield Failure(
                line.contract,
                line.title,
                f"{_place(line.implementation, line.device)}: {line.test}",
                line.shown or line.detail,
                tuple(_commands(line)),
            )


def _commands(line: Conformance) -> Iterator[str]:
    """The test from any checkout, and the smallest case where the run was.

    What a record says is not to be run unseen: of a command it may have the words, and no shell.
    """
    if PLAIN.fullmatch(line.test.partition("[")[0]):
        command = ["python", "-m", "pytest", line.test, f"--seed={line.seed}"]
        if line.implementation not in ("", ORACLE):
            given = IMPLEMENTATION.search(line.rerun) if RERUN.fullmatch(line.rerun) else None
            command.append(f"--impl={given[1] if given else line.implementation}")
        if line.device != "cpu":
            command.append(f"--device={line.device}")
        yield shlex.join(command)
    if RERUN.fullmatch(line.rerun):
        yield f"{line.rerun}  # this case alone, where the run was or with its artifacts"


def _accuracy(report: Report) -> Section:
    columns = "", "contract", "implementation", "base", "head"
    rows = [
        (
            "risen",
            line.contract,
            _place(line.implementation, line.device),
            ratio(line.base),
            ratio(line.head),
        )
        for line in report.accuracy
        if line.risen
    ]
    typed = _columns(columns, code=["contract"], number=["base", "head"])
    return Section("Accuracy: largest |error| / bound", typed, rows)


# --- speed, machine code, memory, mutants --------------------------------------------------------

TIMING_COLUMNS: Final = (
    Column(""),
    Column("call", "code"),
    Column("base us", "number"),
    Column("head us", "number"),
    Column("change", "number"),
    Column("95 % interval", "number"),
    Column("limit", "number"),
    Column("pairs", "number"),
)


def _speed(report: Report) -> Section:
    rows = [_timing(line, report) for line in report.speed if line.verdict in ("slower", "faster")]
    return Section("Speed: confirmed changes", TIMING_COLUMNS, rows)


def _timings(report: Report) -> Section:
    rows = [_timing(line, report) for line in report.speed]
    return Section("All timings", TIMING_COLUMNS, rows, folded=True)


def _timing(line: Timing, report: Report) -> tuple[str, ...]:
    interval = ""
    if line.low is not None and line.high is not None:
        interval = f"{percent(line.low - 1)} … {percent(line.high - 1)}"
    verdict: str = line.verdict
    if verdict == "slower":
        verdict += _weight(line.gates, "a warning, without a history", report)
    return (
        verdict,
        line.test,
        figure(line.base_us),
        figure(line.head_us),
        percent(line.ratio - 1),
        interval,
        f"{line.limit:.0%}",
        str(line.pairs),
    )


def _weight(gates: bool, otherwise: str, report: Report) -> str:
    """Why something that looks bad does not stop a change."""
    if gates and PERF in report.accepted:
        return f", accepted ({LABELS[PERF]})"
    return "" if gates else f" ({otherwise})"


def _resources(report: Report) -> Section:
    columns = "", "kernel", "architecture", "what differs", "module"
    rows = [
        (
            "spills" + _weight(True, "", report)
            if line.gates
            else "more"
            if line.warns
            else "other",
            line.kernel,
            line.architecture,
            ", ".join(
                f"{FIGURE_WORDS.get(name, name.replace('_', ' '))} {old:g} → {new:g}"
                for name, (old, new) in line.figures.items()
            ),
            line.module,
        )
        for line in report.resources
    ]
    return Section("Compiled kernels", _columns(columns, code=["kernel", "module"]), rows)


def _memory(report: Report) -> Section:
    columns = "", "call", "implementation", "base MiB", "head MiB", "change"
    rows = [
        (
            "more" + _weight(True, "", report) if line.gates else "less",
            f"{line.subject}, {line.variant}",
            _place(line.implementation, line.device),
            figure(line.base),
            figure(line.head),
            percent(line.head / line.base - 1) if line.base else "",
        )
        for line in report.memory
    ]
    typed = _columns(columns, code=["call"], number=["base MiB", "head MiB", "change"])
    return Section("Peak memory", typed, rows)


def _kills(report: Report) -> Section:
    columns = "implementation", "base", "head", "survivors"
    rows = [
        (
            line.implementation,
            "" if line.base_of is None else f"{line.base_killed:,} of {line.base_of:,}",
            f"{line.killed:,} of {line.of:,}",
            ", ".join(line.survivors),
        )
        for line in report.kills
    ]
    return Section("Mutants killed", _columns(columns, code=["survivors"]), rows)


# --- the rest ------------------------------------------------------------------------------------


def _undecided(report: Report) -> Section:
    rows = [(line.what, line.metric, line.reason) for line in report.undecided]
    columns = "what", "of which", "why not"
    return Section("Not decided", _columns(columns, code=["what"]), rows)


def _matrix(report: Report) -> Section:
    places = list(dict.fromkeys((cell.implementation, cell.device) for cell in report.cells))
    cells = {(cell.contract, cell.implementation, cell.device): cell for cell in report.cells}
    rows = []
    for contract in dict.fromkeys(cell.contract for cell in report.cells):
        row = [contract]
        for place in places:
            cell = cells.get((contract, *place))
            row.append(
                f"{cell.status} {cell.cases:,} {ratio(cell.error_ratio)}".rstrip() if cell else ""
            )
        rows.append(tuple(row))
    headings = "contract", *(_place(*place) for place in places)
    columns = _columns(headings, code=["contract"])
    return Section(
        "All contracts: status, cases, largest |error| / bound", columns, rows, folded=True
    )


def _environment(report: Report) -> Section:
    sides = [side for side in (report.base, report.head) if side is not None]
    names = ["base", "head"][-len(sides) :] if sides else []
    lines: list[tuple[str, list[str]]] = [
        ("commit", [side.commit for side in sides]),
        ("devices", ["; ".join(side.devices) for side in sides]),
        ("seeds", [", ".join(map(str, side.seeds)) for side in sides]),
        ("records", [", ".join(side.records) for side in sides]),
    ]
    tools = sorted({tool for side in sides for tool in side.versions})
    lines += [(tool, [side.versions.get(tool, "") for side in sides]) for tool in tools]
    columns = Column(""), *(Column(name, "code") for name in names)
    rows = [(name, *values) for name, values in lines if sides]
    return Section("Environment", columns, rows, folded=True)


# --- words ---------------------------------------------------------------------------------------


def _columns(
    headings: Sequence[str], *, code: Collection[str] = (), number: Collection[str] = ()
) -> tuple[Column, ...]:
    return tuple(
        Column(each, "code" if each in code else "number" if each in number else "words")
        for each in headings
    )


def _place(implementation: str, device: str) -> str:
    return f"{implementation} on {device}" if implementation else device


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{share:+.1%}"


def figure(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
