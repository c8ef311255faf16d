"""From the records of two sides, or of one, to what a page says."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from golden.files import load_contracts
from golden.record import Pair
from reports import conformance, deciding, figures, speed
from reports.conformance import GREEN, Tests
from reports.deciding import Missing
from reports.model import Conformance, Report, Side, Timing, Undecided
from reports.reading import RED, Record, RecordError, read, records_in

# What pytest's exit status says beside the verdicts, where it says more than that some failed.
EXIT_STATUS: Final = {2: "was interrupted", 3: "ended in an error of pytest", 4: "did not begin"}


def show(path: Path) -> Report:
    """One side by itself."""
    try:
        return _report(None, records_in(path), {}, (), ())
    except RecordError as error:
        return _unusable(error)


def compare(
    base: Path,
    head: Path,
    history: Path | None = None,
    *,
    commit: str = "",
    required: Sequence[str] = (),
    accepted: Sequence[str] = (),
) -> Report:
    """Head against base.

    ``history``: records of base against base. ``commit``: what head has to be of. ``required``:
    kinds of device that head has to have been measured on. ``accepted``: what labels accept.
    """
    try:
        before, now = records_in(base), records_in(head)
        _check_commits("BASE", before)
        _check_commits("HEAD", now, commit)
    except RecordError as error:
        return _unusable(error)
    nights = _nights(history) if history else ()
    limits = speed.limits((record.header.device, record.pairs) for record in nights)
    return _report(before, now, limits, required, accepted)


def _nights(history: Path) -> Iterator[Record]:
    """Nights that can be read: one of an older version is a night less, and stops nobody."""
    for path in sorted(history.rglob("*.jsonl")):
        try:
            yield read(path)
        except RecordError:
            continue


def _unusable(error: RecordError) -> Report:
    decision: Final = "unusable"
    headline, next_ = f"No verdict: {error}", "Nothing of these records counts."
    return Report(decision, headline, next_, deciding.EXIT[decision], None, None)


def _check_commits(side: str, records: Sequence[Record], wanted: str = "") -> None:
    """One side is one commit, and that which was asked for."""
    commits = {record.header.commit: record.path for record in records}
    if len(commits) > 1:
        several = ", ".join(sorted(commit[:12] or "none" for commit in commits))
        raise RecordError(f"{side}: records of several commits, {several}; keep those of one")
    for found, path in commits.items():
        if wanted and found != wanted:
            raise RecordError(
                f"{path}: of commit {found or 'unknown'}, not {wanted}; run that commit"
            )


def _report(
    base: Sequence[Record] | None,
    head: Sequence[Record],
    limits: Mapping[speed.Benchmark, speed.Limit],
    required: Iterable[str],
    accepted: Sequence[str],
) -> Report:
    contracts = load_contracts()
    before = conformance.tests_of(base) if base is not None else None
    now = conformance.tests_of(head)
    lines = list(conformance.findings(before, now, contracts))
    compiled, undecided = figures.resources(base or (), head)
    timings = list(_timings(head, limits))
    accuracy = conformance.accuracy(before, now, contracts)
    missing = [*_cut_short("base", base or ()), *_cut_short("head", head)]
    missing += _not_run(lines) if before else ()
    missing += _not_asked(before, now) if before else ()
    missing += _not_required(now, required)
    found = deciding.Found(
        compared=base is not None,
        head=now,
        figures=sum(len(record.measurements) + len(record.mutants) for record in head),
        conformance=lines,
        risen=sum(each.risen for each in accuracy),
        speed=timings,
        resources=compiled,
        memory=figures.memory(base or (), head),
        kills=list(figures.kills(base or (), head)),
        missing=missing,
        broken=list(_broken(head)),
    )
    decision, headline, next_ = deciding.decide(found, accepted)
    return Report(
        decision=decision,
        headline=headline,
        next=next_,
        exit_status=deciding.EXIT[decision],
        base=_side(base) if base is not None else None,
        head=_side(head),
        accepted=tuple(accepted),
        conformance=tuple(lines),
        accuracy=tuple(accuracy),
        speed=tuple(timings),
        resources=tuple(compiled),
        memory=tuple(found.memory),
        kills=tuple(found.kills),
        undecided=(*undecided, *_undecided_timings(timings)),
        cells=tuple(conformance.cells(now, contracts)),
        mutants=tuple(figures.mutants(head)),
        measured=tuple(line for record in head for line in record.measurements),
    )


def _side(records: Sequence[Record]) -> Side:
    headers = [record.header for record in records]
    versions: dict[str, str] = {}
    for header in headers:
        for tool, version in header.versions.items():
            known = versions.setdefault(tool, version)
            if version not in known.split(", "):
                versions[tool] = f"{known}, {version}"
    verdicts = [verdict for record in records for verdict in record.verdicts]
    return Side(
        records=tuple(str(record.path) for record in records),
        commit=headers[0].commit,
        devices=tuple(dict.fromkeys(header.device for header in headers)),
        versions=versions,
        seeds=tuple(dict.fromkeys(header.seed for header in headers)),
        verdicts=len(verdicts),
        cases=sum(verdict.cases for verdict in verdicts),
    )


# --- speed ---------------------------------------------------------------------------------------


def _timings(
    head: Iterable[Record], limits: Mapping[speed.Benchmark, speed.Limit]
) -> Iterator[Timing]:
    grouped: dict[speed.Benchmark, list[Pair]] = defaultdict(list)
    for record in head:
        for pair in record.pairs:
            grouped[record.header.device, pair.implementation, pair.test].append(pair)
    judged = [
        speed.judge(pairs, key[0], limits.get(key, speed.limit_of([])))
        for key, pairs in grouped.items()
    ]
    order = ("slower", "faster", "inconclusive", "same")
    yield from sorted(judged, key=lambda t: (order.index(t.verdict), not t.gates, t.test))


def _undecided_timings(timings: Iterable[Timing]) -> Iterator[Undecided]:
    for each in timings:
        if each.verdict == "inconclusive":
            yield Undecided(each.test, "speed", each.reason)


# --- what is missing -----------------------------------------------------------------------------


def _cut_short(side: str, records: Iterable[Record]) -> Iterator[Missing]:
    for record in records:
        if record.footer is None:
            yield Missing(f"{record.path} has no footer: the run of {side} was cut short")
        elif said := EXIT_STATUS.get(record.footer.exit_status):
            yield Missing(f"{record.path}: the run of {side} {said}")


def _not_run(lines: Iterable[Conformance]) -> Iterator[Missing]:
    """What base was measured by and head, though it was asked, could not run."""
    for line in lines:
        if line.finding == "not-run":
            yield Missing(
                f"{line.implementation} was not run on {line.device} ({line.detail})",
                line.device != "cpu",
            )


def _not_asked(base: Tests, head: Tests) -> Iterator[Missing]:
    for place in conformance.not_asked(base, head):
        yield Missing(
            f"head was not asked for {place.implementation} on {place.device}, and base was",
            place.device != "cpu",
        )


def _not_required(head: Tests, required: Iterable[str]) -> Iterator[Missing]:
    measured = {
        place.device
        for (place, _), (verdict, _) in head.verdicts.items()
        if verdict.status in GREEN | RED
    }
    for device in required:
        if device not in measured:
            yield Missing(f"nothing was run on {device}", device != "cpu")


def _broken(head: Iterable[Record]) -> Iterator[str]:
    """Runs that pytest calls failed and no verdict explains: a test about no implementation."""
    for record in head:
        failed = record.footer is not None and record.footer.exit_status == 1
        if failed and not any(verdict.status in RED for verdict in record.verdicts):
            yield f"tests fail that are about no implementation ({record.path})"
