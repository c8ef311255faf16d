"""Threads of a block: where they are, the order of their turns, barriers, shared memory."""

import threading

import pytest
import torch

from kernels.cuda import Module, scheduled
from suites.selftest.cuda.programs import Build, integers, zeros

# --- where a thread is ---------------------------------------------------------------------------

WHERE = """
__global__ void where(int* out) {
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int* mine = out + 6 * (block * threads + thread);
    mine[0] = blockIdx.x, mine[1] = blockIdx.y, mine[2] = blockIdx.z;
    mine[3] = threadIdx.x, mine[4] = threadIdx.y, mine[5] = threadIdx.z;
}
"""


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(
    ("grid", "block"), [((2, 3, 4), (5, 3, 2)), ((7,), (1024,)), ((1, 2), (1, 1, 64))]
)
def test_every_thread_of_every_block_runs_once(
    build: Build, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    gx, gy, gz = (*grid, 1, 1)[:3]
    bx, by, bz = (*block, 1, 1)[:3]
    wanted = [
        [x, y, z, i, j, k]
        for z in range(gz)
        for y in range(gy)
        for x in range(gx)
        for k in range(bz)
        for j in range(by)
        for i in range(bx)
    ]
    out = torch.full((len(wanted), 6), -1, dtype=torch.int32)
    build(WHERE, where="int*")["where"].launch(grid, block, out)
    assert out.tolist() == wanted


ORDER = """
__global__ void order(int* threads, int* blocks, int* count) {
    const int place = atomicAdd(count, 1);
    threads[place] = threadIdx.x;
    blocks[place] = blockIdx.x;
}
"""


def order_of(build: Build, seed: int) -> tuple[list[int], list[int]]:
    """The threads of 6 blocks of 96, in the order in which they ran, and the blocks."""
    threads, blocks = zeros(6 * 96), zeros(6 * 96)
    kernel = build(ORDER, order="int*, int*, int*")["order"]
    with scheduled(seed):
        kernel.launch(6, 96, threads, blocks, zeros(1))
    assert sorted(threads.tolist()) == sorted(list(range(96)) * 6)
    return threads.tolist(), blocks.tolist()[::96]


def test_seed_0_is_the_order_of_the_numbers(build: Build) -> None:
    assert order_of(build, 0) == (list(range(96)) * 6, list(range(6)))


def test_other_seeds_permute_threads_and_blocks(build: Build) -> None:
    orders = [order_of(build, seed) for seed in range(8)]
    assert orders == [order_of(build, seed) for seed in range(8)]
    assert len({tuple(threads) for threads, _ in orders}) == 8
    assert len({tuple(blocks) for _, blocks in orders}) > 4
    # Warps in all orders, so that each one runs ahead of each other; lanes too.
    first_warps = {threads[0] // 32 for threads, _ in orders}
    assert first_warps == {0, 1, 2}
    assert len({threads[0] % 32 for threads, _ in orders}) > 3


def test_an_order_within_another_is_of_both(build: Build) -> None:
    alone = order_of(build, 5 ^ 9)
    with scheduled(9):
        assert order_of(build, 5) == alone
    assert order_of(build, 5) != alone


RACE = """
__global__ void race(int* out) {
    __shared__ int flag;
    if (threadIdx.x == 40) flag = 1;
    BARRIER;
    out[threadIdx.x] = flag;
}
"""


def test_a_missing_barrier_shows_under_some_order(build: Build) -> None:
    wrong = {"": 0, "__syncthreads()": 0}
    for barrier in wrong:
        kernel = build(RACE.replace("BARRIER", barrier), "race", race="int*")["race"]
        for seed in range(10):
            out = zeros(64)
            with scheduled(seed):
                kernel.launch(1, 64, out)
            wrong[barrier] += out.tolist() != [1] * 64
    assert wrong[""] > 6  # unless thread 40 happens to be the first
    assert wrong["__syncthreads()"] == 0


# --- barriers ------------------------------------------------------------------------------------

BARRIERS = """
__global__ void barriers(const int* in, int* out) {
    __shared__ int shared[96];
    int predicate = in[threadIdx.x];
    for (int round = 0; round < 5; ++round) {
        shared[threadIdx.x] = round * 1000 + threadIdx.x;
        __syncthreads();
        const int other = shared[(threadIdx.x + 37 * (round + 1)) % 96];
        int* mine = out + 4 * (round * 96 + threadIdx.x);
        mine[0] = other;
        mine[1] = __syncthreads_count(predicate);
        mine[2] = __syncthreads_or(predicate);
        mine[3] = __syncthreads_and(predicate);
        predicate = predicate && threadIdx.x % (round + 2) == 0;
    }
}
"""


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("predicates", [[0] * 96, [5] * 96, [i % 3 for i in range(96)]])
def test_barriers(build: Build, predicates: list[int]) -> None:
    out = zeros(5, 96, 4)
    build(BARRIERS, barriers="const int*, int*")["barriers"].launch(
        1, 96, integers(predicates), out
    )
    for number in range(5):
        count = sum(map(bool, predicates))
        assert out[number].tolist() == [
            [number * 1000 + (i + 37 * (number + 1)) % 96, count, int(count > 0), int(count == 96)]
            for i in range(96)
        ]
        predicates = [p if i % (number + 2) == 0 else 0 for i, p in enumerate(predicates)]


# --- shared memory -------------------------------------------------------------------------------

SHARED = """
__global__ void fixed(float* seen) {
    __shared__ float values[32];
    seen[blockIdx.x * 32 + threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = 1.0f;
}
__global__ void dynamic(int* out, int n) {
    extern __shared__ int numbers[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) numbers[i] = 3 * i + 1;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = numbers[n - 1 - i];
}
template <class T>
__global__ void named(T* out) {
    extern __shared__ __align__(16) unsigned char bytes[];
    T* mine = reinterpret_cast<T*>(bytes);
    if (threadIdx.x == 0) out[0] = mine[0];
    mine[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[1 + threadIdx.x] = mine[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.fixture
def shared(build: Build) -> Module:
    return build(
        SHARED,
        "shared",
        fixed="float*",
        dynamic="int*, int",
        **{"named<double>": "double*", "named<float>": "float*"},
    )


@pytest.mark.usefixtures("seed")
def test_shared_memory_starts_as_garbage_in_every_block(shared: Module) -> None:
    seen = torch.zeros(4 * 32)
    shared["fixed"].launch(4, 32, seen)
    assert seen.isnan().all()


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("size", [1, 1000, 227 * 256])
def test_dynamic_shared_memory(shared: Module, size: int) -> None:
    out = zeros(size)
    shared["dynamic"].launch(1, 64, out, size, shared_bytes=4 * size)
    assert out.equal((torch.arange(size, dtype=torch.int32) * 3 + 1).flip(0))


def test_dynamic_shared_memory_is_one_whatever_its_name_and_type(shared: Module) -> None:
    single, double = torch.zeros(65), torch.zeros(65, dtype=torch.float64)
    shared["named<float>"].launch(1, 64, single, shared_bytes=256)
    shared["named<double>"].launch(1, 64, double, shared_bytes=512)
    assert single[1:].tolist() == double[1:].tolist() == list(range(63, -1, -1))
    assert single[0].isnan()


def test_builds_do_not_share_variables(build: Build) -> None:
    """Two sources with a variable of one name, in a template as well, loaded at once."""
    text = """
    template <int n> __device__ int* scratch() { __shared__ int array[SIZE]; return array; }
    __global__ void fill(int* out) {
        for (int i = threadIdx.x; i < SIZE; i += 32) scratch<1>()[i] = SIZE;
        __syncthreads();
        for (int i = threadIdx.x; i < SIZE; i += 32) out[i] = scratch<1>()[i];
    }
    """
    for size in (8, 4000):
        out = zeros(size)
        module = build(text.replace("SIZE", str(size)), f"scratch{size}", fill="int*")
        module["fill"].launch(1, 32, out)
        assert out.eq(size).all()


def test_launches_from_several_threads(shared: Module) -> None:
    """Long enough to overlap, if they could: the interpreter's lock is free meanwhile."""
    results = {size: zeros(size) for size in range(500, 504)}

    def work(size: int) -> None:
        shared["dynamic"].launch(3000, 64, results[size], size, shared_bytes=4 * size)

    workers = [threading.Thread(target=work, args=(size,)) for size in results]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for size, out in results.items():
        assert out.equal((torch.arange(size, dtype=torch.int32) * 3 + 1).flip(0))
