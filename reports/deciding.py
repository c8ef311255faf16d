"""The first line of a page: what everything below it comes to, and what to do next."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from reports.conformance import GREEN, ORACLE, Place, Tests
from reports.model import Conformance, Decision, Finding, Kills, Memory, Resource, Timing
from reports.reading import RED
from reports.text import cut

# Pytest's exit statuses; what cannot be read is like a wrong command line.
EXIT: Final[dict[Decision, int]] = {
    "passed": 0,
    "warned": 0,
    "failed": 1,
    "unusable": 2,
    "undecided": 5,
}
PERF: Final = "perf"  # of what a label can accept: speed, memory, compiled figures
GPU: Final = "gpu"  # that nothing was run on one
LABELS: Final = {PERF: "perf-accepted", GPU: "gpu-waived"}
NAMED: Final = 4  # implementations in the first line

GATE_WORDS: Final[dict[Finding, tuple[str, str]]] = {  # of one, of several
    "failed": ("contract fails", "contracts fail"),
    "stale-deviation": ("deviation is stale", "deviations are stale"),
    "gone": ("contract is no longer tested", "contracts are no longer tested"),
    "unsupported": ("contract is no longer supported", "contracts are no longer supported"),
}


class Missing(NamedTuple):
    """Something by which head should have been measured, and why it was not."""

    reason: str
    on_gpu: bool = False


@dataclass(frozen=True)
class Found:
    """All that a decision is about. ``broken``: runs of head that failed beside their verdicts."""

    compared: bool
    head: Tests
    figures: int
    conformance: Sequence[Conformance]
    risen: int
    speed: Sequence[Timing]
    resources: Sequence[Resource]
    memory: Sequence[Memory]
    kills: Sequence[Kills]
    missing: Sequence[Missing]
    broken: Sequence[str]


def decide(found: Found, accepted: Iterable[str]) -> tuple[Decision, str, str]:
    """Decision, headline and what to do next. What was not measured is never ``passed``."""
    conformance, perf = [*_conformance(found), *found.broken], list(_performance(found))
    if conformance:
        return (
            "failed",
            f"Action needed: {', '.join(conformance + perf)}",
            "Fix what is listed first. A departure that is meant is declared as a deviation and "
            "reviewed; no label accepts it.",
        )
    if perf and PERF not in accepted:
        return (
            "failed",
            f"Action needed: {', '.join(perf)}",
            f"Make up for it, or say why in the pull request and label it `{LABELS[PERF]}`.",
        )
    waived = [each.reason for each in found.missing if each.on_gpu and GPU in accepted]
    missing = [each for each in found.missing if each.reason not in waived]
    if missing or not _measured(found):
        idle = (line.detail for line in found.conformance if line.finding == "not-run")
        reason = missing[0].reason if missing else next(idle, "no test was run")
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        word = "Not decided" if _measured(found) else "Nothing was measured"
        next_ = "Run it again where that is not missing."
        if any(each.on_gpu for each in missing):
            next_ += f" To do without a GPU, say why and label it `{LABELS[GPU]}`."
        return "undecided", f"{word}: {reason}{more}", next_
    seen = f"No {'regression' if found.compared else 'failure'} in {_seen(found)}"
    accepts = [f"{each} (accepted)" for each in (*waived, *perf)]
    if warnings := [*accepts, *_warnings(found)]:
        return "warned", f"{seen}, but {', '.join(warnings)}", "Merge if what is listed is meant."
    next_ = (
        "Merge." if found.compared else "Nothing; `python -m reports compare` sets it on a base."
    )
    return "passed", seen, next_


def _conformance(found: Found) -> Iterator[str]:
    for finding, (one, several) in GATE_WORDS.items():
        lines = [line for line in found.conformance if line.finding == finding]
        if lines:
            names = _names(line.implementation or line.test for line in lines)
            count = len({line.contract for line in lines})
            yield f"{count} {one if count == 1 else several} ({names})"


def _names(names: Iterable[str]) -> str:
    """A few of them, cut where they are long: a record may call anything an implementation."""
    known = list(dict.fromkeys(names))
    shown = ", ".join(cut(name, 40) for name in known[:NAMED])
    return f"{shown} and {len(known) - NAMED} more" if len(known) > NAMED else shown


def _performance(found: Found) -> Iterator[str]:
    slower = sum(each.gates and each.verdict == "slower" for each in found.speed)
    if slower:
        yield f"{slower} {_number(slower, 'call is', 'calls are')} slower"
    spills = sum(each.gates for each in found.resources)
    if spills:
        yield f"{spills} {_number(spills, 'kernel spills', 'kernels spill')} that did not"
    larger = sum(each.gates for each in found.memory)
    if larger:
        yield f"{larger} {_number(larger, 'call holds', 'calls hold')} more memory"


def _warnings(found: Found) -> Iterator[str]:
    kinds = Counter(line.finding for line in found.conformance)
    failing = kinds["known"] + kinds["changed"]
    if failing:
        yield f"{failing} {_number(failing, 'contract fails', 'contracts fail')} as on base"
    for place in _idle(found.head):
        yield f"{place.implementation} was not run on {place.device}"
    undecided = sum(each.verdict == "inconclusive" for each in found.speed)
    if undecided:
        yield f"{undecided} of {len(found.speed)} timings could not be decided"
    slower = sum(each.verdict == "slower" and not each.gates for each in found.speed)
    if slower:
        yield f"{slower} {_number(slower, 'call seems', 'calls seem')} slower"
    if found.risen:
        contracts = _number(found.risen, "contract", "contracts")
        yield f"the error of {found.risen} {contracts} has risen"
    if warned := sum(each.warns for each in found.resources):
        yield f"{warned} compiled {_number(warned, 'kernel takes', 'kernels take')} more"
    if survivors := sum(len(each.survivors) for each in found.kills):
        yield f"{survivors} {_number(survivors, 'mutant survives', 'mutants survive')}"


def _idle(head: Tests) -> list[Place]:
    """Places of head that have verdicts, none of which was measured."""
    places = {place for place, _ in head.verdicts}
    measured = {
        place for (place, _), (verdict, _) in head.verdicts.items() if verdict.status != "not-run"
    }
    return sorted(places - measured)


def _measured(found: Found) -> bool:
    return found.figures > 0 or any(
        verdict.status in GREEN | RED and place.implementation != ORACLE
        for (place, _), (verdict, _) in found.head.verdicts.items()
    )


def _seen(found: Found) -> str:
    cases = sum(verdict.cases for verdict, _ in found.head.verdicts.values())
    parts = [f"{cases:,} cases"] if cases else []
    if found.speed:
        parts.append(f"{len(found.speed):,} {_number(len(found.speed), 'timing', 'timings')}")
    if not parts or found.resources:
        parts.append(f"{found.figures:,} figures")
    return " and ".join(parts)


def _number(count: int, one: str, several: str) -> str:
    return one if count == 1 else several
