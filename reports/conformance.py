"""Verdicts of two sides, contract by contract."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from golden.model import Contract
from golden.record import SEVERITY, Header, Verdict
from reports.model import Accuracy, Cell, Conformance, Finding, Undecided
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
    """The verdicts of one side by place and test, the worst of each, and the seed of its run."""

    verdicts: Mapping[tuple[Place, str], tuple[Verdict, int]]
    asked: frozenset[Place]
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
    asked = set()
    for record in records:
        device = kind_of_device(record.header)
        names = {*record.header.implementations, ORACLE}
        asked |= {Place(name, device) for name in names}
        for verdict in record.verdicts:
            key = Place(verdict.implementation, device), verdict.test
            known = found.get(key)
            if known is None or severity(verdict) < severity(known[0]):
                found[key] = verdict, record.header.seed
    return Tests(found, frozenset(asked))


def severity(verdict: Verdict) -> int:
    """The smaller, the worse."""
    return SEVERITY.index(verdict.status)


def worst(verdicts: Iterable[Verdict]) -> str:
    return min(verdicts, key=severity).status


def largest_ratio(verdicts: Iterable[Verdict]) -> float | None:
    ratios = (verdict.error_ratio for verdict in verdicts)
    return max((ratio for ratio in ratios if ratio is not None), default=None)


# --- findings ------------------------------------------------------------------------------------


def findings(
    base: Tests | None, head: Tests, contracts: Mapping[str, Contract]
) -> Iterator[Conformance]:
    """What a reviewer has to know of, a line a contract, place and finding, the worst first."""
    grouped: dict[tuple[Finding, str, Place], list[tuple[Verdict, int]]] = defaultdict(list)
    for (place, test), (verdict, seed) in head.verdicts.items():
        before = base.verdicts.get((place, test), (None, 0))[0] if base else None
        finding = _finding(before, verdict, compared=base is not None)
        for contract in contracts_of(verdict) if finding else ():
            grouped[finding, contract, place].append((verdict, seed))  # type: ignore[index]
    for contract, place in _gone(base, head) if base else ():
        grouped["gone", contract, place] = []
    order = list(contracts)
    for (finding, contract, place), found in sorted(
        grouped.items(), key=lambda item: _order(item[0], order)
    ):
        yield _line(finding, contract, place, found, base, head, contracts.get(contract))


def _order(key: tuple[Finding, str, Place], contracts: Sequence[str]) -> tuple[int, int, str, str]:
    finding, contract, place = key
    known = contracts.index(contract) if contract in contracts else len(contracts)
    return ORDER.index(finding), known, contract, f"{place.device} {place.implementation}"


def _finding(before: Verdict | None, now: Verdict, *, compared: bool) -> Finding | None:
    if now.status == "stale-deviation":
        return "stale-deviation"
    if now.status in RED:
        if before is None or before.status not in RED:
            return "failed"
        return "known" if (before.status, before.detail) == (now.status, now.detail) else "changed"
    if now.status == "unsupported":
        return "unsupported" if before is not None and before.status != "unsupported" else None
    if now.status == "not-run":
        return "not-run" if before is None or before.status in GREEN else None
    return "fixed" if before is not None and before.status in RED else None


def _gone(base: Tests, head: Tests) -> Iterator[tuple[str, Place]]:
    """Contracts by which base was measured and head is not, though it was asked."""
    for (contract, place), verdicts in base.by_contract.items():
        measured = any(verdict.status in GREEN | RED for verdict in verdicts)
        if measured and place in head.asked and (contract, place) not in head.by_contract:
            yield contract, place


def _line(
    finding: Finding,
    contract: str,
    place: Place,
    found: Sequence[tuple[Verdict, int]],
    base: Tests | None,
    head: Tests,
    known: Contract | None,
) -> Conformance:
    before = base.by_contract.get((contract, place), []) if base else []
    now = head.by_contract.get((contract, place), [])
    least: tuple[Verdict | None, int] = (None, 0)
    if found:
        least = min(found, key=lambda each: (not each[0].shown, len(each[0].shown), each[0].test))
    verdict, seed = least
    return Conformance(
        finding=finding,
        contract=contract,
        title=known.statement if known else "",
        implementation=place.implementation,
        device=place.device,
        base=worst(before) if before else "",
        head=worst(now) if now else "",
        tests=len(found),
        test=verdict.test if verdict else "",
        detail=verdict.detail if verdict else "",
        shown=verdict.shown if verdict else "",
        rerun=verdict.rerun if verdict else "",
        seed=seed,
        gates=finding in GATES,
    )


def not_comparable(base: Tests, head: Tests) -> Iterator[Undecided]:
    """What base was measured by and head was not asked for."""
    measured = {place for (place, _), (verdict, _) in base.verdicts.items() if verdict.cases}
    devices = {place.device for place in head.asked}
    for place in sorted(measured - head.asked):
        missing = place.implementation if place.device in devices else "anything"
        yield Undecided(
            f"{place.implementation} on {place.device}",
            "conformance",
            f"head was not asked for {missing} on {place.device}",
        )


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
