"""Whom workers serve: a module in an environment of its own, a base-2 one in Triton, two programs.

None of them knows of this project, which is not on their path.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from golden.model import Value
from golden.record import SCHEMA, Header, Verdict
from suites.cases import MERGE, STATS, Case, real, to_golden
from suites.counterexamples import keep
from suites.runner import Runner
from suites.selftest.test_plugin import HONEST
from suites.selftest.whole_runs import ROOT, record_of, run_pytest
from suites.selftest.worker.declared import declare, hostile, indices, running
from suites.selftest.worker.hostile import UNLUCKY
from suites.verdicts import Nonconformance

EXAMPLES = ROOT / "examples"
HEADER = Header(SCHEMA, "0.1.0", "", {}, "cpu", 0, ("mine",), ())
VECTORS = str(ROOT / "suites" / "test_golden.py")


def verdicts(folder: Path, *arguments: str, code: int = 0) -> dict[str, set[str]]:
    """The statuses of each contract, of a run that ends with that exit code."""
    result = run_pytest(folder, *arguments)
    assert result.returncode == code, result.stdout + result.stderr
    statuses: dict[str, set[str]] = {}
    for line in record_of(folder):
        if isinstance(line, Verdict) and line.implementation != "oracle":
            for contract in line.contracts:
                statuses.setdefault(contract, set()).add(line.status)
    return statuses


# --- Python, in an environment of its own --------------------------------------------------------

ELSEWHERE = f"""
import sys
{HONEST}
assert "elsewhere" in sys.prefix, sys.prefix
for ours in ("golden", "oracles", "kernels", "suites", "msgspec"):
    try:
        __import__(ours)
    except ImportError:
        continue
    raise RuntimeError(f"{{ours}} is on the path of a worker")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has torch, as this one has it, and little else."""
    folder = tmp_path_factory.mktemp("environments") / "elsewhere"
    venv.create(folder, with_pip=False)
    site = Path(torch.__file__).parents[1]
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    needed: tuple[str, ...] = (
        "torch",
        "torchgen",
        "functorch",
        "typing_extensions.py",
        "numpy",
        "numpy.libs",
    )
    needed += ("sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec")
    for name in (*needed, "nvidia", "triton", "cuda"):
        if (site / name).exists() and not (packages / name).exists():
            (packages / name).symlink_to(site / name)
    return folder / "bin" / "python"


def test_a_module_in_an_environment_of_its_own(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "away.py").write_text(ELSEWHERE, encoding="utf-8")
    keys = {"name": "away", "import": "away", "python": str(environment), "path": ["src"]}
    argument = declare(tmp_path, **keys)
    found = verdicts(tmp_path, "--impl", argument, "-k", "away", VECTORS)
    assert set().union(*found.values()) == {"passed"}
    assert {"witness.edge.lands-in-segment", "witness.refusal.writes-nothing"} <= found.keys()


def test_a_failure_in_another_environment_can_be_shown_there(
    environment: Path, tmp_path: Path
) -> None:
    """By the module's own name and in its own interpreter, with nothing of this project."""
    (tmp_path / "src").mkdir()
    wrong = ELSEWHERE.replace("ROUND_UP = True", "ROUND_UP = False")
    (tmp_path / "src" / "away.py").write_text(wrong, encoding="utf-8")
    keys = {"name": "mine", "import": "away", "python": str(environment), "path": ["src"]}
    with running(declare(tmp_path, **keys)) as runner:
        path = keep(failure(runner), (), runner, tmp_path, HEADER)
    script = tmp_path / path.with_suffix(".py")
    found = subprocess.run(
        [environment, script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1, found.stderr
    assert "element" in found.stdout


def test_a_failure_of_a_program_has_no_script_in_python(tmp_path: Path) -> None:
    with running(hostile(tmp_path, "dtype")) as runner:
        path = keep(failure(runner, UNLUCKY), (), runner, tmp_path, HEADER)
    assert (tmp_path / path).exists()
    assert not (tmp_path / path).with_suffix(".py").exists()


def failure(runner: Runner, segments: int = 2) -> Nonconformance:
    with pytest.raises(Nonconformance) as caught:
        runner.judge(indices(segments, [-1], length=3))
    return caught.value


# --- Triton, in base 2 ---------------------------------------------------------------------------

BASE_TWO = Path(__file__).with_name("base_two_statistics.py")


def base_two(folder: Path, **keys: object) -> str:
    shutil.copy(BASE_TWO, folder / "base_two_statistics.py")
    module = {"import": "base_two_statistics", "path": ["."]}
    return declare(folder, name="two", **module, **keys)


def statistics(dtype: torch.dtype, is_causal: bool) -> Case:
    scores = torch.linspace(-3, 3, 40).reshape(1, 2, 4, 5).to(dtype)
    inputs: dict[str, Value] = {"attn_weights_slice": to_golden(scores), "is_causal": is_causal}
    return Case(
        STATS,
        inputs
        | {"reshaped_block_size": 2, "segment_size": 4, "scale": real(0.7), "chunk_start": 1},
    )


def merge() -> Case:
    chunks = [to_golden(torch.tensor([[[value, 1.0, -torch.inf]]])) for value in (0.5, -2.0)]
    sums = [to_golden(torch.tensor([[[value, 2.0, 0.0]]])) for value in (3.0, 1.5)]
    return Case(MERGE, {"m_chunks": tuple(chunks), "l_chunks": tuple(sums)})


CASES = [statistics(torch.float32, True), statistics(torch.bfloat16, False), merge()]


def test_a_triton_module_in_base_two(tmp_path: Path) -> None:
    """A file says so for it; the kernel that it has to launch is known to have run."""
    with running(base_two(tmp_path, exponent_base=2)) as runner:
        for case in CASES:
            runner.judge(case)
        assert runner.launched == {"partial_stats_kernel"}
        assert runner.interpreted


def test_units_that_nobody_declared_are_wrong(tmp_path: Path) -> None:
    with running(base_two(tmp_path)) as runner:
        for case in CASES:
            with pytest.raises(Nonconformance, match="differ"):
                runner.judge(case)


def test_another_kernel_than_the_one_that_must_run_is_a_failure(tmp_path: Path) -> None:
    argument = base_two(tmp_path, exponent_base=2)
    source = tmp_path / "base_two_statistics.py"
    text = source.read_text().replace('stats": "partial_stats_kernel"', 'stats": "streamed_kernel"')
    source.write_text(text, encoding="utf-8")
    with running(argument) as runner:
        with pytest.raises(Nonconformance, match="partial_stats_kernel ran, not streamed_kernel"):
            runner.judge(CASES[0])
        runner.judge(CASES[2])


# --- other languages -----------------------------------------------------------------------------


def copied(example: str, folder: Path) -> Path:
    """The example in a folder where it may be built."""
    made = folder / example
    shutil.copytree(EXAMPLES / example, made, ignore=shutil.ignore_patterns("target", "witness"))
    return made


def test_a_program_in_cpp(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ on this machine; install it")
    example = copied("cpp", tmp_path)
    build = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", "witness", "witness.cpp"]
    subprocess.run(build, cwd=example, check=True)
    argument = f"toml:{example / 'witness.toml'}"
    found = verdicts(tmp_path, "--impl", argument, "-k", "witness_cpp", VECTORS)
    assert set().union(*found.values()) == {"passed"}
    assert len(found) > 20


def test_a_program_in_rust(tmp_path: Path) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo on this machine; install Rust")
    example = copied("rust", tmp_path)
    build = ["cargo", "build", "--release", "--offline", "--quiet"]
    environment = {k: v for k, v in os.environ.items() if k != "CARGO_TARGET_DIR"}
    subprocess.run(build, cwd=example, check=True, env=environment)
    argument = f"toml:{example / 'witness.toml'}"
    found = verdicts(tmp_path, "--impl", argument, "-k", "witness_rust", VECTORS)
    assert set().union(*found.values()) == {"passed"}
    assert len(found) > 20
