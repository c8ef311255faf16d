"""The compile tier: what it reads, what it compares, and how it runs where tools are missing."""

import json
import re
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor

from golden.record import Footer, Header, Measurement
from kernels import api, catalog
from kernels.cuda.toolchain import BuildError, ToolchainMissing
from suites.compile import test_figures
from suites.compile.accepted import compare, read, text_of, write
from suites.compile.architectures import ARCHITECTURES
from suites.compile.bounds import ORDERS
from suites.compile.calls import calls
from suites.compile.compiler import Compiled, Compiler
from suites.compile.conftest import in_one_line
from suites.compile.figures import CompiledFile, Figures, changes
from suites.compile.machine_code import Assembly, Cubin, amd, code_of, nvidia, split
from suites.compile.measurements import figures_of, work_of_calls
from suites.compile.tables import changes_table, occupancy_table
from suites.compile.variants import Variant
from suites.compile.worker import Survey
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

TIER = str(ROOT / "suites" / "compile")

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


# --- what is compiled ----------------------------------------------------------------------------


def test_every_operation_is_called() -> None:
    wanted = {
        operation
        for protocol in (api.WitnessKernels, api.XAttentionKernels)
        for operation in catalog.operations(protocol)
    }
    assert {call.operation for call in calls()} == wanted


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        yield from value


def test_aligned_rows_are_aligned_and_odd_ones_are_not() -> None:
    for call in calls():
        for name, value in call.arguments.items():
            for tensor in tensors(value):
                *_, row, columns = (1, *tensor.stride())
                if call.rows == "aligned":
                    assert tensor.data_ptr() % 16 == 0, (call.label, name)
                    assert columns == 1
                    assert row == 1 or row % 16 == 0, (call.label, name)
                if call.rows == "odd":
                    assert tensor.data_ptr() % 16 != 0, (call.label, name)
                    assert columns == 2
                    assert row == 1 or row % 2 == 1, (call.label, name)


# --- figures that were accepted ------------------------------------------------------------------

SMALL = Figures(threads=128, registers=32, code=1024, occupancy=1.0)
WIDE = msgspec.structs.replace(SMALL, widest_load=128, tensor_cores={"HMMA": 4})
TOOLS = {"triton": "1.2.3", "ptxas": "4.5.6"}


def made(*, toolchain: dict[str, str] = TOOLS, **variants: dict[str, Figures]) -> CompiledFile:
    return CompiledFile(toolchain, variants)


def test_the_text_of_figures_is_canonical(tmp_path: Path) -> None:
    file = made(b={"sm_80": SMALL}, a={"sm_90": SMALL, "gfx942": WIDE})
    text = """{
  "toolchain": {"ptxas": "4.5.6", "triton": "1.2.3"},
  "variants": {
    "a": {
      "sm_90": {"threads": 128, "registers": 32, "code": 1024, "occupancy": 1.0},
      "gfx942": {"threads": 128, "registers": 32, "code": 1024, "occupancy": 1.0, \
"widest_load": 128, "tensor_cores": {"HMMA": 4}}
    },
    "b": {
      "sm_80": {"threads": 128, "registers": 32, "code": 1024, "occupancy": 1.0}
    }
  }
}
"""
    assert text_of(file) == text
    write(tmp_path / "family" / "module.json", file)
    assert read(tmp_path / "family" / "module.json") == file


@pytest.mark.parametrize("path", sorted((ROOT / "golden" / "compiled").glob("*/*.json")))
def test_accepted_figures_are_canonical(path: Path) -> None:
    file = read(path)
    assert file is not None
    assert path.read_text(encoding="utf-8") == text_of(file)


def test_a_file_that_holds_no_figures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "module.json").write_text('{"toolchain": {}, "variants": {"a": {"sm_80": {}}}}')
    with pytest.raises(ValueError, match=r"module\.json: .*threads.*--accept"):
        read(tmp_path / "module.json")


def test_changes_name_each_figure_and_each_kernel_that_came_or_went() -> None:
    before = {"a": {"sm_80": SMALL, "sm_90": SMALL}, "gone": {"sm_80": SMALL}}
    after = {"a": {"sm_80": WIDE, "sm_90": SMALL, "gfx942": SMALL}}
    found = [(c.variant, c.architecture, c.figure) for c in changes(before, after)]
    assert found == [
        ("a", "sm_80", "widest_load"),
        ("a", "sm_80", "tensor_cores"),
        ("a", "gfx942", "compiled"),
        ("gone", "sm_80", "compiled"),
    ]
    table = [line.split() for line in changes_table(changes(before, after)).splitlines()]
    assert ["a", "sm_80", "widest_load", "0", "128"] in table
    assert ["a", "sm_80", "tensor_cores", "none", "4", "HMMA"] in table
    assert ["a", "gfx942", "compiled", "none", "yes"] in table
    assert ["gone", "sm_80", "compiled", "yes", "none"] in table


def test_a_changed_figure_fails_with_both(tmp_path: Path) -> None:
    path = tmp_path / "module.json"
    write(path, made(a={"sm_80": SMALL}))
    assert compare(path, made(a={"sm_80": SMALL})) == ""
    with pytest.raises(pytest.fail.Exception) as failure:
        compare(path, made(a={"sm_80": WIDE}))
    first, *table = str(failure.value).splitlines()
    assert first.startswith("2 figures are not the accepted ones")
    assert "python -m pytest suites/compile --accept" in first
    assert ["a", "sm_80", "widest_load", "0", "128"] in [line.split() for line in table]


def test_another_toolchain_is_reported_and_does_not_fail(tmp_path: Path) -> None:
    path, other = tmp_path / "module.json", {"triton": "1.2.4", "ptxas": "4.5.6"}
    write(path, made(a={"sm_80": SMALL}))
    report = compare(path, made(toolchain=other, a={"sm_80": WIDE}))
    first, *table = report.splitlines()
    assert first == (
        "2 figures differ with ptxas 4.5.6, triton 1.2.4 from those with ptxas 4.5.6, triton 1.2.3"
    )
    assert ["a", "sm_80", "widest_load", "0", "128"] in [line.split() for line in table]
    assert compare(path, made(toolchain=other, a={"sm_80": SMALL})) == ""


def test_of_many_changes_the_first_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "module.json"
    names = [f"v{number:02}" for number in range(25)]
    write(path, CompiledFile(TOOLS, {name: {"sm_80": SMALL} for name in names}))
    report = compare(path, CompiledFile({}, {name: {"sm_80": WIDE} for name in names}))
    assert report.startswith("50 figures differ")
    assert "v19" in report
    assert "v20" not in report
    assert "and 10 more: `git diff golden/compiled`" in report


def test_figures_that_nobody_accepted_fail(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no figures yet; .*--accept"):
        compare(tmp_path / "module.json", made(a={"sm_80": SMALL}))


def test_figures_are_written_when_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_figures, "path_of", lambda module: tmp_path / f"{module}.json")
    test, reported = test_figures.test_figures_are_the_accepted_ones, dict[str, str]()
    test("family/module", made(a={"sm_80": SMALL}), True, reported)
    assert reported.pop("family/module") == "accepted: golden/compiled/family/module.json"
    test("family/module", made(a={"sm_80": SMALL}), False, reported)
    with pytest.raises(pytest.fail.Exception, match="2 figures are not"):
        test("family/module", made(a={"sm_80": WIDE}), False, reported)
    assert reported == {}
    test("family/module", made(toolchain={}, a={"sm_80": WIDE}), False, reported)
    assert "2 figures differ" in reported["family/module"]
    test("family/module", made(a={"sm_80": WIDE}), True, reported)
    test("family/module", made(a={"sm_80": WIDE}), False, reported)


def test_all_of_a_module_is_accepted_whatever_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options such as ``-k`` choose modules, and never some variants of one."""
    variants = [compiled("kernel", label, "").variant for label in ("float32-odd", "int32-odd")]
    surveys = {
        name: Survey(tuple(variants[:count]), frozenset(), TOOLS)
        for name, count in (("sm_80", 2), ("gfx942", 1))
    }
    monkeypatch.setattr(Compiler, "surveys", {"f/m": surveys})
    monkeypatch.setattr(Compiler, "begin", lambda *_: None)
    monkeypatch.setattr(Compiler, "figures", lambda *_: SMALL)
    compiler = Compiler()
    compiler.close()
    assert compiler.file("f/m") == CompiledFile(
        TOOLS,
        {
            "kernel float32-odd": {"sm_80": SMALL, "gfx942": SMALL},
            "kernel int32-odd": {"sm_80": SMALL},
        },
    )


def test_what_is_refused_fails_and_what_is_missing_skips() -> None:
    with pytest.raises(pytest.fail.Exception, match="no such thing") as failure, in_one_line():
        raise BuildError("no such thing")
    assert not failure.value.pytrace
    with pytest.raises(pytest.skip.Exception, match="install it"), in_one_line():
        raise ToolchainMissing("install it")


# --- the record ----------------------------------------------------------------------------------


def test_figures_go_to_the_record_by_names_that_can_be_compared() -> None:
    wide = msgspec.structs.replace(WIDE, spill_loads=8)
    kernels = {
        compiled("kernel", "float32-odd", "sm_80"): SMALL,
        compiled("kernel", "float32-odd", "sm_90"): wide,
    }
    found = list(figures_of(kernels))
    names = {(m.implementation, m.subject, m.quantity, m.variant): m.value for m in found}
    assert len(names) == len(found) == 2 * 9
    kernel = "kernels.f.m", "kernel float32-odd"
    assert names[*kernel, "registers", "sm_80"] == 32
    assert names[*kernel, "occupancy", "sm_80"] == 1.0
    assert names[*kernel, "spill_loads", "sm_90"] == 8
    assert {m.quantity for m in found} <= {*Figures.__struct_fields__}


def test_the_work_of_a_call_goes_to_the_record() -> None:
    """Of the operations whose kernels were compiled, and of all their calls."""
    variant = Variant("f/m", "k", "merge_softmax_stats", "float32", "aligned", "label", "key")
    found = list(work_of_calls({Compiled(variant, "sm_80"): SMALL}))
    assert {m.subject for m in found} == {"merge_softmax_stats"}
    labels = {each.label for each in calls() if each.operation == "merge_softmax_stats"}
    assert {m.variant for m in found} == labels
    # Two chunks of 2 x 16 x 256 rows, m and l, to one of each.
    values = {m.quantity: m.value for m in found if m.variant == "float32-aligned-full"}
    assert values == {
        "bytes read": 2 * 2 * 2 * 16 * 256 * 4,
        "bytes written": 2 * 2 * 16 * 256 * 4,
        "products": 0,
        "operations": 4 * 2 * 2 * 16 * 256,
        "exponentials": 2 * 2 * 16 * 256,
    }


# --- bounds --------------------------------------------------------------------------------------


def compiled(kernel: str, label: str, architecture: str) -> Compiled:
    dtype, rows = label.split("-")[:2]
    return Compiled(Variant("f/m", kernel, "operation", dtype, rows, label, "key"), architecture)


def test_the_occupancy_table_has_the_range_of_a_kernel() -> None:
    variants = {
        compiled("kernel", "float32-odd", "sm_80"): msgspec.structs.replace(SMALL, occupancy=0.25),
        compiled("kernel", "float32-aligned", "sm_80"): SMALL,
        compiled("kernel", "float32-odd", "gfx942"): SMALL,
    }
    variants[compiled("other", "float32-odd", "sm_80")] = SMALL
    rows = [line.split() for line in occupancy_table(variants).splitlines()]
    assert rows[-3:] == [["f/m"], ["kernel", "(2)", "25-100", "100"], ["other", "100"]]


def test_tables_fit_80_columns() -> None:
    """With names as long as the longest."""
    kernel, labels = "streaming_statistics_kernel", {"odd-a": 0.12, "odd-b": 1.0}
    others = {
        compiled(kernel, label, name): msgspec.structs.replace(SMALL, occupancy=labels[label])
        for label, name in product(labels, ARCHITECTURES)
    }
    others[compiled("normalised_block_sums<__nv_bfloat16>", "odd-a", "sm_80")] = SMALL
    before = {"streaming_statistics_kernel float32-aligned-causal-estimate": {"sm_100": SMALL}}
    after = {name: {"sm_100": WIDE} for name in before}
    for table in (occupancy_table(others), changes_table(changes(before, after))):
        assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize(
    ("operation", "order", "holds"),
    [
        ("topology_witness_indices", "LBS", True),
        ("topology_witness_indices", "LBLBS", True),
        ("topology_witness_indices", "LS", False),
        ("scatter_topology_witnesses_", "LBSLBS", False),
        ("scatter_topology_witnesses_", "LBSB", False),
        ("apply_topology_witnesses", "LBLSBS", True),
        ("apply_topology_witnesses", "LSLSBSLS", True),
        ("apply_topology_witnesses", "LBLSBSBS", False),
        ("apply_topology_witnesses", "LS", False),
    ],
)
def test_where_barriers_may_stand(operation: str, order: str, holds: bool) -> None:
    assert bool(re.fullmatch(ORDERS[operation], order)) == holds


# --- whole runs ----------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_become_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and from then on they are known; whatever the environment says to Triton."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = "spills and triton_fused and witness_serve_kernel and int32-single"
    kept = []
    for options in ((), ("--accept",)):
        run = run_pytest(tmp_path, TIER, "-k", chosen, *options)
        assert run.returncode == 0, run.stdout + run.stderr
        assert " 5 passed" in run.stdout
        assert re.search(r"witness/triton_fused\n +witness_serve_kernel +\d", run.stdout)
        assert re.search(r"\n5 compiled kernels: .*ptxas \d.*, triton \d", run.stdout)
        assert "record: .conformance/record.jsonl" in run.stdout
        assert ("--accept wrote nothing" in run.stdout) == bool(options)
        files = (tmp_path / "cache" / "sparse-conformance" / "compiled").iterdir()
        kept.append({file.name: file.stat().st_mtime_ns for file in files})
    assert len(kept[0]) == 5
    assert kept[1] == kept[0]
    header, *measurements, footer = record_of(tmp_path)
    assert isinstance(header, Header)
    assert {"ptxas", "triton"} <= {*header.versions}
    assert "sm_80" in header.device
    assert "kernels.witness.triton_fused" in header.implementations
    registers = {
        (m.implementation, m.subject, m.variant): m.value
        for m in measurements
        if isinstance(m, Measurement) and m.quantity == "registers"
    }
    kernel = "kernels.witness.triton_fused", "witness_serve_kernel int32-single"
    assert {*registers} == {(*kernel, name) for name in ARCHITECTURES}
    assert min(registers.values()) > 0
    assert footer == Footer({}, 0, 0)


def test_to_collect_is_no_failure(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TIER, "--collect-only", "-q")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "compiled kernels" not in run.stdout
    assert not (tmp_path / ".conformance").exists()


def test_without_a_toolchain_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text('raise ImportError("no cuda here")\n')
    run = run_pytest(tmp_path, TIER, "-k", "cuda_fused")
    assert run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, run.stdout + run.stderr
    assert re.search(r"not-run: witness/cuda_fused: .*no cuda here.*install cuda-core", run.stdout)
    assert not (tmp_path / ".conformance").exists()
    assert not re.search(r"\d+ (passed|failed|error)", run.stdout)


def test_it_is_not_to_be_spread_over_workers(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TIER, "-n", "2")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "leave out -n" in run.stderr
