"""Bugs planted in the CUDA kernels, each a line or so of their text: what catches them, and how.

The check is the same for all: golden vectors of the family and a few rows, judged by the suite's
runner, each in an order of threads of its own. Some bugs need a kernel that is written another
way; that one is shown to be correct first. What no order of whole stretches can expose is in
`RACES`, and takes a watch over every load and store.
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

import pytest
import torch

from golden import files
from golden.model import Layout, Tensor, Value, Vector
from kernels import catalog
from kernels.cuda import SANITIZE
from kernels.witness import cuda_fused
from kernels.xattention import cuda_three_stage
from suites.cases import (
    APPLY,
    INDICES,
    NORMALISE,
    ONE_PASS,
    SERVE,
    STATS,
    Bounds,
    Case,
    Results,
    real,
    to_golden,
    to_torch,
)
from suites.runner import Runner
from suites.verdicts import Nonconformance

Change = tuple[str, str]  # what a source says, once, and what is to stand there
Load = Callable[..., Runner]

# --- what is planted -----------------------------------------------------------------------------

SOUND: Final = "the policy"
SOFTMAX: Final = "the softmax"
ATOMIC: Final = "one mask, or-ed atomically"
PUBLISHED: Final = "one warp's union for all"

UNION: Final = """\
    if (threadIdx.x % 32 == 0) warp_masks[threadIdx.x / 32] = Mask{high} << 32 | low;
    __syncthreads();
    mask = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) mask |= warp_masks[warp];
    return mask;
"""

# Other ways to write a kernel, all of them correct: by name, the module and what is changed.
VARIANTS: Final[dict[str, tuple[str, list[Change]]]] = {
    SOUND: ("witness", []),
    ATOMIC: (
        "witness",
        [
            ("    __shared__ Mask warp_masks[kWarps];\n", "    __shared__ Mask all;\n"),
            (
                UNION,
                """\
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicOr(&all, Mask{high} << 32 | low);
    __syncthreads();
    return all;
""",
            ),
        ],
    ),
    PUBLISHED: (
        "witness",
        [
            ("warp_masks[kWarps];\n", "warp_masks[kWarps], all;\n"),
            (
                "    return mask;\n}\n\n__device__ bool has",
                """\
    if (threadIdx.x == 0) all = mask;
    __syncthreads();
    return all;
}

__device__ bool has""",
            ),
        ],
    ),
    SOFTMAX: ("xattention", []),
}


@dataclass(frozen=True)
class Bug:
    """A change of a variant, and what is said of the first case that it fails."""

    variant: str
    change: Change
    said: str


# What catches a bug, and what it says: the comparison with the oracle, the two poisons of a call,
# and the host, where a launch does what CUDA leaves undefined.
ORACLE: Final = r"^\d+ of \d+ elements (of m )?differ"
POISONS: Final = "^the result depends on memory that the call did not write or must not read"
HOST: Final = r"^planted_\w+\.cu, .*block \(.*\): "

BUGS: Final = {
    "no barrier after initialisation": Bug(
        ATOMIC, ("all = 0;\n    __syncthreads();", "all = 0;"), ORACLE
    ),
    "no barrier after the reduction": Bug(
        ATOMIC, ("| low);\n    __syncthreads();", "| low);"), ORACLE
    ),
    "no barrier before the masks of warps are read": Bug(
        SOUND, ("| low;\n    __syncthreads();", "| low;"), ORACLE
    ),
    "no barrier before the union is read": Bug(
        PUBLISHED, ("all = mask;\n    __syncthreads();", "all = mask;"), ORACLE
    ),
    "a barrier that not all threads reach": Bug(
        SOUND,
        ("    __syncthreads();", "    if (mask) __syncthreads();"),
        HOST + "a barrier is not reached by threads that returned: __syncthreads",
    ),
    "half the warps": Bug(
        SOUND, ("kThreads / 32;", "kThreads / 64;"), HOST + "an index outside its array"
    ),
    "twice the warps": Bug(SOUND, ("kThreads / 32;", "kThreads / 16;"), ORACLE),
    "a mask without its last lane": Bug(
        SOUND,
        ("(0xffffffff, static_cast<unsigned>(mask));", "(0x7fffffff, unsigned(mask));"),
        HOST + "__reduce_or_sync.* the mask lacks lane 31 of thread",
    ),
    "<= for < in the budget": Bug(
        SOUND,
        ("< width) {\n        merged[keep + rank", "<= width) {\n        merged[keep + rank"),
        ORACLE,
    ),
    "< for <= in the budget": Bug(SOUND, ("reserved >= __popcll", "reserved > __popcll"), POISONS),
    "a product of 32 bits": Bug(
        SOUND,
        ("static_cast<Wide>(token) * effective", "unsigned(token) * unsigned(effective)"),
        ORACLE,
    ),
    "an edge of 32 bits": Bug(
        SOUND, ("(first + bit) * length", "unsigned(first + bit) * unsigned(length)"), ORACLE
    ),
    "a mask of 32 bits, shifted by 32": Bug(
        SOUND,
        ("? Mask{1} << (segment - first)", "? 1u << (segment - first)"),
        HOST + "a shift by as many bits as the operand has",
    ),
    "all 64 segments by a shift of 64": Bug(
        SOUND,
        ("present == kBits ? ~Mask{0} : ", ""),
        HOST + "a shift by as many bits as the operand has",
    ),
    "no tail of the row": Bug(
        SOUND, ("+ threadIdx.x; slot < topk", "+ threadIdx.x; slot < tail"), ORACLE
    ),
    "no head of the row": Bug(SOUND, ("slot < head", "slot < 0"), ORACLE),
    "vectors off their boundary": Bug(
        SOUND, ("% 4), topk);", "% 1), topk);"), HOST + "an access off its alignment"
    ),
    "a rank that counts its own lane": Bug(
        SOUND, ("(Mask{1} << bit) - 1)", "(Mask{2} << bit) - 1)"), POISONS
    ),
    "no stride from slot to slot": Bug(SOUND, ("row[slot * stride]", "row[slot]"), POISONS),
    "no stride of what was held back": Bug(
        SOUND,
        ("learned[(keep + reserved) * slot_stride]", "learned[keep + reserved]"),
        POISONS,
    ),
    "no barrier after statistics": Bug(
        SOFTMAX, ("top + thread);\n        __syncthreads();", "top + thread);"), ORACLE
    ),
    "no barrier before slots are read": Bug(
        SOFTMAX, ("= own[i];\n    __syncthreads();", "= own[i];"), ORACLE
    ),
    "< for <= in the mask": Bug(SOFTMAX, ("+ top + 1 - left", "+ top - left"), ORACLE),
    "half a warp in a maximum": Bug(
        SOFTMAX,
        ("bits = 16; bits > 0; bits /= 2) x = f", "bits = 8; bits > 0; bits /= 2) x = f"),
        ORACLE,
    ),
    "no stride from key to key": Bug(SOFTMAX, ("first[i * stride]", "first[i]"), POISONS),
}

# Data races that no order of whole stretches exposes: they change no result, and are seen where
# every load and store is watched.
RACES: Final = {
    "an or that is not atomic": Bug(
        ATOMIC,
        ("atomicOr(&all, Mask{high} << 32 | low);", "all |= Mask{high} << 32 | low;"),
        HOST + "a race on byte . of shared all, of 8 bytes: a store .* and a load ",
    ),
    "a warp's barrier for a block's": Bug(
        PUBLISHED,
        (
            "if (threadIdx.x == 0) all = mask;\n    __syncthreads();",
            "if (threadIdx.x % 32 == 0) all = mask;\n    __syncwarp();",
        ),
        HOST + "a race on byte . of shared all, of 8 bytes: a store .* and a ",
    ),
}


# --- the check -----------------------------------------------------------------------------------

PLANTED: Final = "planted_"  # how the names of copies begin
MODULES: Final = {"witness": cuda_fused, "xattention": cuda_three_stage}
OPERATIONS: Final = {"witness": (INDICES, APPLY, SERVE), "xattention": (ONE_PASS, STATS, NORMALISE)}


def witness_cases() -> Iterator[Case]:
    """A long row, one whose products need 64 bits, and one that has few segments' tokens."""
    generator = torch.Generator().manual_seed(1)
    layouts: tuple[Layout, ...] = ("offset", "sliced")
    for layout, topk in product(layouts, (70, 301)):
        lengths = torch.tensor([9000, 2**31 - 1, 3 * topk])
        share = torch.rand((3, topk), generator=generator)
        learned = (share * lengths.unsqueeze(1)).to(torch.int32)
        learned[0, 20:] = -1
        rows = to_golden(learned, layout)
        others: dict[str, Value] = {"context_lens": to_golden(lengths), "num_segments": 64}
        yield Case(INDICES, {"learned_indices": rows, **others})
        for keep, most in ((topk - 64, 64), (3, 5)):
            budget = {"learned_keep": keep, "max_replacements": most}
            yield Case(APPLY, {"learned_indices": rows, **others, **budget})
        yield Case(SERVE, {"topk_indices": rows, **others})


def xattention_cases() -> Iterator[Case]:
    """More keys than a warp reads at once, causal."""
    generator = torch.Generator().manual_seed(2)
    scores = 4 * torch.randn((1, 2, 6, 150), generator=generator)
    layouts: tuple[Layout, ...] = ("offset", "sliced")
    for layout in layouts:
        softmax: dict[str, Value] = {
            "attn_weights_slice": to_golden(scores, layout),
            "reshaped_block_size": 3,
            "segment_size": 3,
            "scale": real(0.7),
            "chunk_start": 140,
            "is_causal": True,
        }
        yield Case(STATS, {**softmax, "kv_offset": 0})
        yield Case(ONE_PASS, {**softmax, "chunk_end": 146, "real_q_len": 145})


@dataclass(frozen=True, eq=False)
class Judged:
    """A case, and what is known of its results, worked out once."""

    case: Case
    expected: Results
    bounds: Bounds


@cache
def cases(family: str) -> list[Judged]:
    """The rows above, and the golden vectors of calls that are not refused."""
    own = {"witness": witness_cases, "xattention": xattention_cases}[family]()
    judged = [Judged(case, case.expected(), case.bounds()) for case in own]
    for operation, vector in files.all_vectors():
        if operation in OPERATIONS[family] and vector.refusal is None:
            case = Case(operation, vector.inputs)
            judged.append(Judged(case, expected(case, vector), case.bounds()))
    return judged


def expected(case: Case, vector: Vector) -> Results:
    value = vector.expected
    if isinstance(value, Tensor):
        return (to_torch(value),)
    return tuple(map(to_torch, value)) if isinstance(value, tuple) else case.results(value)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a copy of a variant's module, with changes in its source."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(variant: str, *further: Change) -> Runner:
        family, changes = VARIANTS[variant]
        source = MODULES[family].MODULE.source
        text = source.read_text(encoding="utf-8")
        for right, wrong in (*changes, *further):
            assert text.count(right) == 1, right
            text = text.replace(right, wrong)
        name = PLANTED + family
        shutil.copy(source.with_suffix(".py"), tmp_path / f"{name}.py")
        (tmp_path / f"{name}.cu").write_text(text, encoding="utf-8")
        implementation = catalog.load(name)
        # A bug is no error of a compiler.
        sys.modules[name].MODULE.built_for(torch.device("cpu"))
        return Runner(implementation, torch.device("cpu"))

    yield load
    for name in [each for each in sys.modules if each.startswith(PLANTED)]:
        del sys.modules[name]


def said_of(runner: Runner, variant: str) -> str | None:
    """What is said of the first case that fails; None where all are within their bounds.

    Each is called with its threads in an order of its own.
    """
    try:
        for each in cases(VARIANTS[variant][0]):
            runner.require_close(each.case, each.expected, runner.call(each.case), each.bounds)
    except Nonconformance as failure:
        return failure.statement
    return None


# --- the tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_bugs_are_planted_in_is_correct(load: Load, variant: str) -> None:
    assert said_of(load(variant), variant) is None


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught(load: Load, name: str) -> None:
    bug = BUGS[name]
    said = said_of(load(bug.variant, bug.change), bug.variant)
    assert said is not None
    assert re.search(bug.said, said), said


@pytest.mark.parametrize("name", RACES)
def test_a_race_that_no_order_exposes_is_seen_where_it_is_watched(load: Load, name: str) -> None:
    race = RACES[name]
    runner = load(race.variant, race.change)
    assert said_of(runner, race.variant) is None
    token = SANITIZE.set(True)
    try:
        said = said_of(runner, race.variant)
    finally:
        SANITIZE.reset(token)
    assert said is not None
    assert re.search(race.said, said), said
