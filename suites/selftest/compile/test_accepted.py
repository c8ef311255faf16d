"""Figures that were accepted, and what becomes of others."""

from pathlib import Path

import pytest

from kernels.cuda.toolchain import BuildError, ToolchainMissing
from suites.compile import test_figures
from suites.compile.accepted import compare, read, text_of, write
from suites.compile.compiler import Compiler
from suites.compile.conftest import in_one_line
from suites.compile.figures import CompiledFile, changes
from suites.compile.tables import changes_table
from suites.compile.worker import Survey
from suites.selftest.compile.samples import SMALL, TOOLS, WIDE, compiled, made
from suites.selftest.whole_runs import ROOT


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
