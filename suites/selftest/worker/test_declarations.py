"""From the file, the entry point or the name given to ``--impl`` to an implementation."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from kernels import catalog
from kernels.worker.declaration import KEYS, Declaration
from suites.selftest.test_plugin import HONEST
from suites.selftest.whole_runs import ROOT, run_pytest
from suites.selftest.worker.declared import HOSTILE, declare, hostile, running, toml

WORKER = f'command = ["{sys.executable}", "-S", "{HOSTILE}", "none"]\n'
NAMED = f'name = "mine"\n{WORKER}'

MISTAKES = {
    "an unknown key": (
        f'{NAMED}colour = "red"',
        f"Object contains unknown field `colour`; the keys are {', '.join(KEYS)}",
    ),
    "no name": (WORKER, "Object missing required field `name`; the keys are name, "),
    "another type": (
        f'{NAMED}time_limit = "long"',
        "Expected `float`, got `str` in `time_limit`; it is seconds a call may take, more than 0",
    ),
    "another type in a list": (
        'name = "mine"\ncommand = ["./worker", 3]',
        "Expected `str`, got `int` in `command`; it is in place of import: a program",
    ),
    "another base": (
        f"{NAMED}exponent_base = 10",
        "Invalid enum value 10 in `exponent_base`; it is 2, when the interface",
    ),
    "another way to multiply": (
        f'{NAMED}dot = "fp8"',
        'Invalid enum value \'fp8\' in `dot`; it is "ieee" or "tf32"',
    ),
    "a size that there is not": (
        f"{NAMED}[multiples]\nwarps = 4",
        "Invalid enum value 'warps' in `multiples`; it is what a size must be a multiple of, by "
        "its name: block_size, chunk_size",
    ),
    "a size of nothing": (
        f"{NAMED}[multiples]\nstride = 0",
        "Expected `int` >= 1 in `multiples`; it is what a size",
    ),
    "a lack of something else": (
        f'{NAMED}lacks = ["float8"]',
        "`lacks` has 'float8'; it is a list of what it refuses: operations, float16, bfloat16, ",
    ),
    "a name with a space": (
        f'name = "my own"\n{WORKER}',
        "Expected `str` matching regex '^[A-Za-z0-9_.]+$' in `name`; it is letters, digits",
    ),
    "nothing to run": (
        'name = "mine"',
        "it needs `import` or `command`, and not both; `import` is the module to import",
    ),
    "two things to run": (
        f'{NAMED}import = "mine"',
        "it needs `import` or `command`, and not both",
    ),
    "no TOML": ("name: mine", "Expected '=' after a key"),
}
UNUSABLE = {
    "a command that is missing": (
        'name = "mine"\ncommand = ["./nowhere"]',
        "./nowhere is no program, in {folder} or on the PATH; give its path relative to the TOML",
    ),
    "an interpreter that is missing": (
        'name = "mine"\nimport = "mine"\npython = ".venv/bin/python"',
        ".venv/bin/python is no program, in {folder} or on the PATH; ",
    ),
    "a command that cannot be run": (
        'name = "mine"\ncommand = ["./text"]',
        "{folder}/text cannot be started: Exec format error",
    ),
    "a module that is missing": (
        'name = "mine"\nimport = "nonesuch"',
        "the import of nonesuch fails: ModuleNotFoundError: No module named 'nonesuch'",
    ),
    "a module with another signature": (
        'name = "mine"\nimport = "other"\npath = ["."]',
        "topology_witness_indices(learned) has another signature; the specification's is "
        "topology_witness_indices(context_lens, learned_indices, num_segments)",
    ),
    "a module with no operation": (
        'name = "mine"\nimport = "empty"\npath = ["."]',
        "the worker has no operation of the specification; it needs at least one of topology_",
    ),
    "a module with another base": (
        'name = "mine"\nimport = "base_ten"\npath = ["."]',
        "the worker failed: its reply is no message, Invalid enum value 10 - at `$.exponent_base`",
    ),
    "a name of the suite's": (
        f'name = "torch"\n{WORKER}',
        "'torch' is a name of the suite's own; choose another",
    ),
    "a device that is not there": (
        'name = "mine"\nimport = "empty"\npath = ["."]\ndevice = "cuda:99"\n'
        'environment = {CUDA_VISIBLE_DEVICES = ""}',
        "torch ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_with_a_mistake_is_one_line(mistake: str, tmp_path: Path) -> None:
    text, message = MISTAKES[mistake]
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(catalog.CatalogError) as error:
        catalog.load(f"toml:{file}")
    assert str(error.value).startswith(f"--impl toml:{file}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mistake", UNUSABLE)
def test_a_worker_that_cannot_be_had_is_one_line(mistake: str, tmp_path: Path) -> None:
    text, message = UNUSABLE[mistake]
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    (tmp_path / "text").write_text("no program", encoding="utf-8")
    (tmp_path / "text").chmod(0o755)
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    (tmp_path / "other.py").write_text("def topology_witness_indices(learned): ...\n", "utf-8")
    (tmp_path / "base_ten.py").write_text(HONEST + "\nEXPONENT_BASE = 10\n", "utf-8")
    with pytest.raises(catalog.CatalogError) as error:
        catalog.load(f"toml:{file}")
    assert str(error.value).startswith(f"--impl toml:{file}: {message.format(folder=tmp_path)}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(catalog.CatalogError, match=r"mine\.toml: cannot be read, No such file"):
        catalog.load(f"toml:{tmp_path / 'mine.toml'}")


def test_every_key_is_explained() -> None:
    assert [*KEYS] == [name.rstrip("_") for name in Declaration.__struct_fields__]


def test_what_a_file_says_and_what_its_module_says(tmp_path: Path) -> None:
    """The file is right where both say something; paths are relative to it."""
    (tmp_path / "inner").mkdir()
    source = HONEST + '\nimport os\nDOT = "tf32"\nLACKS = ["int64"]\n'
    source += 'KERNELS = {"topology_witness_indices": os.environ["KERNEL"]}\n'
    source += 'assert os.environ["TRITON_INTERPRET"] == "1"\n'
    (tmp_path / "inner" / "says.py").write_text(source, encoding="utf-8")
    argument = declare(
        tmp_path,
        name="says",
        path=["inner"],
        exponent_base=2,
        lacks=["float16"],
        deviations="inner/deviations.toml",
        environment={"KERNEL": "a_kernel"},
        multiples={"block_size": 64},
        **{"import": "says"},
    )
    with running(argument) as runner:
        it = runner.implementation
        assert (it.name, it.given, it.exponent_base, it.dot) == ("says", argument, 2, "tf32")
        assert it.kernels == {"topology_witness_indices": "a_kernel"}
        assert (it.lacks, it.multiples) == (("float16", "int64"), {"block_size": 64})
        assert it.deviations == tmp_path / "inner" / "deviations.toml"
        assert it.worker is not None
        assert it.worker.introduction.versions.keys() == {"python", "torch"}


def test_two_of_one_name_are_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = hostile(tmp_path, "none"), hostile(tmp_path / "other", "none")
    result = run_pytest(
        tmp_path, str(ROOT / "suites" / "test_replay.py"), "--impl", first, "--impl", second
    )
    assert result.returncode == 4
    said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    assert said == [f"ERROR: --impl {second}: {first} has the name 'none' too; give it another"]


# --- entry points --------------------------------------------------------------------------------


def announce(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, line: str) -> None:
    """What installing a package would leave on the import path."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{catalog.ENTRY_POINTS}]\n{line}\n")
    monkeypatch.syspath_prepend(folder)


def test_an_installed_package_announces_its_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "announced_module.py").write_text(HONEST, encoding="utf-8")
    announce(tmp_path, monkeypatch, "a-package", "fast-kernels = announced_module")
    implementation = catalog.load("fast-kernels")
    assert (implementation.name, implementation.given) == ("fast-kernels", "fast-kernels")
    assert "topology_witness_indices" in implementation.operations
    assert implementation.worker is None


def test_an_announced_module_that_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(tmp_path, monkeypatch, "b-package", "slow-kernels = nowhere_to_be_found")
    message = "--impl slow-kernels: its package announces nowhere_to_be_found, which is missing"
    with pytest.raises(catalog.CatalogError, match=message):
        catalog.load("slow-kernels")


def test_two_packages_that_announce_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(tmp_path, monkeypatch, "c-package", "same = one_module")
    announce(tmp_path, monkeypatch, "d-package", "same = two_module")
    with pytest.raises(catalog.CatalogError, match="several packages announce it: one_module, two"):
        catalog.load("same")
    assert len(metadata.entry_points(group=catalog.ENTRY_POINTS, name="same")) == 2


def test_the_text_of_a_file_is_what_it_was_made_from() -> None:
    assert toml(name="a", path=["b"], multiples={"stride": 2}) == (
        'name = "a"\npath = ["b"]\n[multiples]\nstride = 2\n'
    )
