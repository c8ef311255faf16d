"""Races and accesses out of bounds: each planted one is told with its lines, and no honest kernel.

A faulty kernel and its honest twin are one text: ``$`` stands before what only the faulty one lacks
and ``@`` before what only it has; each of them covers the rest of its line.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.cuda import SANITIZE, LaunchFault, Module, ToolchainMissing
from kernels.witness import cuda_fused
from kernels.xattention import cuda_three_stage
from suites.selftest.cuda.programs import Build, zeros


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    token = SANITIZE.set(True)
    yield
    SANITIZE.reset(token)


# --- planted faults ------------------------------------------------------------------------------

# By kernel: its text, and what the fault is told as. Every one is launched over two blocks of 64
# threads, with 128 integers and 64 bytes of dynamic shared memory.
FAULTS = {
    "initialisation": (
        """__global__ void initialisation(int* out) {
            __shared__ int total;
            if (threadIdx.x == 0) total = 5;
            $__syncthreads();
            out[64 * blockIdx.x + threadIdx.x] = total;
        }""",
        r"a race on byte 0 of shared total, of 4 bytes: "
        r"(a store in \S+, line 3, by thread 0 and a load in \S+, line 5, by thread \d+"
        r"|a load in \S+, line 5, by thread \d+ and a store in \S+, line 3, by thread 0)",
    ),
    "reduction": (
        """__global__ void reduction(int* out) {
            __shared__ int sums[2];
            for (int round = 0; round < 3; ++round) {
                const int sum = __reduce_add_sync(0xffffffff, threadIdx.x + round);
                if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
                __syncthreads();
                out[64 * blockIdx.x + threadIdx.x] = sums[0] + sums[1];
                $__syncthreads();
            }
        }""",
        r"a race on byte \d of shared sums, of 8 bytes: "
        r"a load in \S+, line 7, by thread \d+ and a store in \S+, line 5, by thread \d+",
    ),
    "shared_or": (
        """__global__ void shared_or(int* out) {
            __shared__ unsigned mask;
            if (threadIdx.x == 0) mask = 0;
            __syncthreads();
            $atomicOr(&mask, 1u << threadIdx.x % 32);
            @mask |= 1u << threadIdx.x % 32;
            __syncthreads();
            out[64 * blockIdx.x + threadIdx.x] = mask;
        }""",
        r"a race on byte 0 of shared mask, of 4 bytes: "
        r"a store in \S+, line 6, by thread \d+ and a load in \S+, line 6, by thread \d+",
    ),
    "global_or": (
        """__global__ void global_or(int* out) {
            $if (threadIdx.x == 9) atomicOr(&out[5], 1 << blockIdx.x);
            @if (threadIdx.x == 9) out[5] |= 1 << blockIdx.x;
        }""",
        r"a race on byte 20 of argument 0, int\*, of 512 bytes: "
        r"a store in \S+, line 3, by thread 9 of block \(\d, 0, 0\) "
        r"and a load in \S+, line 3, by thread 9",
    ),
    "counted_and_read": (
        """__global__ void counted_and_read(int* out) {
            __shared__ int count;
            if (threadIdx.x == 0) count = 0;
            __syncthreads();
            atomicAdd(&count, 1);
            $__syncthreads();
            out[64 * blockIdx.x + threadIdx.x] = count;
        }""",
        r"a race on byte 0 of shared count, of 4 bytes: "
        r"(an atomic in \S+, line 5, by thread \d+ and a load in \S+, line 7, by thread \d+"
        r"|a load in \S+, line 7, by thread \d+ and an atomic in \S+, line 5, by thread \d+)",
    ),
    "counted_in_a_warp": (
        """__global__ void counted_in_a_warp(int* out) {
            __shared__ int count;
            if (threadIdx.x == 0) count = 0;
            __syncthreads();
            if (threadIdx.x >= 32) return;
            atomicAdd(&count, 1);
            __shfl_sync(0xffffffff, 0, 0);
            $__syncwarp();
            out[64 * blockIdx.x + threadIdx.x] = count;
        }""",
        r"a race on byte 0 of shared count, of 4 bytes: "
        r"an atomic in \S+, line 6, by thread \d+ and a load in \S+, line 9, by thread \d+",
    ),
    "warp": (
        """__global__ void warp(int* out) {
            __shared__ int values[64];
            values[threadIdx.x] = threadIdx.x;
            $__syncwarp();
            out[64 * blockIdx.x + threadIdx.x] = values[threadIdx.x ^ 1];
        }""",
        r"a race on byte \d+ of shared values, of 256 bytes: "
        r"(a store in \S+, line 3, by thread \d+ and a load in \S+, line 5, by thread \d+"
        r"|a load in \S+, line 5, by thread \d+ and a store in \S+, line 3, by thread \d+)",
    ),
    "shuffle_is_no_barrier": (
        """__global__ void shuffle_is_no_barrier(int* out) {
            __shared__ int values[64];
            values[threadIdx.x] = threadIdx.x;
            const int other = __shfl_xor_sync(0xffffffff, (int)threadIdx.x, 1);
            $__syncwarp();
            out[64 * blockIdx.x + threadIdx.x] = values[other];
        }""",
        r"a race on byte \d+ of shared values, of 256 bytes: "
        r"a store in \S+, line 3, by thread \d+ and a load in \S+, line 6, by thread \d+",
    ),
    "half_a_warp": (
        """__global__ void half_a_warp(int* out) {
            __shared__ int values[64];
            const unsigned half = threadIdx.x % 32 < 16 ? 0xffff : 0xffff0000;
            values[threadIdx.x] = threadIdx.x;
            __shfl_sync(0xffffffff, 0, 0);
            $__syncwarp();
            @__syncwarp(half);
            out[64 * blockIdx.x + threadIdx.x] = values[threadIdx.x ^ 16];
        }""",
        r"a race on byte \d+ of shared values, of 256 bytes: "
        r"a store in \S+, line 4, by thread \d+ and a load in \S+, line 8, by thread \d+",
    ),
    "last_block": (
        """__device__ unsigned tickets;
        __global__ void last_block(int* out) {
            __shared__ bool last;
            out[64 * blockIdx.x + threadIdx.x] = 1;
            $__threadfence();
            __syncthreads();
            if (threadIdx.x == 0) last = atomicInc(&tickets, 1) == 1;
            __syncthreads();
            if (last) out[64 * blockIdx.x + threadIdx.x] += out[64 * !blockIdx.x + threadIdx.x];
        }""",
        r"a race on byte \d+ of argument 0, int\*, of 512 bytes: "
        r"a store in \S+, line 4, by thread \d+ of block \(\d, 0, 0\) "
        r"and a load in \S+, line 9, by thread \d+",
    ),
    "last_block_unsynchronised": (
        """__device__ unsigned tickets2;
        __global__ void last_block_unsynchronised(int* out) {
            __shared__ bool last;
            out[64 * blockIdx.x + threadIdx.x] = 1;
            __threadfence();
            $__syncthreads();
            if (threadIdx.x == 0) last = atomicInc(&tickets2, 1) == 1;
            __syncthreads();
            if (last) out[64 * blockIdx.x + threadIdx.x] += out[64 * !blockIdx.x + threadIdx.x];
        }""",
        r"a race on byte \d+ of argument 0, int\*, of 512 bytes: "
        r"a store in \S+, line 4, by thread \d+ of block \(\d, 0, 0\) "
        r"and a load in \S+, line 9, by thread \d+",
    ),
    "load_past_the_end": (
        """__global__ void load_past_the_end(int* out) {
            const int at = 64 * blockIdx.x + threadIdx.x;
            $const int next = at + 1 < 128 ? out[at + 1] : 0;
            @const int next = out[at + 1];
            __syncthreads();
            if (next == 7 && at == 127) out[at] = next;
        }""",
        r"a load in \S+, line 4, by thread 63 reaches 4 bytes from byte 512 on "
        r"of argument 0, int\*, of 512 bytes",
    ),
    "store_past_the_end": (
        """__global__ void store_past_the_end(int* out) {
            const int at = 64 * blockIdx.x + threadIdx.x;
            $out[at] = 1;
            @out[at + 1] = 1;
        }""",
        r"a store in \S+, line 4, by thread 63 reaches 4 bytes from byte 512 on "
        r"of argument 0, int\*, of 512 bytes",
    ),
    "store_before_the_beginning": (
        """__global__ void store_before_the_beginning(int* out) {
            const long long at = 64 * blockIdx.x + threadIdx.x;
            $out[at] = 1;
            @out[at - 1] = 1;
        }""",
        r"a store in \S+, line 4, by thread 0 reaches 4 bytes from byte -4 on "
        r"of argument 0, int\*, of 512 bytes",
    ),
    "vector_past_the_end": (
        """__global__ void vector_past_the_end(int* out) {
            int4* vectors = reinterpret_cast<int4*>(out) + 16 * blockIdx.x;
            $const int count = 16;
            @const int count = 16 + blockIdx.x;
            if (threadIdx.x < count) vectors[threadIdx.x] = make_int4(1, 2, 3, 4);
        }""",
        r"a store in \S+, line 5, by thread 16 reaches \d+ bytes from byte 512 on "
        r"of argument 0, int\*, of 512 bytes",
    ),
    "shared_past_the_end": (
        """__device__ void put(int* array, int at) { array[at] = at; }
        __global__ void shared_past_the_end(int* out) {
            __shared__ int first[64], second[64];
            put(second, threadIdx.x);
            $put(first, threadIdx.x);
            @put(first, threadIdx.x + 1);
            __syncthreads();
            out[64 * blockIdx.x + threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
        }""",
        r"a store in \S+, line 1, by thread 63 reaches 4 bytes from byte 256 on "
        r"of shared first, of 256 bytes",
    ),
    "dynamic_past_the_end": (
        """__global__ void dynamic_past_the_end(int* out) {
            extern __shared__ int numbers[];
            if (threadIdx.x < 16) numbers[threadIdx.x] = 1;
            __syncthreads();
            $out[64 * blockIdx.x + threadIdx.x] = numbers[threadIdx.x % 16];
            @out[64 * blockIdx.x + threadIdx.x] = numbers[threadIdx.x % 16 + 1];
        }""",
        r"a load in \S+, line 6, by thread \d+ reaches 4 bytes from byte 64 on "
        r"of dynamic shared memory, of 64 bytes",
    ),
    "local_of_another": (
        """__global__ void local_of_another(int* out) {
            __shared__ int* address;
            int mine[4] = {out[0], 1, 2, 3};
            if (threadIdx.x == 5) address = mine;
            __syncthreads();
            $if (threadIdx.x == 5) out[64 * blockIdx.x + 1] = address[1];
            @if (threadIdx.x == 6) out[64 * blockIdx.x + 1] = address[1];
        }""",
        r"a load in \S+, line 7, by thread 6 reaches local memory of thread 5",
    ),
}


def twins(text: str) -> tuple[str, str]:
    """The honest one and the faulty one, line by line alike."""
    honest = re.sub(r"@.*", "", text).replace("$", "")
    faulty = re.sub(r"\$.*", "", text).replace("@", "")
    return honest, faulty


@pytest.fixture(scope="session")
def planted(sources: Path) -> dict[str, Module]:
    """All honest kernels, and all faulty ones: two builds, for each takes seconds."""
    modules = {}
    for which, kind in enumerate(("honest", "faulty")):
        text = "\n".join(twins(kernel)[which] for kernel, _ in FAULTS.values())
        (sources / f"{kind}.cu").write_text(text, encoding="utf-8")
        modules[kind] = Module(sources / f"{kind}.cu", dict.fromkeys(FAULTS, "int*"))
    return modules


def lines_before(name: str) -> int:
    """How many lines of the file come before those of a kernel."""
    texts = [text for text, _ in FAULTS.values()][: list(FAULTS).index(name)]
    return sum(text.count("\n") + 1 for text in texts)


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_told_with_its_lines(planted: dict[str, Module], name: str) -> None:
    planted["honest"][name].launch(2, 64, zeros(128), shared_bytes=64)
    kernel = planted["faulty"][name]
    with pytest.raises(LaunchFault) as failure:
        kernel.launch(2, 64, zeros(128), shared_bytes=64)
    own_lines = re.sub(
        r"line (\d+)",
        lambda found: f"line {int(found[1]) - lines_before(name)}",
        str(failure.value),
    )
    beginning = rf"faulty\.cu, {name}, block \(\d, 0, 0\): "
    assert re.fullmatch(beginning + FAULTS[name][1], own_lines), own_lines
    assert f"{name}(int*)" in str(failure.value.__cause__)
    planted["honest"][name].launch(2, 64, zeros(128), shared_bytes=64)  # nothing is left behind


# --- what is no fault ----------------------------------------------------------------------------

HONEST = """
__device__ int calls;
__constant__ float table[4] = {1, 2, 3, 4};

// The loop that CUDA's own guide has: the load before it may race, and does no harm.
__global__ void compare_and_swap(int* out, int n) {
    int before = out[0], assumed;
    do {
        assumed = before;
        before = atomicCAS(&out[0], assumed, assumed + 1);
    } while (before != assumed);
    atomicAdd(&calls, 1);
}

// A tree over a warp, over the block through shared memory, and over all blocks; some return.
__global__ void sum(int* out, int n) {
    __shared__ int warps[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int total = i < n ? 1 : 0;
    for (int bit = 16; bit; bit /= 2) total += __shfl_xor_sync(0xffffffff, total, bit);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    total = __reduce_add_sync(0xffffffff, total);
    if (threadIdx.x == 0) atomicAdd(out, total * (int)table[0]);
}

// Shared memory of each block, used again and again; a warp that goes on by itself.
__global__ void scan(int* out, int n) {
    extern __shared__ int values[];
    for (int round = 0; round < 2; ++round) {
        values[threadIdx.x] = round + 1;
        __syncthreads();
        for (int step = 1; step < blockDim.x; step *= 2) {
            const int left = threadIdx.x >= step ? values[threadIdx.x - step] : 0;
            __syncthreads();
            values[threadIdx.x] += left;
            __syncthreads();
        }
        out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.x >= 32) return;
    for (int step = 16; step; step /= 2) {
        if (threadIdx.x < step) values[threadIdx.x] += values[threadIdx.x + step];
        __syncwarp();
    }
}

// Bytes of one word, by threads each; and words, four at a time.
__global__ void mixed(int* out, int n) {
    reinterpret_cast<unsigned char*>(out + 256 * blockIdx.x)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x % 16) return;
    int4* vectors = reinterpret_cast<int4*>(out + 256 * blockIdx.x) + 16 + threadIdx.x / 16;
    *vectors = reinterpret_cast<int4*>(out + 256 * blockIdx.x)[threadIdx.x / 16];
}

// One warp hands its work to another without a barrier, by a ticket.
__global__ void last_warp(int* out, int n) {
    __shared__ int parts[4];
    __shared__ unsigned tickets;
    if (threadIdx.x == 0) tickets = 0;
    __syncthreads();
    if (threadIdx.x % 32) return;
    parts[threadIdx.x / 32] = threadIdx.x;
    __threadfence_block();
    if (atomicInc(&tickets, 1000) < 3) return;
    __threadfence_block();
    out[blockIdx.x] = parts[0] + parts[1] + parts[2] + parts[3];
}

// What follows is honest with some arguments.
__device__ void put(int* array, int at) { array[at] = at; }
__global__ void arrays(int* out, int which, int at) {
    __shared__ int one[64], two[64], three[64];
    put(one, 0), put(two, 0), put(three, 0);
    put(which == 0 ? one : which == 1 ? two : three, at);
}
__global__ void copy(const int* from, int* to, long long at) { to[at] = from[at]; }
__global__ void overlap(int* a, int* b) {
    if (threadIdx.x == 1) a[3] = 1;
    else b[0] = 2;
}
"""
RESULTS = {  # by kernel: what the first integer becomes
    "compare_and_swap": 3 * 128,
    "sum": 300,
    "scan": 2,
    "mixed": 0x03020100,
    "last_warp": 32 + 64 + 96,
}


@pytest.fixture
def honest(build: Build) -> Module:
    return build(
        HONEST,
        "no_fault",
        **dict.fromkeys(RESULTS, "int*, int"),
        arrays="int*, int, int",
        copy="const int*, int*, long long",
        overlap="int*, int*",
    )


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("name", RESULTS)
def test_what_is_no_fault_runs_to_its_end(honest: Module, name: str) -> None:
    out = zeros(3 * 256)
    honest[name].launch(3, 128, out, 300, shared_bytes=4 * 128)
    assert out[0] == RESULTS[name]


def test_builds_that_are_watched_are_apart_from_others(honest: Module) -> None:
    token = SANITIZE.set(False)
    plain = honest.built_for(torch.device("cpu"))
    SANITIZE.reset(token)
    assert honest.built_for(torch.device("cpu")) is not plain
    assert honest.built_for(torch.device("cpu")) is honest.built_for(torch.device("cpu"))


@pytest.mark.parametrize(("which", "name"), [(0, "one"), (1, "two"), (2, "three")])
def test_no_shared_array_borders_on_another(honest: Module, which: int, name: str) -> None:
    kernel = honest["arrays"]
    kernel.launch(1, 1, zeros(1), which, 63)
    with pytest.raises(LaunchFault, match=f"from byte 256 on of shared {name}, of 256 bytes"):
        kernel.launch(1, 1, zeros(1), which, 64)


# --- tensors -------------------------------------------------------------------------------------


def test_the_gaps_of_a_tensor_belong_to_nobody(honest: Module) -> None:
    """Rows of 3 in a storage of rows of 8."""
    rows, out = zeros(4, 8)[:, :3], zeros(64)
    for at in (0, 2, 8, 26):
        honest["copy"].launch(1, 1, rows, out, at)
    for at, where in ((3, "12 on .*, between its elements"), (27, "108 on of argument 0, .* 108 ")):
        with pytest.raises(LaunchFault, match=f"a load in .* reaches 4 bytes from byte {where}"):
            honest["copy"].launch(1, 1, rows, out, at)


def test_tensors_that_overlap_are_one(honest: Module) -> None:
    kernel = honest["overlap"]
    storage = zeros(8)
    kernel.launch(1, 2, storage[:4], storage[4:])
    with pytest.raises(LaunchFault, match=r"on byte 12 of argument 0, int.* and argument 1, int"):
        kernel.launch(1, 2, storage[:4], storage[3:])


def test_an_empty_tensor_holds_nothing(honest: Module) -> None:
    with pytest.raises(LaunchFault, match=r"a load in .*, by thread 0 reaches 4 bytes"):
        honest["copy"].launch(1, 1, zeros(0), zeros(1), 0)


# --- the kernels of this project -----------------------------------------------------------------


def changed(build: Build, original: Module, kernel: str, old: str, new: str) -> Module:
    """One kernel of a copy of a module whose source is changed in one place."""
    text = original.source.read_text(encoding="utf-8")
    assert text.count(old) == 1
    declarations = {kernel: original.declarations[kernel]}
    return build(text.replace(old, new), original.source.stem, **declarations)


def line_of(original: Module, text: str) -> int:
    return original.source.read_text("utf-8").partition(text)[0].count("\n") + 1


WITNESS_FAULTS = {
    "no barrier": (
        "    __syncthreads();\n    mask = 0;",
        "\n    mask = 0;",
        r"a race on byte \d+ of shared warp_masks, of 32 bytes: "
        "(a store in .*, line STORE, .* and a load in .*, line LOAD, "
        "|a load in .*, line LOAD, .* and a store in .*, line STORE, )",
    ),
    "one slot too many": (
        "slot < topk; slot += kThreads) one(slot, row[slot]);",
        "slot <= topk; slot += kThreads) one(slot, row[slot]);",
        r"a load in .*, line SLOT, by thread 0 reaches 4 bytes from byte 480 on "
        r"of argument 0, const int\*, of 480 bytes",
    ),
    "one witness too many": (
        "if (bit < min(segments - first, kBits)) {",
        "if (bit <= min(segments - first, kBits)) {",
        r"a store in .*, line WITNESS, by thread 7 reaches 4 bytes from byte 28 on "
        r"of argument 2, int\*, of 28 bytes",
    ),
}
WITNESS_LINES = {
    "STORE": "if (threadIdx.x % 32 == 0) warp_masks",
    "LOAD": "mask |= warp_masks[warp]",
    "SLOT": "one(slot, row[slot]);",
    "WITNESS": "witnesses[row * segments + first + bit] =",
}


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("fault", WITNESS_FAULTS)
def test_faults_planted_into_a_witness_kernel(
    build: Build, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    old, new, message = WITNESS_FAULTS[fault]
    for name, text in WITNESS_LINES.items():
        message = message.replace(name, str(line_of(cuda_fused.MODULE, text)))
    module = changed(build, cuda_fused.MODULE, "witness_indices<long long>", old, new)
    learned, lengths = zeros(1, 120), torch.tensor([1000])
    cuda_fused.topology_witness_indices(lengths, learned, 7)
    monkeypatch.setattr(cuda_fused, "MODULE", module)
    with pytest.raises(LaunchFault, match=message):
        cuda_fused.topology_witness_indices(lengths, learned, 7)


XATTENTION_FAULTS = {
    "no barrier": (
        "slots[thread * kVector<T> + i] = own[i];\n    __syncthreads();",
        "slots[thread * kVector<T> + i] = own[i];\n",
        r"a race on byte \d+ of shared slots, of 4096 bytes: .* by thread \d+",
    ),
    "no barrier in a loop": (
        "        const int rows = min(queries.rows - top, kRows);\n        __syncthreads();",
        "        const int rows = min(queries.rows - top, kRows);\n",
        r"a race on byte \d+ of (shared weighing, of 512|argument [12], float\*, of 512) bytes: .*",
    ),
    "one row too many": (
        "if (thread < rows) weighing",
        "if (thread <= rows) weighing",
        r"a store in .* by thread 64 reaches \d bytes from byte 512 on of shared weighing, of 512",
    ),
}


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("fault", XATTENTION_FAULTS)
def test_faults_planted_into_a_softmax_kernel(
    build: Build, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    old, new, message = XATTENTION_FAULTS[fault]
    module = changed(build, cuda_three_stage.MODULE, "one_pass_block_sums<float>", old, new)
    scores = torch.zeros(1, 1, 128, 512)

    def call() -> None:
        cuda_three_stage.softmax_fuse_block_sum(scores, 128, 128, 0, 128, 128, 1.0, False)

    call()
    monkeypatch.setattr(cuda_three_stage, "MODULE", module)
    with pytest.raises(LaunchFault, match=message):
        call()


# --- what a machine may lack ---------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["readelf", "addr2line"])
def test_without_binutils_the_remedy_is_told(
    honest: Module, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else which(name))
    with pytest.raises(ToolchainMissing, match=f"takes {tool}, .* install binutils") as missing:
        honest["copy"].launch(1, 1, zeros(1), zeros(1), 1)
    assert "\n" not in str(missing.value)
