"""Figures of two sides that need no statistics: compiled kernels, memory, mutants."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from golden.record import Mutant
from reports.model import Kill, Kills, Memory, Resource, Undecided
from reports.reading import Record

# Of compiled kernels, by the names that they have in a record.
SPILLS: Final = ("spill_stores", "spill_loads", "spilled_registers")
WARNING: Final = ("registers", "static_shared", "dynamic_shared", "stack")
FIGURES: Final = (*SPILLS, *WARNING, "occupancy", "code")
TOOLCHAIN: Final = ("triton", "ptxas", "nvrtc")  # what makes machine code, as a record has it
MIB: Final = {"peak MiB": 1.0, "peak KiB": 1 / 1024}  # by the quantities that are peaks
SHARE, LEAST = 0.01, 2.0  # of a peak, and MiB: it may grow by the larger of the two

Compiled = tuple[str, str, str]  # module, kernel and what calls it, architecture


# --- compiled kernels ----------------------------------------------------------------------------


def resources(
    base: Sequence[Record], head: Sequence[Record]
) -> tuple[list[Resource], list[Undecided]]:
    """Kernels whose figures differ, those that gate first; or why they cannot be compared."""
    before, now = compiled(base), compiled(head)
    if not before or not now:
        return [], []
    tools = [_toolchains(records) for records in (base, head)]
    if tools[0] != tools[1]:
        shown = (" and ".join(sorted(each)) or "an unknown one" for each in tools)
        reason = "base was compiled by {}, head by {}".format(*shown)
        return [], [Undecided("every kernel", "compiled figures", reason)]
    found = []
    for key in before.keys() & now.keys():
        if resource := _resource(key, before[key], now[key]):
            found.append(resource)
    found.sort(key=lambda r: (not r.gates, not r.warns, r.module, r.kernel, r.architecture))
    return found, []


def compiled(records: Iterable[Record]) -> dict[Compiled, dict[str, float]]:
    found: dict[Compiled, dict[str, float]] = defaultdict(dict)
    for record in records:
        for line in record.measurements:
            if line.quantity in FIGURES:
                key = line.implementation, line.subject, line.variant
                found[key][line.quantity] = line.value
    return found


def _toolchains(records: Iterable[Record]) -> frozenset[str]:
    """Of the records that hold compiled kernels."""
    return frozenset(
        ", ".join(f"{tool} {record.header.versions.get(tool, '?')}" for tool in TOOLCHAIN)
        for record in records
        if any(line.quantity in FIGURES for line in record.measurements)
    )


def _resource(
    key: Compiled, before: Mapping[str, float], now: Mapping[str, float]
) -> Resource | None:
    differing = {
        name: (before[name], now[name])
        for name in FIGURES
        if name in before and name in now and before[name] != now[name]
    }
    if not differing:
        return None
    module, kernel, architecture = key
    spills = [sum(side.get(name, 0) for name in SPILLS) for side in (before, now)]
    warns = any(differing[name][0] < differing[name][1] for name in WARNING if name in differing)
    return Resource(
        kernel=kernel,
        module=module,
        architecture=architecture,
        figures=differing,
        gates=spills[0] == 0 < spills[1],
        warns=warns or spills[0] < spills[1],
    )


# --- peak memory ---------------------------------------------------------------------------------


def memory(base: Iterable[Record], head: Iterable[Record]) -> list[Memory]:
    """Peaks that are not what they were, those that gate first."""
    before, now = _peaks(base), _peaks(head)
    found = []
    for key in before.keys() & now.keys():
        old, new = before[key], now[key]
        allowed = max(SHARE * old, LEAST)
        if abs(new - old) > allowed:
            found.append(Memory(*key, old, new, gates=new > old))
    return sorted(found, key=lambda m: (not m.gates, m.subject, m.implementation, m.variant))


def _peaks(records: Iterable[Record]) -> dict[tuple[str, str, str, str], float]:
    """MiB, by subject, implementation, device and variant."""
    return {
        (line.subject, line.implementation, record.header.device, line.variant): (
            line.value * MIB[line.quantity]
        )
        for record in records
        for line in record.measurements
        if line.quantity in MIB
    }


# --- mutants -------------------------------------------------------------------------------------


def kills(base: Iterable[Record], head: Iterable[Record]) -> Iterator[Kills]:
    """The score of each implementation; a mutant that timed out is as good as killed."""
    before, now = _scored(base), _scored(head)
    for implementation, mutants in sorted(now.items()):
        old = before.get(implementation)
        survivors = tuple(sorted(m.mutant for m in mutants if m.outcome == "survived"))
        yield Kills(
            implementation,
            sum(m.outcome != "survived" for m in old) if old else None,
            len(old) if old else None,
            len(mutants) - len(survivors),
            len(mutants),
            survivors,
        )


def _scored(records: Iterable[Record]) -> dict[str, list[Mutant]]:
    found: dict[str, list[Mutant]] = defaultdict(list)
    for record in records:
        for mutant in record.mutants:
            if mutant.outcome != "equivalent":
                found[mutant.implementation].append(mutant)
    return found


def mutants(head: Iterable[Record]) -> Iterator[Kill]:
    for record in head:
        for each in record.mutants:
            yield Kill(each.implementation, each.mutant, each.outcome, each.contracts)
