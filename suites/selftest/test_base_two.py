"""The double that sins as published base-2 kernels do fails what it should, and no other."""

from pathlib import Path
from typing import Final

from golden.record import Verdict
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

EXAMPLE: Final = ROOT / "examples" / "base_two"

# Each contract that one of the sins breaks.
FAILED: Final = {
    # Misaligned offsets show keys of the future, and keys that start after a row a score of -1e6.
    "xattention.causal.every-offset",
    "xattention.causal.no-future-leak",
    # Aligned offsets are all that it is right for, and it refuses no other.
    "xattention.causal.alignment-refused",
    # A row without keys has the sentinel's state; one of -inf alone, NaN.
    "xattention.empty.stats",
    # Two of (-inf, 0) make NaN.
    "xattention.empty.merge-only-identities",
    # Nothing is divided by l = 0 with a guard.
    "xattention.empty.contributes-zero",
    # The sentinel is larger than such a score.
    "xattention.masked.no-sentinel",
    # A segment of -inf at the beginning of a row is all that the running maximum has seen.
    "xattention.nonfinite.minus-inf-weight",
}

# Its operations, and not what it says of their units.
UNDECLARED: Final = """
from base_two import (
    find_blocks_chunked,
    flat_group_gemm_fuse_reshape,
    merge_softmax_stats,
    softmax_compute_partial_stats,
    softmax_fuse_block_sum,
    softmax_normalize_and_block_sum,
    xattn_estimate,
)
"""

# Failures are counted here and not read, so none is made small: it takes a third of the time.
UNSHRUNK: Final = """
from hypothesis import Phase, settings

def pytest_configure(config):
    settings.register_profile("unshrunk", settings(phases=[Phase.explicit, Phase.generate]))
    settings.load_profile("unshrunk")
"""


def run(folder: Path, name: str, *tests: str) -> dict[str, set[str]]:
    """What the tests of each contract came to for a module, without the oracle's column."""
    (folder / "unshrunk.py").write_text(UNSHRUNK, encoding="utf-8")
    paths = [str(ROOT / "suites" / test) for test in tests]
    arguments = ["-p", "unshrunk", "--impl", name, "-k", name, "-n", "2"]
    result = run_pytest(folder, *arguments, *paths, path=[EXAMPLE])
    assert result.returncode == 1, result.stdout + result.stderr
    statuses: dict[str, set[str]] = {}
    for line in record_of(folder):
        if isinstance(line, Verdict):
            for contract in line.contracts:
                statuses.setdefault(contract, set()).add(line.status)
    return statuses


def test_it_fails_what_its_sins_break_and_no_other(tmp_path: Path) -> None:
    statuses = run(tmp_path, "base_two", "test_golden.py", "xattention")
    assert {contract for contract, each in statuses.items() if "failed" in each} == FAILED
    # What needs a GPU has not run, and nothing is refused or breaks down.
    assert set().union(*statuses.values()) <= {"passed", "failed", "not-run"}


def test_without_its_declaration_its_units_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "undeclared.py").write_text(UNDECLARED, encoding="utf-8")
    statuses = run(tmp_path, "undeclared", "test_golden.py", "xattention/test_base.py")
    failed = {contract for contract, each in statuses.items() if "failed" in each}
    assert failed >= {
        "xattention.base.declared",
        "xattention.base.natural",
        "xattention.stats.maximum",
        "xattention.stats.sum",
        "xattention.merge.formula",
        "xattention.block-sum.weights",
    }
    # It folds log2(e) itself where its caller does not.
    assert statuses["xattention.estimate.scale"] == {"passed"}
