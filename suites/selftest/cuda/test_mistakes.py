"""Each mistake that ends a launch, and the line that it is told in."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cuda import LaunchFault, Module
from suites.selftest.cuda.programs import Build, zeros

ROOT = Path(__file__).parents[3]

# Each kernel makes one mistake when asked to; the message is in terms of its own lines.
MISTAKES = """__global__ void divergent(int* out, int x) {
    if (threadIdx.x < 40 + 1000 * !x) __syncthreads();
    else __syncthreads();
}
__global__ void early(int* out, int x) {
    if (x && threadIdx.x % 32 == 5) return;
    __syncthreads();
}
__global__ void not_in_mask(int* out, int x) {
    if (!x || threadIdx.x < 16) out[0] = __ballot_sync(x ? 0xfff0 : 0xffffffff, 1);
}
__global__ void missing_lanes(int* out, int x) {
    if (!x || threadIdx.x % 32 < 30) out[0] = __shfl_sync(0xffffffff, 1, 0);
}
__global__ void absent_source(int* out, int x) {
    if (threadIdx.x % 32 < 8) out[0] = __shfl_sync(0xff, 1, x ? 9 : 3);
}
__global__ void deadlock(int* out, int x) {
    if (!x) return;
    if (threadIdx.x < 16) __syncwarp();
    else __syncthreads();
}
__global__ void other_operation(int* out, int x) {
    if (x && threadIdx.x == 3) __any_sync(0xffffffff, 1);
    else __all_sync(0xffffffff, 1);
}
__global__ void misaligned(int* out, int x) {
    reinterpret_cast<int4*>(out + x)[threadIdx.x] = make_int4(1, 2, 3, 4);
}
__global__ void shift(int* out, int x) {
    out[threadIdx.x] = 1u << (x ? threadIdx.x : threadIdx.x & 31);
}
__global__ void product(int* out, int x) {
    out[threadIdx.x] = (threadIdx.x + 3) * (x ? 1000000000 : 1) * 1;
    out[0] = (int)(threadIdx.x + 3) * (x ? 1000000000 : 1);
}
__global__ void sum(int* out, int x) {
    out[0] = (int)threadIdx.x + (x ? 2147483647 : 0);
}
__global__ void quotient(int* out, int x) {
    out[0] = 7 / (x ? (int)threadIdx.x - 9 : 1);
}
__global__ void conversion(int* out, int x) {
    out[0] = (int)((x ? 1e9f : 1.0f) * threadIdx.x);
}
__global__ void outside(int* out, int x) {
    __shared__ int few[50];
    few[x ? threadIdx.x : 0] = 1;
}
__global__ void past_dynamic(int* out, int x) {
    extern __shared__ int numbers[];
    numbers[x ? threadIdx.x : 0] = 1;
}
"""
MESSAGES = {
    "divergent": "divergent barrier: __syncthreads() in line 2 has threads 0-39; "
    "__syncthreads() in line 3 has threads 40-63",
    "early": "a barrier is not reached by threads that returned: "
    "__syncthreads() in line 7 has threads 0-4, 6-36, 38-63; returned have threads 5, 37",
    "not_in_mask": "__ballot_sync(0xfff0) in line 10: the mask lacks lane # of thread #, "
    "which calls it",
    "missing_lanes": "lanes that a mask names do not come: __shfl_sync(0xffffffff) in line 13 "
    "has threads 0-29, 32-61; returned have threads 30-31, 62-63",
    "absent_source": "__shfl_sync(0xff) in line 16: thread # reads from lane 9, "
    "which is not in the mask",
    "deadlock": "deadlock: __syncwarp(0xffffffff) in line 20 has threads 0-15; "
    "__syncthreads() in line 21 has threads 16-63",
    "other_operation": "lanes that a mask names do not come: __all_sync(0xffffffff) in line 25 has "
    "threads 0-2, 4-31; __any_sync(0xffffffff) in line 24 has threads 3; returned have "
    "threads 32-63",
    "misaligned": "an access off its alignment in mistakes.cu, line 28, by thread #",
    "shift": "a shift by as many bits as the operand has, or more, in mistakes.cu, line 31, "
    "by thread #",
    "product": "a signed product that overflows in mistakes.cu, line 35, by thread #",
    "sum": "a signed sum that overflows in mistakes.cu, line 38, by thread #",
    "quotient": "a division by zero, or one that overflows, in mistakes.cu, line 41, by thread 9",
    "conversion": "a conversion of a float that the integer cannot hold, in mistakes.cu, line 44, "
    "by thread #",
    "outside": "an index outside its array in mistakes.cu, line 48, by thread #",
    "past_dynamic": "a store past its 196 bytes of dynamic shared memory",
}


@pytest.fixture
def mistakes(build: Build) -> Module:
    return build(MISTAKES, "mistakes", **dict.fromkeys(MESSAGES, "int*, int"))


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("mistake", MESSAGES)
def test_a_mistake_stops_the_launch_with_one_line(mistakes: Module, mistake: str) -> None:
    out = zeros(4 * 64 + 16)
    kernel = mistakes[mistake]
    kernel.launch(2, 64, out, 0, shared_bytes=196)  # nothing to complain of
    with pytest.raises(LaunchFault) as failure:
        kernel.launch(1, 64, out, 1, shared_bytes=196)
    message = str(failure.value)
    beginning = f"mistakes.cu, {mistake}, block (0, 0, 0): "
    assert message.startswith(beginning)
    words = message.removeprefix(beginning).split(" ")
    wanted = MESSAGES[mistake].split(" ")
    assert len(words) == len(wanted), message
    for word, expected in zip(words, wanted, strict=True):
        number = word.rstrip(",").isdigit() and expected.rstrip(",") == "#"
        assert word == expected or number, message
    kernel.launch(2, 64, out, 0, shared_bytes=196)  # and a failure leaves nothing behind


def test_the_block_of_a_mistake_is_named(build: Build) -> None:
    text = (
        "__global__ void k(int* out) { if (blockIdx.y == 2) out[0] = 1 / (int)(3 - blockIdx.z); }"
    )
    with pytest.raises(LaunchFault, match=r"block \(0, 2, 3\): a division by zero"):
        build(text, "where", k="int*")["k"].launch((1, 3, 4), 32, zeros(1))


DEEP = """
__device__ int deep(int levels) {
    volatile char frame[1024];
    frame[levels] = 1;
    return levels ? deep(levels - 1) + frame[levels] : 0;
}
__global__ void k(int* out, int levels) { if (threadIdx.x == 1) out[0] = deep(levels); }
"""


def test_a_stack_that_overflows_is_a_crash_and_no_damage(sources: Path) -> None:
    """Of 60 KiB a thread. In a process of its own."""
    (sources / "deep.cu").write_text(DEEP, encoding="utf-8")
    program = (
        "import sys, torch; from pathlib import Path; from kernels.cuda import Module\n"
        "kernel = Module(Path(sys.argv[1]), {'k': 'int*, int'})['k']\n"
        "kernel.launch(1, 32, torch.zeros(1, dtype=torch.int32), int(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", program, str(sources / "deep.cu")]
    enough, too_many = (
        subprocess.run([*command, levels], cwd=ROOT, capture_output=True) for levels in ("45", "75")
    )
    assert enough.returncode == 0, enough.stderr.decode()
    assert too_many.returncode == -signal.SIGSEGV


def test_a_library_maps_stacks_for_the_threads_that_it_has_run(build: Build) -> None:
    """A system allows a process some 65,000 mappings, and a stack takes two."""
    maps = Path("/proc/self/maps")
    module = build("__global__ void k(int* out) { out[0] = 1; }", "few", k="int*")
    before = len(maps.read_text("utf-8").splitlines())
    module["k"].launch(1, 64, zeros(1))
    assert len(maps.read_text("utf-8").splitlines()) < before + 2 * 64 + 50
