"""XAttention in CUDA C++, where the suite's small cases do not come: what takes several rounds.

The order of threads does not matter to any bit, a mistake of any kind is seen, and the source
becomes machine code where NVRTC is installed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from golden.model import FloatType, Layout, Tensor
from kernels import catalog
from kernels.cuda import LaunchFault, Module, ToolchainMissing, device, scheduled
from kernels.xattention import cuda_three_stage, torch_reference
from suites.cases import (
    MERGE,
    NORMALISE,
    ONE_PASS,
    STATS,
    Bounds,
    Case,
    Results,
    number,
    real,
    to_golden,
    to_torch,
)
from suites.runner import Runner
from suites.selftest.cuda.programs import SEEDS
from suites.verdicts import Nonconformance
from suites.xattention.stages import of_keys

INF, NAN = math.inf, math.nan
SCALE = 0.7

# Heads, the size of a block, and how many there are of queries and of keys.
SHAPES = {
    "few": (3, 3, 2, 4),
    "more blocks than threads": (2, 1, 5, 300),
    "a tile of blocks and some": (1, 16, 1, 66),
    "more rows than statistics at hand": (1, 150, 1, 1),
}


# --- cases ---------------------------------------------------------------------------------------


def one_pass(
    scores: torch.Tensor, block: int, *, start: int, padded: int = 0, layout: Layout = "contiguous"
) -> Case:
    """Causal, from a position on that is no multiple of anything; the last rows are padding."""
    end = start + scores.shape[2]
    return Case(
        ONE_PASS,
        {
            "attn_weights_slice": to_golden(scores, layout),
            "reshaped_block_size": block,
            "segment_size": block,
            "chunk_start": start,
            "chunk_end": end,
            "real_q_len": end - padded,
            "scale": real(SCALE),
            "is_causal": True,
        },
    )


def stages(
    scores: torch.Tensor, block: int, start: int, layout: Layout = "contiguous"
) -> list[Case]:
    """One pass, and the stages: on all keys, and on the latter of them by the statistics of all."""
    k_len = scores.shape[3]
    whole = one_pass(scores, block, start=start, padded=block // 2 + 1, layout=layout)
    cut = k_len // block // 2 * block
    statistics = torch_reference.softmax_compute_partial_stats(
        scores.float(), block, block, SCALE, start, 0, True
    )
    m, total = (to_golden(each, layout) for each in statistics)
    latter = of_keys(whole, NORMALISE, cut, k_len).changed(m_global=m, l_global=total)
    return [whole, of_keys(whole, STATS, 0, k_len), of_keys(whole, STATS, cut, k_len), latter]


def drawn(
    heads: int,
    block: int,
    q_blocks: int,
    k_blocks: int,
    dtype: FloatType,
    layout: Layout = "contiguous",
    *,
    unseen: int | None = None,  # keys, by the first row; half of them, if it is not said
) -> list[Case]:
    generator = torch.Generator().manual_seed(block)
    shape = (1, heads, block * q_blocks, block * k_blocks)
    scores = (4 * torch.randn(shape, generator=generator)).to(getattr(torch, dtype))
    start = shape[3] // 2 if unseen is None else shape[3] - 1 - unseen
    return stages(scores, block, start, layout)


def merge(*chunks: tuple[float, float]) -> Case:
    """Of 300 rows, more than one block of threads takes, of which the latter see little."""
    m_chunks, l_chunks = [], []
    for m, total in chunks:
        rows = torch.arange(300.0).view(1, 2, 150)
        m_chunks.append(to_golden(m - rows / 64, "padded"))
        l_chunks.append(to_golden(torch.full_like(rows, total), "sliced"))
    return Case(MERGE, {"m_chunks": tuple(m_chunks), "l_chunks": tuple(l_chunks)})


def odd() -> Iterator[Case]:
    """Rows of NaN, of -inf, of nothing, and of no mass; and heads so far apart as 31 bits reach."""
    scores = torch.linspace(-2, 5, 2 * 8 * 12).view(1, 2, 8, 12)
    scores[0, 0, 3, 1] = NAN
    scores[0, 0, 5] = -INF
    scores[0, 1, 6, 0] = -INF
    yield from stages(scores, 4, 0)
    *_, latter = stages(scores + 200, 4, 4)
    m, total = torch.full((1, 2, 8), -INF), torch.zeros(1, 2, 8)
    yield latter.changed(m_global=to_golden(m), l_global=to_golden(total))
    heads = torch.arange(3.0).view(1, 3, 1, 1) + scores[:, 1:]
    *_, stats, latter = stages(heads, 4, 5)
    for case, name in ((stats, "attn_weights_slice"), (latter, "m_global"), (latter, "l_global")):
        yield case.changed(**{name: replace(case.tensor(name), layout="wide")})


@dataclass(frozen=True, eq=False)
class Judged:
    """A case, and what is known of its results, worked out once."""

    case: Case
    expected: Results
    bounds: Bounds


@cache
def judged() -> list[Judged]:
    """Cases of fp32 that leave no part of a kernel out; the quick ones first."""
    cases = [case for shape in SHAPES.values() for case in drawn(*shape, "float32")]
    cases += drawn(2, 5, 3, 10, "float32", "transposed")
    cases += drawn(*SHAPES["a tile of blocks and some"], "float32", "offset", unseen=8)
    cases += [merge((0.5, 2.0), (3.0, 5.0), (-INF, 0.0)), merge((-INF, 0.0), (-INF, 0.0))]
    cases += [merge((2.0, 1.0), (NAN, 3.0)), *odd()]
    return [Judged(case, case.expected(), case.bounds()) for case in cases]


def runner() -> Runner:
    implementation = catalog.load("kernels.xattention.cuda_three_stage")
    return Runner(implementation, torch.device("cpu"))


# --- what holds ----------------------------------------------------------------------------------


def test_what_takes_several_rounds_is_within_the_bounds() -> None:
    for each in judged():
        runner().require_close(each.case, each.expected, runner().call(each.case), each.bounds)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_of_threads_does_not_matter_to_any_bit(shape: str, dtype: FloatType) -> None:
    for case in drawn(*SHAPES[shape], dtype):
        results = runner().call(case)
        for seed in SEEDS:
            with scheduled(seed):
                again = runner().call(case)
            runner().require_same(case, results, again, f"in the order of seed {seed}")


# By name: elements from a 128-bit boundary to the first score, what those from row to row are a
# multiple of, and those from key to key.
PLACES = {
    **{f"{before} off the boundary": (before, 8, 1) for before in range(8)},
    "every row off by another": (3, 1, 1),
    "every second": (0, 1, 2),
    "every third": (1, 8, 3),
}
KEYS = [5, 15, 135, 265]  # less than a vector, and more than those of a warp and of two


@cache
def behind_the_mask(dtype: FloatType, keys: int) -> list[Judged]:
    """Cases of ten rows, of which the last three are padding; garbage lies where none looks."""
    generator = torch.Generator().manual_seed(keys)
    start = max(keys - 8, 0)
    scores = 4 * torch.randn((1, 1, 10, keys), generator=generator)
    future = torch.ones(10, keys, dtype=torch.bool).triu(start + 1)
    garbage = torch.tensor([NAN, INF, -INF, 1e4]).repeat(keys)[:keys].expand(10, keys)
    scores = scores.where(~future, garbage).to(getattr(torch, dtype))
    cases = stages(scores, 5, start)
    return [Judged(case, case.expected(), case.bounds()) for case in cases]


def placed(values: torch.Tensor, place: str) -> torch.Tensor:
    """The values in the midst of NaN."""
    start, multiple, step = PLACES[place]
    rows, keys = values.shape[2:]
    width = -(-keys * step // multiple) * multiple
    memory = torch.full((start + rows * width,), NAN, dtype=values.dtype)
    assert memory.data_ptr() % 16 == 0
    view = memory.as_strided(values.shape, (rows * width, rows * width, width, step), start)
    return view.copy_(values)


def called(case: Case, scores: torch.Tensor) -> Results:
    """By the kernels of the module, with these scores where they are."""
    arguments = {
        name: to_torch(value) if isinstance(value, Tensor) and value.shape else number(value)
        for name, value in case.inputs.items()
    }
    arguments["attn_weights_slice"] = scores
    return case.results(getattr(cuda_three_stage, case.operation)(**arguments))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_way_through_a_row(seed: int, dtype: FloatType, place: str) -> None:
    """Of whole vectors and of parts, from every offset, with garbage all around."""
    for keys in KEYS:
        for each in behind_the_mask(dtype, keys):
            scores = placed(to_torch(each.case.tensor("attn_weights_slice")), place)
            runner().require_close(
                each.case, each.expected, called(each.case, scores), each.bounds, f"seed {seed}"
            )


def test_offsets_may_be_any_numbers() -> None:
    """Past 64 bits too: what all rows see, or none."""
    scores = torch.ones(1, 1, 4, 6)
    call = cuda_three_stage.softmax_compute_partial_stats
    for start, offset, total in ((2**80, 5, 6.0), (5, 2**80, 0.0), (2**80, 2**80 + 1, None)):
        _, got = call(scores, 2, 2, 1.0, start, offset, True)
        assert got.flatten().tolist() == (
            [total] * 4 if total is not None else [0.0, 1.0, 2.0, 3.0]
        )


def test_the_wrapper_and_the_kernels_agree_on_their_constants() -> None:
    text = cuda_three_stage.MODULE.source.read_text(encoding="utf-8")
    assert f"constexpr int kThreads = {cuda_three_stage.THREADS};" in text
    assert "constexpr int kWarps = kThreads / 32;" in text
    assert f"kVector = {cuda_three_stage.VECTOR} / sizeof(T);" in text


@pytest.mark.parametrize(("dtype", "block"), [(torch.float32, 1100), (torch.float16, 2100)])
def test_a_block_may_be_wider_than_all_threads(dtype: torch.dtype, block: int) -> None:
    """The weights of a row are 1 together; three rows are no padding."""
    memory = torch.linspace(-2, 2, block * block + 1).to(dtype)
    scores = memory[1:].view(1, 1, block, block)
    sums = cuda_three_stage.softmax_fuse_block_sum(scores, block, 7, 5, 5 + block, 8, 1.0, False)
    assert sums.flatten().tolist() == pytest.approx([3.0], rel=1e-5)


# A source that says which elements may be read; reading another one ends a launch.
AUDIT = """
static const char* audited;
static const bool* readable;
static long long elements;

template <class T>
__global__ void audit(const T* first, const bool* which, long long count) {
    audited = reinterpret_cast<const char*>(first), readable = which, elements = count;
}

template <class T>
const T* read(const T* first, int count) {
    const long long at = first - reinterpret_cast<const T*>(audited);
    for (int i = 0; i < count; ++i) {
        if (at + i >= 0 && at + i < elements && readable[at + i]) continue;
        on_host::report("element %lld is read", at + i);
        on_host::give_up();
    }
    return first;
}
"""
READS = {
    "*reinterpret_cast<const Vector<T>*>(first)": (
        "*reinterpret_cast<const Vector<T>*>(read(first, kVector<T>))"
    ),
    "vector.element[i] = first[i * stride]": "vector.element[i] = *read(first + i * stride, 1)",
}
EXCESSES = {
    "a vector in which the row begins": ("begin <= 0 && end", "end"),
    "a vector in which it ends": ("begin <= 0 && end >= kVector<T>", "begin <= 0"),
    "a key before the row": ("if (begin <= i && i < end) vector", "if (i < end) vector"),
    "a key too many": ("keys - j);", "keys - j + 1);"),
    "a column too many": ("const int sees = min(at_top + row, end)", "const int sees = end"),
    "padding": ("seen(real_rows - 1 - i, block_size)", "block_size"),
}


def audited(folder: Path, *change: str) -> Module:
    """The module of fp32 and fp16, its source changed."""
    sound = cuda_three_stage.MODULE
    text = sound.source.read_text(encoding="utf-8")
    for right, wrong in ([change] if change else []) + [*READS.items()]:
        assert right in text
        text = text.replace(right, wrong)
    source = folder / "audited.cu"
    source.write_text(AUDIT + text, encoding="utf-8")
    audits = {f"audit<{t}>": f"const {t}*, const bool*, long long" for t in ("float", "__half")}
    declared = sound.declarations.items()
    return Module(source, audits | {name: of for name, of in declared if "bfloat16" not in name})


def visible(case: Case) -> torch.Tensor:
    """What rows that are no padding see of the scores; of statistics, all rows."""
    rows, keys = (torch.arange(n) for n in case.tensor("attn_weights_slice").shape[2:])
    start, offset = case.number("chunk_start"), number(case.inputs.get("kv_offset", 0))
    seen = offset + keys <= (start + rows).unsqueeze(1)
    end = number(case.inputs.get("real_q_len", start + len(rows)))
    real_rows = start + rows < end
    return torch.logical_and(seen, real_rows.unsqueeze(1))


def read_all(module: Module) -> None:
    """Launches everything under audit."""
    for dtype, place, keys in product(("float32", "float16"), PLACES, KEYS):
        for each in behind_the_mask(dtype, keys):
            scores = placed(to_torch(each.case.tensor("attn_weights_slice")), place)
            memory = torch.empty(0, dtype=scores.dtype).set_(scores.untyped_storage())
            readable = torch.zeros(len(memory), dtype=torch.bool)
            there = readable.as_strided(scores.shape, scores.stride(), scores.storage_offset())
            there.copy_(visible(each.case))
            name = cuda_three_stage.TYPES[scores.dtype]
            module[f"audit<{name}>"].launch(1, 1, memory, readable, len(memory))
            called(each.case, scores)


def test_nothing_is_read_but_what_a_row_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_three_stage, "MODULE", audited(tmp_path))
    read_all(cuda_three_stage.MODULE)


@pytest.mark.parametrize("excess", EXCESSES)
def test_reading_more_is_seen(excess: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_three_stage, "MODULE", audited(tmp_path, *EXCESSES[excess]))
    with pytest.raises(LaunchFault, match=r"element -?\d+ is read"):
        read_all(cuda_three_stage.MODULE)


# --- what is seen --------------------------------------------------------------------------------

# By name: what a source says, everywhere it says so, and what it might say.
FAULTS = {
    "no barrier before statistics change": (
        "__syncthreads();\n        if (thread < rows)", "if (thread < rows)",
    ),
    "no barrier after them": ("__syncthreads();\n        for (int j", "for (int j"),
    "no barrier before slots are read": ("= own[i];\n    __syncthreads();", "= own[i];"),
    "half the warps": ("kWarps = kThreads / 32", "kWarps = kThreads / 64"),
    "twice the warps": ("kWarps = kThreads / 32", "kWarps = kThreads / 16"),
    "half a warp": ("bits = 16", "bits = 8"),
    "< for <= in statistics": ("seen(diagonal + i, k_len)", "seen(diagonal + i - 1, k_len)"),
    "< for <= in one pass": ("diagonal + i + row, k_len", "diagonal + i + row - 1, k_len"),
    "< for <= in sums": ("+ top + 1 - left", "+ top - left"),
    "a future key in statistics": ("seen(diagonal + i, k_len)", "seen(diagonal + i + 1, k_len)"),
    "a future key in sums": ("+ top + 1 - left", "+ top + 2 - left"),
    "32-bit offsets of scores": ("head * head_stride", "(int)head * (int)head_stride"),
    "32-bit offsets of m": ("head * m_head_stride", "(int)head * (int)m_head_stride"),
    "32-bit offsets of l": ("head * l_head_stride", "(int)head * (int)l_head_stride"),
    "vectors off their boundary": (" && lead(first) == 0", ""),
    "vectors with gaps": (" && stride == 1", ""),
    "keys without a stride": ("first[i * stride]", "first[i]"),
    "no tail of a row": ("j < keys;", "j + kVector<T> <= keys;"),
    "one round of keys": ("j < keys; j += 32 * kVector<T>", "j < min(keys, 32); j += 32"),
    "every other round of keys": ("j += 32 * kVector<T>", "j += 64 * kVector<T>"),
    "missing keys have weights": ("0 <= j + i && j + i < keys", "true"),
    "missing columns have weights": ("if (begin <= i && i < sees) sums", "sums"),
    "columns before the tile": ("if (begin <= i && i < sees) sums", "if (i < sees) sums"),
    "the first row is left out": ("max(begin + 1 - at_top, 0)", "max(begin + 2 - at_top, 0)"),
    "the last row is left out": ("for (; row < rows;", "for (; row + 1 < rows;"),
    "one round of columns": ("j < right;", "j < min(right, left - before + kColumns<T>);"),
    "slots from the boundary on": ("before + each * block_size", "each * block_size"),
    "no way round the slots": ("(begin + i) % kColumns<T>", "min(begin + i, kColumns<T> - 1)"),
    "one round of slots": ("i < width; i += 32", "i < min(width, 32); i += 32"),
    "one tile": ("first < k_blocks; first +=", "first < 1; first +="),
    "one group of statistics": ("queries, top + thread)", "queries, thread)"),
    "vectors without a stride": ("row + j * column_stride,", "row + j,"),
    "columns without a stride": ("+ left * queries.column_stride", "+ left"),
    "rows by the stride of keys": ("score += queries.row", "score += queries.column"),
    "m without a stride": ("row * queries.m_stride", "row"),
    "l without a stride": ("row * queries.l_stride", "row"),
    "no rescaling from round to round": ("l *= expf(m_before - base(m));", ""),
    "no rescaling from lane to lane": ("warp_sum(l * expf(m_lane - base(m)))", "warp_sum(l)"),
    "no rescaling of chunks": ("* expf(m_chunks[chunk * rows + row] - base(m))", ""),
    "-inf is subtracted": ("m == -kInfinity ? 0.0f : m", "m"),
    "NaN in l alone": ("l == l ? m : l", "m"),
    "padding counts": ("seen(real_rows - 1 - i, block_size)", "block_size"),
    "a row without mass has weights": ("inverse == 0.0f ? -kInfinity : x - m", "x - m"),
    "no division by l": ("1.0f / l}", "1.0f}"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_is_seen(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By these cases, in one of the orders."""
    sound, (right, wrong) = cuda_three_stage.MODULE, FAULTS[fault]
    text = sound.source.read_text(encoding="utf-8")
    assert right in text
    source = tmp_path / "fault.cu"
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    narrow = ("__half", "__nv_bfloat16")
    declared = sound.declarations.items()
    faulty = Module(
        source, {name: of for name, of in declared if not any(each in name for each in narrow)}
    )
    faulty.built_for(torch.device("cpu"))  # it is a mistake, and no error of a compiler
    monkeypatch.setattr(cuda_three_stage, "MODULE", faulty)
    with pytest.raises(Nonconformance):  # noqa: PT012 - wherever it is
        for seed in SEEDS:
            for each in judged():
                with scheduled(seed):
                    runner().require_close(
                        each.case, each.expected, runner().call(each.case), each.bounds
                    )


# --- machine code --------------------------------------------------------------------------------


@pytest.mark.skipif(
    not find_spec("cuda") or not find_spec("cuda.core"),
    reason="no cuda-core here; install cuda-core, cuda-bindings and nvidia-cuda-nvrtc",
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_every_kernel_compiles(architecture: str) -> None:
    module = cuda_three_stage.MODULE
    try:
        compiled = device.compile_for(architecture, module.source, module.declarations)
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
    assert compiled.code[:4] == b"\x7fELF"
    assert set(compiled.symbol_mapping) == set(module.kernels)
