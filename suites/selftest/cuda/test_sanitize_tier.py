"""Whole runs of the sanitize tier: what fails in it, what its command reruns, what is not run."""

import re
import shutil
from pathlib import Path

from kernels.witness import cuda_fused
from suites.selftest.whole_runs import ROOT, run_pytest

TIER = str(ROOT / "suites" / "sanitize")
WITHOUT = ("-k", "vectors and scatter")


def test_a_race_fails_and_its_command_shows_it_again(tmp_path: Path) -> None:
    """One that changes no result: every warp of a block stores the same word."""
    source = cuda_fused.MODULE.source
    shutil.copy(source.with_suffix(".py"), tmp_path / "racing.py")
    text = source.read_text(encoding="utf-8")
    shared, after = "    __shared__ Mask warp_masks[kWarps];\n", "    mask = 0;\n"
    assert (text.count(shared), text.count(after)) == (1, 1)
    every_warp = f"{shared}    __shared__ int one;\n    if (threadIdx.x % 32 == 0) one = 1;\n"
    text = text.replace(shared, every_warp).replace(after, "    mask = one - 1;\n")
    (tmp_path / "racing.cu").write_text(text, encoding="utf-8")

    run = run_pytest(tmp_path, TIER, *WITHOUT, "--impl", "racing")
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(
        r"a race on byte 0 of shared one, of 4 bytes: a store in racing\.cu, line \d+, by thread "
        r"\d+ and a store in racing\.cu, line \d+, by thread \d+",
        " ".join(run.stdout.split()),
    )
    found = re.search(r"rerun: python -m pytest (.*)", run.stdout)
    assert found is not None
    again = run_pytest(tmp_path, *found[1].split())
    assert again.returncode == 1, again.stdout + again.stderr
    assert "a race on byte 0 of shared one" in again.stdout
    elsewhere = [word for word in found[1].split() if not word.endswith("sanitize")]
    unwatched = run_pytest(tmp_path, str(ROOT / "suites" / "test_replay.py"), *elsewhere)
    assert unwatched.returncode == 0, unwatched.stdout + unwatched.stderr


def test_an_implementation_that_launches_no_cuda_is_not_run(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, TIER, *WITHOUT, "--impl", "torch")
    assert run.returncode == 5, run.stdout + run.stderr
    assert "not-run: torch: torch: scatter_topology_witnesses_ launches no CUDA C++" in run.stdout
