"""Reports as they could be: of a kernel that is wrong, of one that is slow, of a good one."""

from typing import Any, Final

import msgspec

from golden.files import load_contracts
from golden.record import Measurement
from reports.model import (
    Accuracy,
    Cell,
    Conformance,
    Kill,
    Kills,
    Memory,
    Report,
    Resource,
    Side,
    Timing,
    Undecided,
)

CONTRACTS: Final = load_contracts()
CPU: Final = "cpu"
GPU: Final = "cuda:0 (NVIDIA H200)"
ROW: Final = """\
apply_topology_witnesses of triton: slot 3 holds 4, expected 6

row 0 of 1   L 8   S 4   S_eff 4   topk 4   keep 2   B 2

 slot   learned   in segment   expected   actual
 ─────────────────────────────────────────────────────────
    2         1            0          4        4  reserved
    3         0            0          6        4  differs reserved

 segment   tokens   marked by slots   witness
 ─────────────────────────────────────────────
       0   [0, 2)   2, 3                    0
       2   [4, 6)                           4
       3   [6, 8)                           6
"""
SUMS: Final = """\
softmax_compute_partial_stats of triton: 1 of 2 elements of l differ

 s          float32 [1, 1, 2, 3]
 scale      1.0
 expected   m [1, 1, 2], l [1, 1, 2]

         l   expected   actual       |error|          bound   |error| / bound
 ────────────────────────────────────────────────────────────────────────────
 [0, 0, 1]   2.992203        3   0.007797241   3.814697e-06              2044
"""


def side(commit: str, **changes: Any) -> Side:
    versions = {"python": "3.11.7", "torch": "2.13.0+cu130", "triton": "3.7.1", "numpy": "2.4.6"}
    made = Side(
        records=("head/cpu.jsonl", "head/gpu.jsonl"),
        commit=commit,
        devices=("cpu (x86_64, Triton interpreted)", GPU),
        versions=versions,
        seeds=(0,),
        verdicts=4091,
        cases=38182,
    )
    return msgspec.structs.replace(made, **changes)


BASE, HEAD = side("1d0c1f0d" * 5), side("8093990a" * 5)


# --- parts that all of them have -----------------------------------------------------------------


def _cells() -> tuple[Cell, ...]:
    """The contract matrix; its figures are made up, and the same each time."""
    found = []
    for number, contract in enumerate(CONTRACTS):
        floats = contract.startswith("xattention") and number % 3
        for place, name in enumerate(("oracle", "torch", "triton", "cuda", "triton_streaming")):
            if name != "triton_streaming" or number % 4 == 0:
                ratio = (number * 7 + place * 3) % 50 / 100 if floats else None
                found.append(Cell(contract, name, CPU, "passed", 7 + number * 13 % 400, ratio))
    return tuple(found)


def _accuracy(cells: tuple[Cell, ...], **heads: float) -> tuple[Accuracy, ...]:
    """``heads``: by contract, its dots as double underscores, the error of triton."""
    found = []
    for cell in cells:
        if cell.error_ratio is not None:
            head = cell.error_ratio
            if cell.implementation == "triton":
                head = heads.get(cell.contract.replace(".", "__").replace("-", "_"), head)
            risen = head > cell.error_ratio + 0.05
            place = cell.implementation, cell.device
            found.append(Accuracy(cell.contract, *place, cell.error_ratio, head, risen))
    return tuple(sorted(found, key=lambda line: (not line.risen, -line.head)))


def _times(factor: float) -> tuple[Measurement, ...]:
    """Of one implementation that takes ``factor`` times as long as it could."""
    found = []
    for operation, least in (
        ("apply_topology_witnesses", 6.0),
        ("scatter_topology_witnesses_", 5.0),
        ("topology_witness_indices", 4.0),
    ):
        for rows in (32, 512, 16384):
            for name, by in (("torch", 20.0), ("triton", factor), ("cuda", 0.9)):
                values = {
                    "median us": least * by * (1 + rows / 900),
                    "quartile spread %": 40 / (1 + rows / 300) + by / 2,
                    "bytes moved": rows * 16388.0,
                    "multiplications and additions": 0.0,
                    "throttled": 0.0,
                }
                subject = f"{operation} rows {rows}"
                found += [
                    Measurement(name, subject, quantity, f"{cache} replay", value)
                    for quantity, value in values.items()
                    for cache in ("cold", "warm")
                ]
    return tuple(found)


def _registers() -> tuple[Measurement, ...]:
    module = "kernels.witness.triton_fused"
    return (Measurement(module, "_apply_kernel: topk 2048, S 64", "registers", "sm_90a", 255.0),)


def _rates() -> tuple[Measurement, ...]:
    found = [
        Measurement("device", "ceiling", "copy GB/s", "", 3900.0),
        Measurement("device", "ceiling", "matrix 10^9/s", "bfloat16", 480e3),
        Measurement("device", "ceiling", "matrix 10^9/s", "float32", 26e3),
    ]
    for size in (1024, 4096, 16384):
        for name, share in (("torch", 0.3), ("triton", 0.7)):
            subject = f"flat_group_gemm_fuse_reshape bfloat16 {size} x {size}"
            products, moved = 2.0 * size**2 * 128, 4.0 * size**2 / 64 + 512 * size
            values = {
                "median us": products / (share * min(3900 * products / moved, 480e3) * 1e3),
                "bytes moved": moved,
                "multiplications and additions": products,
            }
            found += [Measurement(name, subject, q, "cold replay", v) for q, v in values.items()]
    return tuple(found)


def _peaks() -> tuple[Measurement, ...]:
    return tuple(
        Measurement("triton", f"{way} S {length}", quantity, way, value)
        for length in (16384, 65536, 262144)
        for way, formula in (("one pass", length**2 / 2**23), ("estimate", length / 2**9))
        for quantity, value in (("peak MiB", 1.03 * formula + 2), ("formula MiB", formula))
    )


def _kills(*more: str) -> tuple[Kill, ...]:
    contracts = list(CONTRACTS)
    mutants = ("floor-for-ceil", "drop-last-segment", "keep-off-by-one", "no-barrier", *more)
    return tuple(
        Kill(
            name,
            f"{name}-{mutant}",
            "killed" if number else "survived",
            tuple(contracts[number * 5 : number * 7]),
        )
        for name in ("triton", "cuda")
        for number, mutant in enumerate(mutants)
    )


def _timing(operation: str, base: float, ratio: float, **changes: Any) -> Timing:
    made = Timing(
        test=f"suites/bench/test_witness.py::test_rows[replay-cold-{operation}-rows-16384-triton]",
        implementation="triton",
        device=GPU,
        base_us=base,
        head_us=base * ratio,
        ratio=ratio,
        low=ratio - 0.011,
        high=ratio + 0.012,
        limit=0.03,
        nights=30,
        pairs=8,
        verdict="same",
        reason="",
        gates=False,
    )
    return msgspec.structs.replace(made, **changes)


def _quiet() -> tuple[Timing, ...]:
    return (
        _timing("scatter_topology_witnesses_", 91.2, 0.998),
        _timing("topology_witness_indices", 71.9, 1.004),
    )


def failure(contract: str, **changes: Any) -> Conformance:
    made = Conformance(
        finding="failed",
        contract=contract,
        title=CONTRACTS[contract].statement,
        implementation="triton",
        device=CPU,
        base="passed",
        head="failed",
        tests=1,
        test="suites/witness/test_merge.py::test_merge[triton]",
        detail="slot 3 holds 4, expected 6",
        shown=ROW,
        rerun="python -m pytest --replay .conformance/failures/apply-1f6a.json --impl triton",
        seed=0,
        gates=True,
    )
    return msgspec.structs.replace(made, **changes)


# --- the reports ---------------------------------------------------------------------------------


def wrong() -> Report:
    """Triton rounds through bf16 and merges witnesses in the wrong order."""
    stats = "suites/xattention/test_stats.py::test_{}[triton]"
    broken = {
        "witness.merge.ascending": "failed",
        "witness.merge.budget": "failed",
        "xattention.stats.sum": "failed",
        "xattention.equivalence.three-stages": "crashed",
    }
    cells = tuple(
        msgspec.structs.replace(cell, status=broken.get(cell.contract, cell.status))
        if cell.implementation == "triton"
        else cell
        for cell in _cells()
    )
    sums = {
        "test": stats.format("partial"),
        "detail": "1 of 2 elements of l differ",
        "shown": SUMS,
        "rerun": "python -m pytest --replay .conformance/failures/stats-02.json --impl triton",
    }
    return Report(
        decision="failed",
        headline="Action needed: 4 contracts fail (triton)",
        next="Fix what is listed first. A departure that is meant is declared as a deviation and "
        "reviewed; no label accepts it.",
        exit_status=1,
        base=BASE,
        head=HEAD,
        conformance=(
            failure("witness.merge.ascending", tests=12),
            failure("witness.merge.budget", test="suites/witness/test_merge.py::test_few[triton]"),
            failure("xattention.stats.sum", tests=31, **sums),
            failure(
                "xattention.equivalence.three-stages",
                test="suites/xattention/test_equivalence.py::test_three_stages[triton]",
                head="crashed",
                detail="the worker died of signal 11 in softmax_fuse_block_sum",
                shown="",
                rerun="",
            ),
            failure(
                "xattention.select.threshold",
                finding="unsupported",
                implementation="triton_streaming",
                head="unsupported",
                detail="find_blocks_chunked is not there",
                shown="",
                test="suites/xattention/test_select.py::test_threshold[triton_streaming]",
            ),
            failure(
                "witness.set.run-bound",
                finding="fixed",
                implementation="cuda",
                base="failed",
                head="passed",
                detail="",
                shown="",
                gates=False,
                test="suites/witness/test_indices.py::test_runs[cuda]",
            ),
        ),
        accuracy=_accuracy(cells, xattention__stats__sum=2044.0, xattention__merge__formula=0.41),
        speed=_quiet(),
        kills=(Kills("triton", 3, 4, 3, 4, ("triton-floor-for-ceil",)),),
        cells=cells,
        mutants=_kills(),
        measured=(*_times(1.0), *_rates(), *_peaks(), *_registers()),
    )


def slow() -> Report:
    """Triton takes a quarter more time, spills, and holds the scores twice."""
    cells = _cells()
    throttled = "a clock was throttled in 2 of 8 pairs"
    undecided = _timing("xattn_estimate", 1843.0, 1.05, verdict="inconclusive", reason=throttled)
    changes = {"pairs": 20, "gates": True}
    return Report(
        decision="failed",
        headline="Action needed: 1 call is slower, 1 kernel spills that did not, 1 call holds "
        "more memory",
        next="Make up for it, or say why in the pull request and label it `perf-accepted`.",
        exit_status=1,
        base=BASE,
        head=HEAD,
        accuracy=_accuracy(cells),
        speed=(
            _timing("apply_topology_witnesses", 107.4, 1.254, verdict="slower", **changes),
            _timing("merge_softmax_stats", 18.31, 0.902, verdict="faster", pairs=20),
            undecided,
            *_quiet(),
        ),
        resources=(
            Resource(
                kernel="_apply_kernel: topk 2048, S 64",
                module="kernels/witness/triton_fused.py",
                architecture="sm_90a",
                figures={"spill_stores": (0, 48), "spill_loads": (0, 52), "registers": (168, 255)},
                gates=True,
                warns=True,
            ),
            Resource(
                kernel="_stats_kernel: bfloat16 128 x 128",
                module="kernels/xattention/triton_three_stage.py",
                architecture="sm_80",
                figures={"registers": (96, 112), "code": (5376, 6016)},
                gates=False,
                warns=True,
            ),
        ),
        memory=(Memory("estimate S 65536", "triton", GPU, "estimate", 132.1, 260.2, True),),
        kills=(Kills("triton", 44, 44, 44, 44, ()),),
        undecided=(Undecided(undecided.test, "speed", throttled),),
        cells=cells,
        mutants=_kills(),
        measured=(*_times(1.25), *_rates(), *_peaks(), *_registers()),
    )


def good() -> Report:
    cells = _cells()
    return Report(
        decision="passed",
        headline="No regression in 38,182 cases and 2 timings",
        next="Merge.",
        exit_status=0,
        base=BASE,
        head=HEAD,
        accuracy=_accuracy(cells),
        speed=_quiet(),
        kills=(Kills("triton", 44, 44, 44, 44, ()),),
        cells=cells,
        mutants=_kills(),
        measured=(*_times(1.0), *_rates(), *_peaks(), *_registers()),
    )
