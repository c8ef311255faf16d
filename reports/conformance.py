"""Verdicts of two sides, contract by contract."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from golden.model import Contract
from golden.record import SEVERITY, Header, Verdict
from reports.model import Accuracy, Cell, Conformance, Finding
from reports.reading import RED, Record

GREEN: Final = frozenset({"passed", "deviates"})
RISE: Final = 0.05  # of a bound: the growth of an error that is worth a line
ORACLE: Final = "oracle"  # has a column of its own in every run, asked for or not
# In the order of a page.
ORDER: Final[tuple[Finding, ...]] = (
    "failed",
    "fixed",
    "changed",
    "stale-deviation",
    "gone",
    "unsupported",
    "not-run",
    "known",
)
GATES: Final = frozenset({"failed", "stale-deviation", "gone", "unsupported"})


class Place(NamedTuple):
    """Where a verdict belongs: one implementation on one kind of device."""

    implementation: str
    device: str


@dataclass(frozen=True)
class Tests:
    """The verdicts of one side by place and test, the worst of each, and the seed of its run.

    ``asked``: what its runs were about. ``complete``: whether none of them was cut short.
    """

    verdicts: Mapping[tuple[Place, str], tuple[Verdict, int]]
    asked: frozenset[Place]
    complete: bool
    by_contract: Mapping[tuple[str, Place], list[Verdict]] = field(init=False)

    def __post_init__(self) -> None:
        grouped: dict[tuple[str, Place], list[Verdict]] = defaultdict(list)
        for (place, _), (verdict, _) in self.verdicts.items():
            for contract in contracts_of(verdict):
                grouped[contract, place].append(verdict)
        object.__setattr__(self, "by_contract", grouped)


def kind_of_device(header: Header) -> str:
    """``cuda`` of ``cuda:0 (NVIDIA H200)``."""
    return header.device.partition(" ")[0].partition(":")[0]


def contracts_of(verdict: Verdict) -> tuple[str, ...]:
    """Its test where a verdict names no contract: a test took its process along, or times calls."""
    return verdict.contracts or (verdict.test,)


def tests_of(records: Iterable[Record]) -> Tests:
    found: dict[tuple[Place, str], tuple[Verdict, int]] = {}
    records, asked = list(records), set()
    for record in records:
        device = kind_of_device(record.header)
        names = {*record.header.implementations, ORACLE}
        asked |= {Place(name, device) for name in names}
        for verdict in record.verdicts:
            key = Place(verdict.implementation, device), verdict.test
            known = found.get(key)
            if known is None or severity(verdict) < severity(known[0]):
                found[key] = verdict, record.header.seed
    complete = all(record.footer is not None for record in records)
    return Tests(found, frozenset(asked), complete)


def severity(verdict: Verdict) -> int:
    """The smaller, the worse."""
    return SEVERITY.index(verdict.status)


def worst(verdicts: Iterable[Verdict]) -> str:
    return min(verdicts, key=severity).status


def largest_ratio(verdicts: Iterable[Verdict]) -> float | None:
    ratios = (verdict.error_ratio for verdict in verdicts)
    return max((ratio for ratio in ratios if ratio is not None), default=None)


# --- findings ------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """One test on both sides."""

    before: Verdict | None
    now: Verdict
    seed: int


def findings(
    base: Tests | None, head: Tests, contracts: Mapping[str, Contract]
) -> Iterator[Conformance]:
    """What a reviewer has to know of: a line a contract, place and finding.

    What could not be run has a line a place, for it is the place that has the reason.
    """
    grouped: dict[tuple[Finding, str, Place], list[Seen]] = defaultdict(list)
    for (place, test), (verdict, seed) in head.verdicts.items():
        before = base.verdicts.get((place, test), (None, 0))[0] if base else None
        finding = _finding(before, verdict, compared=base is not None)
        if finding is not None:
            for contract in ("",) if finding == "not-run" else contracts_of(verdict):
                grouped[finding, contract, place].append(Seen(before, verdict, seed))
    lines = [_line(*key, seen, contracts.get(key[1])) for key, seen in grouped.items()]
    if base and head.complete:
        lines += _gone(base, head, contracts)
    order = list(contracts)
    yield from sorted(lines, key=lambda line: _order(line, order))


def _order(line: Conformance, contracts: Sequence[str]) -> tuple[int, int, str, str, str]:
    known = contracts.index(line.contract) if line.contract in contracts else len(contracts)
    return ORDER.index(line.finding), known, line.contract, line.device, line.implementation


def _finding(before: Verdict | None, now: Verdict, *, compared: bool) -> Finding | None:
    if now.status == "stale-deviation":
        return "stale-deviation"
    if now.status in RED:
        if before is None or before.status not in RED:
            return "failed"
        return "known" if (before.status, before.detail) == (now.status, now.detail) else "changed"
    if now.status == "not-run":
        was_run = before is not None and before.status in GREEN | RED
        return "not-run" if was_run or not compared else None
    if now.status == "unsupported":
        return "unsupported" if before is not None and before.status in GREEN | RED else None
    return "fixed" if before is not None and before.status in RED else None


def _line(
    finding: Finding, contract: str, place: Place, seen: Sequence[Seen], known: Contract | None
) -> Conformance:
    before = [each.before for each in seen if each.before is not None]
    _, least, seed = min(seen, key=_to_read)
    return Conformance(
        finding=finding,
        contract=contract,
        title=known.statement if known else "",
        implementation=place.implementation,
        device=place.device,
        base=worst(before) if before else "",
        head=worst(each.now for each in seen),
        tests=len(seen),
        test=least.test,
        detail=least.detail,
        shown=least.shown,
        rerun=least.rerun,
        seed=seed,
        gates=finding in GATES,
    )


def _to_read(seen: Seen) -> tuple[bool, int, str]:
    """The least that shows something comes first."""
    return not seen.now.shown, len(seen.now.shown), seen.now.test


def _gone(base: Tests, head: Tests, contracts: Mapping[str, Contract]) -> Iterator[Conformance]:
    """Contracts by which base was measured and head is not, though it was asked."""
    for (contract, place), verdicts in base.by_contract.items():
        measured = [verdict for verdict in verdicts if verdict.status in GREEN | RED]
        if measured and place in head.asked and (contract, place) not in head.by_contract:
            known = contracts.get(contract)
            yield Conformance(
                finding="gone",
                contract=contract,
                title=known.statement if known else "",
                implementation=place.implementation,
                device=place.device,
                base=worst(measured),
                head="",
                tests=len(measured),
                test=measured[0].test,
                detail="head has no test of it",
                gates=True,
            )


def not_asked(base: Tests, head: Tests) -> list[Place]:
    """What base was measured by and head was not asked for."""
    measured = {place for (place, _), (verdict, _) in base.verdicts.items() if verdict.cases}
    return sorted(measured - head.asked)


# --- all cells -----------------------------------------------------------------------------------


def cells(head: Tests, contracts: Iterable[str]) -> Iterator[Cell]:
    """The contract matrix, in the order in which contracts are listed."""
    order = {contract: number for number, contract in enumerate(contracts)}
    for (contract, place), verdicts in sorted(
        head.by_contract.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0])
    ):
        if contract in order:
            yield Cell(
                contract,
                place.implementation,
                place.device,
                worst(verdicts),
                sum(verdict.cases for verdict in verdicts),
                largest_ratio(verdicts),
            )


def accuracy(base: Tests | None, head: Tests, contracts: Iterable[str]) -> list[Accuracy]:
    """Largest errors, those that have risen first and then the largest."""
    found = []
    for cell in cells(head, contracts):
        if cell.error_ratio is None:
            continue
        place = Place(cell.implementation, cell.device)
        before = base.by_contract.get((cell.contract, place), ()) if base else ()
        ratio = largest_ratio(before)
        risen = ratio is not None and cell.error_ratio > ratio + RISE
        found.append(Accuracy(cell.contract, *place, ratio, cell.error_ratio, risen))
    return sorted(found, key=lambda each: (not each.risen, -each.head))
