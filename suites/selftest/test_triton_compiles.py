"""Each Triton kernel becomes machine code, on a machine without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# In a process of its own: where kernels are interpreted, they cannot be compiled.
COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.witness import triton_fused

target = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}[sys.argv[1]]
TENSORS = {"learned", "topk_indices", "witnesses", "merged"}
for name in set(triton_fused.KERNELS.values()):
    kernel = getattr(triton_fused, name)
    integers = [a for a in kernel.arg_names if a not in TENSORS | {"SLOTS", "context_lens"}]
    # Triton makes a constant of an integer argument that is 1.
    for lengths, ones in (("*i32", []), ("*i64", []), ("*i32", integers), ("*i32", ["segments"])):
        signature = {
            argument: "constexpr" if argument in {"SLOTS", *ones}
            else lengths if argument == "context_lens"
            else "*i32" if argument in TENSORS
            else "i64" if argument.endswith("stride")
            else "i32"
            for argument in kernel.arg_names
        }
        constants = {"SLOTS": triton_fused.SLOTS} | dict.fromkeys(ones, 1)
        compiled = triton.compile(ASTSource(kernel, signature, constants), target=target)
        machine_code = compiled.asm.get("cubin") or compiled.asm.get("hsaco")
        print(name, lengths, ones, len(machine_code))
"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_kernel_compiles(architecture: str, tmp_path: Path) -> None:
    compiled = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, architecture],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert compiled.returncode == 0, compiled.stderr
    sizes = [int(line.split()[-1]) for line in compiled.stdout.splitlines()]
    assert len(sizes) == 12
    assert min(sizes) > 0
