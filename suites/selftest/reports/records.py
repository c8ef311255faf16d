"""Records of runs that were never made, as small as tells them apart."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from golden.record import SCHEMA, Footer, Header, Line, Measurement, Mutant, Pair, Verdict

BASE, HEAD = "a" * 40, "b" * 40
CPU: Final = "cpu (x86_64, Triton interpreted)"
GPU: Final = "cuda:0 (NVIDIA H200)"
EDGE: Final = "witness.edge.lands-in-segment"
PREFIX: Final = "witness.merge.prefix"
SUMS: Final = "xattention.equivalence.three-stages"
CONTRACTS: Final = {  # by the test that checks it
    "suites/witness/test_indices.py::test_a_witness_is_the_first_token": EDGE,
    "suites/witness/test_merge.py::test_the_prefix_is_kept": PREFIX,
    "suites/xattention/test_equivalence.py::test_three_stages": SUMS,
}
SHOWN: Final = """\
topology_witness_indices of triton: the witness in slot 1 is not the left edge of segment 1

row 0 of 1   L 3   S 2   S_eff 2   topk 0

 segment   tokens   marked by slots   witness   actual
 ─────────────────────────────────────────────────────────────
       0   [0, 2)                           0        0
       1   [2, 3)                           2        1   differs
"""


def header(commit: str = HEAD, device: str = CPU, **changes: Any) -> Header:
    versions = {"python": "3.11.7", "torch": "2.13.0", "triton": "3.7.1"}
    return msgspec.structs.replace(
        Header(
            schema=SCHEMA,
            version="0.1.0",
            commit=commit,
            versions=versions,
            device=device,
            seed=0,
            implementations=("torch", "triton"),
            arguments=(),
        ),
        **changes,
    )


def verdicts(status: str = "passed", **changes: Any) -> list[Verdict]:
    """One verdict a test and implementation, all with that status."""
    return [
        msgspec.structs.replace(
            Verdict(
                test=f"{test}[{implementation}]",
                implementation=implementation,
                contracts=(contract,),
                status=status,  # type: ignore[arg-type]
                cases=0 if status == "not-run" else 40,
                detail="",
                error_ratio=0.25 if contract == SUMS and status == "passed" else None,
            ),
            **changes,
        )
        for test, contract in CONTRACTS.items()
        for implementation in ("torch", "triton")
    ]


def failing(line: Verdict, statement: str = SHOWN.splitlines()[0]) -> Verdict:
    return msgspec.structs.replace(
        line,
        status="failed",
        detail=statement,
        error_ratio=None,
        shown=SHOWN,
        rerun=f"python -m pytest --replay c-1.json --impl {line.implementation}",
    )


def pairs(ratio: float, noise: Sequence[float], count: int, phase: Any = "screen") -> list[Pair]:
    """Of one benchmark; each pair's ratio is off by the noise of its turn, in turns."""
    return [
        Pair(
            test="suites/bench/test_witness.py::test_merge[triton-rows 4096]",
            implementation="triton",
            phase=phase,
            number=number + 1,
            base=BASE,
            head=HEAD,
            base_us=100.0,
            head_us=100.0 * ratio * (1 + noise[number % len(noise)]),
        )
        for number in range(count)
    ]


def compiled(registers: float, spills: float) -> list[Measurement]:
    values = {"registers": registers, "spill_stores": spills, "spill_loads": spills}
    return [
        Measurement("kernels.witness.triton_fused", "merge int32", name, "sm_90", value)
        for name, value in values.items()
    ]


def mutants(*survivors: str) -> list[Mutant]:
    names = ("edge-floored", "mask-dropped", "budget-plus-one")
    return [
        Mutant(
            "triton",
            name,
            "survived" if name in survivors else "killed",
            () if name in survivors else (EDGE,),
            cases=3,
            seconds=0.1,
        )
        for name in names
    ]


def write(
    path: Path, header: Header, lines: Iterable[Line], exit_status: int | None = None
) -> Path:
    """A record with the footer that a run would write."""
    lines = list(lines)
    judged = [line for line in lines if isinstance(line, Verdict)]
    statuses = Counter(line.status for line in judged)
    red = statuses.keys() - {"passed", "deviates", "unsupported", "not-run"}
    status = exit_status if exit_status is not None else int(bool(red))
    footer = Footer(dict(statuses), sum(line.cases for line in judged), status)
    return write_lines(path, [header, *lines, footer])


def write_lines(path: Path, lines: Iterable[Line]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path
