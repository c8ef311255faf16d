"""The command that makes the source's tables again, and the document that keeps its output."""

import subprocess
import sys
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from kernels.api import XAttentionKernels
from kernels.xattention import torch_reference
from oracles.selection import density
from suites import tables
from suites.strategies.structured import Local, Noise, Sink, states

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/tables.md").read_text(encoding="utf-8")
REFERENCE = cast(XAttentionKernels, torch_reference)
SIZES = [(128, 128), (256, 128), (128, 256), (384, 256), (1024, 1024)]


def changed(**operations: Any) -> XAttentionKernels:
    """The reference with some operations of our own."""
    return cast(XAttentionKernels, SimpleNamespace(**vars(torch_reference) | operations))


def mixture(length: int) -> tuple[Tensor, Tensor]:
    return states(Sink(4.0), Local(3.0, 40), Noise(3.0, 8, 0), length=length, head_dim=32, heads=2)


def cells(lines: Iterator[str] | str, title: str) -> list[list[str]]:
    """The rows of the table under a title, without its head."""
    text = lines if isinstance(lines, str) else "\n".join(lines)
    table = text.split(f"### {title}\n\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


# --- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 512, 900, 1021])
def test_both_ways_are_the_estimate(length: int) -> None:
    """Whatever the chunks, and for lengths that neither the stride nor a block divides.

    Block sums are masses of at most 32 rows, in fp32, so that 1e-4 tells a row from no row.
    """
    selected_by = []

    def watched(sums: Tensor, *arguments: Any) -> Tensor:
        selected_by.append(sums)
        return torch_reference.find_blocks_chunked(sums, *arguments)

    kernels = changed(find_blocks_chunked=watched)
    pair = mixture(length)
    sums, expected = torch_reference.xattn_estimate(*pair, tables.BLOCK, tables.STRIDE)
    assert torch.equal(tables.one_pass(kernels, pair), expected)
    for q_chunk, kv_chunk in SIZES:
        assert torch.equal(tables.in_chunks(kernels, pair, q_chunk, kv_chunk), expected)
    found = torch.cat(selected_by, 2)
    assert (found - torch.cat([sums] * (1 + len(SIZES)), 2)).abs().max() < 1e-4
    assert length < 900 or 0.05 < density(tables._result(expected)) < 0.9


def test_a_wrong_merge_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of keys normalised by itself, the mistake that the source sets out from."""
    monkeypatch.setattr(tables, "KV_CHUNK", 256)
    monkeypatch.setattr(tables, "K", 64)  # so that 16K holds the input, and 8K half of it
    wrong = changed(merge_softmax_stats=lambda m_chunks, l_chunks: (m_chunks[-1], l_chunks[-1]))
    lines = "\n".join(tables.mask_tables(wrong, [mixture(1021)]))
    (row,) = cells(lines, "KV-chunked against one pass")
    assert float(row[6]) == pytest.approx(abs(float(row[4]) - float(row[5])), abs=1.01e-6)
    assert float(row[6]) > 0.01
    assert float(row[7].rstrip("%")) > 1
    rows = cells(lines, "Chunk configurations")
    assert [row[2:4] for row in rows] == [[*each] for each in ("11", "21", "12", "22", "41")]
    for _, _, _, kv_chunks, _, alignment in rows:
        assert (alignment == "100.0000%") == (kv_chunks == "1")
        assert float(alignment.rstrip("%")) < 99 or kv_chunks == "1"


def test_a_table_says_what_it_was_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk configurations are those of the longest input."""
    monkeypatch.setattr(tables, "KV_CHUNK", 256)
    lines = "\n".join(tables.mask_tables(REFERENCE, [mixture(n) for n in (300, 1021, 512)]))
    rows = cells(lines, "KV-chunked against one pass")
    assert [row[:4] for row in rows] == [
        ["300", "4", "0.90", "2"],
        ["1021", "4", "0.90", "4"],
        ["512", "4", "0.90", "2"],
    ]
    assert {row[1] for row in cells(lines, "Chunk configurations")} == {"1021"}


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0000%"),
        (1.0, "100.0000%"),
        (0.012345, "1.2345%"),
        (3e-8, "0.000003%"),
        (1 - 3e-8, "99.999997%"),
    ],
)
def test_a_percentage_reads_0_or_100_only_where_it_is(share: float, text: str) -> None:
    assert tables._percent(share) == text


# --- the command ---------------------------------------------------------------------------------


def test_the_command_at_a_small_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--lengths", "512", "--heads", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("torch on cpu: heads, head_dim, seed = (1, 64, 0)\n")
    (row,) = cells(printed, "KV-chunked against one pass")
    assert row[0] == "512"
    assert row[4] == row[5]
    assert row[6:] == ["0.000000", "0.0000%"]
    configurations = cells(printed, "Chunk configurations")
    assert [row[5] for row in configurations] == ["100.0000%"] * 5
    assert [row[0] for row in configurations] == [
        "Q=16K, KV=16K",
        "Q=8K, KV=16K",
        "Q=16K, KV=8K",
        "Q=8K, KV=8K",
        "Q=4K, KV=16K",
    ]
    assert printed.endswith("\n".join([*tables.storage_tables(), ""]))


def test_the_seed_and_the_implementation_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> list[str]:
        tables.main(["--lengths", "1500", *arguments])
        (row,) = cells(capsys.readouterr().out, "KV-chunked against one pass")
        return row

    first = run()
    assert run("--impl", "kernels.xattention.torch_reference") == first
    assert run("--seed", "1") != first

    @wraps(torch_reference.find_blocks_chunked)
    def all_of_them(sums: Tensor, *_: Any) -> Tensor:
        return torch.ones_like(sums).bool()

    everything = changed(find_blocks_chunked=all_of_them)
    monkeypatch.setitem(sys.modules, "everything", cast(Any, everything))
    assert run("--impl", "everything")[4:6] == ["1.000000", "1.000000"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--lengths", "512", "0"], "--lengths 0: "),
        (["--lengths", "long"], "argument --lengths: invalid int value: 'long'"),
        (["--lengths", "10000000"], "--lengths 10000000: scores of 46566 GiB; "),
        (["--heads", "0"], "--heads 0: "),
        (["--head-dim", "8"], "head_dim must be at least "),
        (["--seed", "-1"], "--seed -1: "),
        (["--device", "meta"], "--device meta: "),
        (["--device", "nonsense"], "--device nonsense: "),
        (["--impl", "no_such_module"], "--impl no_such_module: "),
        (["--impl", "math"], "--impl math: the module has no operation of the specification; "),
        (["--impl", "triton_streaming"], "--impl triton_streaming: has no flat_group_gemm_fuse_"),
        (["--surprise"], "unrecognized arguments: --surprise"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        tables.main(arguments)
    printed, error = capsys.readouterr()
    assert left.value.code == 2
    assert printed == ""
    assert error.startswith(f"python -m suites.tables: {complaint}")
    assert error.count("\n") == 1


def test_memory_that_does_not_suffice_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @wraps(torch_reference.softmax_fuse_block_sum)
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nAnd so on.")

    monkeypatch.setattr(torch_reference, "softmax_fuse_block_sum", full)
    with pytest.raises(SystemExit) as left:
        tables.main(["--lengths", "512"])
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "python -m suites.tables: --lengths 512: out of memory; "
        "give a smaller one, or fewer --heads\n"
    )


def test_the_command_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "suites.tables", "--lengths", "0"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "python -m suites.tables: --lengths 0: give numbers of at least 1\n"


# --- the document --------------------------------------------------------------------------------


def test_the_storage_tables_are_those_of_the_source() -> None:
    printed = "\n".join(tables.storage_tables())
    assert cells(printed, "Storage by sequence length") == [
        ["16K", "1", "2 GiB", "2 MiB", "0.1%"],
        ["32K", "2", "8 GiB", "4 MiB", "0.05%"],
        ["64K", "4", "32 GiB", "8 MiB", "0.025%"],
        ["128K", "8", "128 GiB", "16 MiB", "0.012%"],
    ]
    assert cells(printed, "Peak memory of the scores") == [
        ["128K", "16K", "128 GiB", "16 GiB", "8"]
    ]


def test_the_document_has_the_tables_that_the_command_prints() -> None:
    storage = "\n".join(tables.storage_tables())
    for title in ("Storage by sequence length", "Peak memory of the scores"):
        assert cells(DOCUMENT, title) == cells(storage, title)


def test_the_document_has_the_lengths_and_chunks_of_the_source() -> None:
    rows = cells(DOCUMENT, "KV-chunked against one pass")
    assert [row[0] for row in rows] == ["3688", "7888", "15685", "32485", "64891"]
    assert [row[3] for row in rows] == ["1", "1", "1", "2", "4"]
    assert {(row[1], row[2]) for row in rows} == {("4", "0.90")}
    chunks = [row[1:4] for row in cells(DOCUMENT, "Chunk configurations")]
    assert chunks == [["64891", *each] for each in ("44", "84", "48", "88", ("16", "4"))]


def test_the_document_is_up_to_date() -> None:
    """Its first row, made again. Rounding may decide another way elsewhere, but rarely."""
    printed = tables.mask_tables(REFERENCE, [tables.mixture(3688, 2, 64, 0, torch.device("cpu"))])
    (row,) = cells(printed, "KV-chunked against one pass")
    documented = cells(DOCUMENT, "KV-chunked against one pass")[0]
    assert row[:4] == documented[:4]
    for made, kept in zip(row[4:6], documented[4:6], strict=True):
        assert float(made) == pytest.approx(float(kept), abs=0.005)
