"""What is read of machine code, and the occupancy that it allows."""

import json
import struct

import pytest

from suites.compile.architectures import ARCHITECTURES
from suites.compile.figures import Figures
from suites.compile.machine_code import Assembly, Cubin, amd, code_of, nvidia, split

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function other:
  REG:12 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:584 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z6kernelPi:
  REG:178 STACK:24 SHARED:1056 LOCAL:0 CONSTANT[0]:1008 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
OPCODES = (
    *("S2R", "LDG.E", "LDG.E.U16", "LDGSTS.E.BYPASS.128", "LDS.128", "BAR.SYNC.DEFER_BLOCKING"),
    *("LDC.64", "HFMA2.MMA", "HGMMA.64x64x16.F32.BF16", "HGMMA.64x64x16.F32.BF16", "WARPSYNC"),
    *("STL.64", "STL", "LDL", "LDL.LU.64", "LDL.U8", "BAR.SYNC", "STG.E.64", "STG.E.U8", "EXIT"),
)
CUBIN = Cubin(b"", "_Z6kernelPi", threads=256, dynamic_shared=4096)
ASSEMBLY = """
kernel:                                 ; @kernel
; %bb.0:
	s_load_dwordx4 s[0:3], s[0:1], 0x0
	buffer_load_dwordx2 v[0:1], v0, s[4:7], 0 offen
	global_load_ushort v2, v[0:1], off
	ds_read_b128 v[4:7], v3
	s_barrier
	v_mfma_f32_32x32x8_f16 v[0:15], v[0:1], v[2:3], v[0:15]
	v_mfma_f32_32x32x8_f16 v[0:15], v[0:1], v[2:3], v[0:15]
	scratch_store_dwordx2 off, v[0:1], s32
	scratch_load_dword v0, off, s32
	buffer_store_short v0, v1, s[4:7], 0 offen
	global_store_dwordx4 v[0:1], v[2:5], off
	s_endpgm
; codeLenInByte = 5260
; ScratchSize: 8
    .private_segment_fixed_size: 8
    .sgpr_count:     46
    .sgpr_spill_count: 3
    .vgpr_count:     36
    .vgpr_spill_count: 2
"""


# --- reading machine code ------------------------------------------------------------------------


def test_figures_of_a_cubin() -> None:
    figures = nvidia(CUBIN, USAGE, OPCODES, ARCHITECTURES["sm_90"])
    assert figures == Figures(
        threads=256,
        registers=178,
        code=16 * len(OPCODES),
        occupancy=0.125,
        spill_stores=12,
        spill_loads=13,
        stack=24,
        static_shared=32,
        dynamic_shared=4096,
        widest_load=128,
        widest_store=64,
        tensor_cores={"HGMMA.64x64x16.F32.BF16": 2},
        barriers=2,
        order="LBS",
    )


def test_shared_memory_of_the_system_is_counted_from_sm_90_on_alone() -> None:
    before, after = (
        nvidia(CUBIN, USAGE, OPCODES, ARCHITECTURES[name]) for name in ("sm_89", "sm_90")
    )
    assert (before.static_shared, after.static_shared) == (1056, 32)


def test_a_cubin_that_says_nothing_of_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing of _Z6kernelPx"):
        nvidia(Cubin(b"", "_Z6kernelPx", 32, 0), USAGE, OPCODES, ARCHITECTURES["sm_80"])


@pytest.mark.parametrize(
    ("opcode", "is_tensor"),
    [
        ("HMMA.16816.F32", True),
        ("IMMA.16832.S8.S8", True),
        ("UTCHMMA", True),
        ("UTCQMMA.2CTA", True),
        ("HFMA2.MMA", False),
        ("FFMA", False),
    ],
)
def test_tensor_cores_of_nvidia(opcode: str, is_tensor: bool) -> None:
    figures = nvidia(CUBIN, USAGE, [opcode], ARCHITECTURES["sm_80"])
    assert bool(figures.tensor_cores) == is_tensor


def test_figures_of_assembly() -> None:
    assert amd(Assembly(ASSEMBLY, 256, 1024), ARCHITECTURES["gfx942"]) == Figures(
        threads=256,
        registers=36,
        code=5260,
        occupancy=1.0,
        spill_stores=8,
        spill_loads=4,
        spilled_registers=5,
        stack=8,
        dynamic_shared=1024,
        widest_load=64,
        widest_store=128,
        tensor_cores={"v_mfma_f32_32x32x8_f16": 2},
        barriers=1,
        order="LBS",
    )


def test_assembly_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="does not say"):
        amd(Assembly("", 256, 0), ARCHITECTURES["gfx942"])


def elf(**sections: bytes) -> bytes:
    """An ELF file of these sections, and one of their names."""
    names = b"\0" + b"".join(f".text.{name}\0".encode() for name in sections) + b".shstrtab\0"
    content, headers = bytearray(64), []
    for name, code in {**sections, "": names}.items():
        label = f".text.{name}\0".encode() if name else b".shstrtab\0"
        headers.append((names.index(label), 1, 0, 0, len(content), len(code), 0, 0, 0, 0))
        content += code
    struct.pack_into("<Q", content, 40, len(content))
    struct.pack_into("<HHH", content, 58, 64, len(headers), len(headers) - 1)
    return bytes(content) + b"".join(struct.pack("<IIQQQQIIQQ", *each) for each in headers)


def test_code_is_found_by_its_symbol() -> None:
    content = elf(kernel_2=b"b" * 32, kernel=b"a" * 16)
    assert code_of(Cubin(content, "kernel", 32, 0)) == b"a" * 16
    assert code_of(Cubin(content, "kernel_2", 32, 0)) == b"b" * 32
    with pytest.raises(ValueError, match="no code of kern"):
        code_of(Cubin(content, "kern", 32, 0))


def test_a_disassembly_of_several_codes_is_taken_apart() -> None:
    said = json.dumps([{}, [{"sass-instructions": [{"opcode": each} for each in "ABCDE"]}]])
    assert split(said, [bytes(32), bytes(48)]) == [["A", "B"], ["C", "D", "E"]]
    for codes in ([bytes(32), bytes(32)], [bytes(32), bytes(64)]):
        with pytest.raises(ValueError, match="another number"):
            split(said, codes)


# --- occupancy: by hand, from the tables of the vendors ------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "needs", "expected"),
    [
        ("sm_80", {"threads": 256, "registers": 128}, 16 / 64),
        ("sm_80", {"threads": 128, "registers": 33}, 48 / 64),  # as 40: 12 warps a scheduler
        ("sm_80", {"threads": 32, "registers": 16}, 32 / 64),  # no more than 32 blocks
        ("sm_89", {"threads": 128, "registers": 40}, 48 / 48),
        ("sm_89", {"threads": 32, "registers": 16}, 24 / 48),
        ("sm_80", {"threads": 256, "registers": 32, "shared": 48 * 1024}, 3 * 8 / 64),
        ("sm_90", {"threads": 256, "registers": 32, "shared": 48 * 1024}, 4 * 8 / 64),
        ("sm_89", {"threads": 256, "registers": 32, "shared": 99 * 1024}, 0.1667),
        ("sm_89", {"threads": 256, "registers": 32, "shared": 99 * 1024 + 1}, 0),
        ("sm_100", {"threads": 256, "registers": 32, "tensor_memory": 256}, 2 * 8 / 64),
        ("sm_80", {"threads": 1024, "registers": 255}, 0),
        ("gfx942", {"threads": 256, "registers": 64}, 1),
        ("gfx942", {"threads": 256, "registers": 65}, 7 / 8),
        ("gfx942", {"threads": 512, "registers": 255}, 2 / 8),
        ("gfx942", {"threads": 256, "registers": 32, "shared": 24 * 1024}, 2 * 4 / 32),
    ],
)
def test_occupancy(architecture: str, needs: dict[str, int], expected: float) -> None:
    assert ARCHITECTURES[architecture].occupancy(**{"shared": 0} | needs) == expected
