"""What mutants there are, and that one takes the place of its kernel and of nothing else."""

import inspect
import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from golden.model import Operation
from kernels import catalog
from suites.mutation import bug_classes, closure
from suites.mutation.edits import KERNELS, Edit, text_of
from suites.mutation.install import Stillborn, install
from suites.mutation.mutants import FILES, Mutant, mutants


def test_there_are_hundreds_each_with_a_name_of_its_own() -> None:
    assert len(mutants()) >= 400
    assert len({mutant.name for mutant in mutants()}) == len(mutants())
    assert {mutant.implementation for mutant in mutants()} == {*catalog.BUILT_IN}


def test_what_a_person_made_is_among_them() -> None:
    by_hand = [mutant.edit.rule for mutant in mutants() if mutant.edit.rule in ("planted", "made")]
    assert by_hand.count("planted") == len(bug_classes.load().planted)
    assert by_hand.count("made") == len(closure.load().made)


@pytest.mark.parametrize("name", catalog.BUILT_IN)
def test_every_operation_has_mutants(name: str) -> None:
    exported = {*catalog.load(name).operations}
    mutated: set[Operation] = set()
    for mutant in mutants():
        if mutant.implementation == name:
            mutated |= mutant.operations
    assert mutated == exported


def test_every_file_of_a_kernel_is_mutated() -> None:
    there = {
        path.relative_to(KERNELS).as_posix()
        for family in ("witness", "xattention")
        for path in (KERNELS / family).iterdir()
        if path.suffix in (".py", ".cu") and path.name != "__init__.py"
    }
    assert {file for files in FILES.values() for file in files} == there


@pytest.mark.parametrize(
    ("file", "function", "operations"),
    [
        ("witness/triton_fused.py", "_partition", {
            "topology_witness_indices", "apply_topology_witnesses", "scatter_topology_witnesses_"
        }),
        ("witness/cuda_fused.cu", "rank", {
            "apply_topology_witnesses", "scatter_topology_witnesses_"
        }),
        ("xattention/refusals.py", "check_chunks", {"merge_softmax_stats"}),
        ("xattention/triton_selection.py", "select", {"find_blocks_chunked", "xattn_estimate"}),
    ],
)  # fmt: skip
def test_a_function_serves_what_calls_it(
    file: str, function: str, operations: set[Operation]
) -> None:
    serves = {m.operations for m in mutants() if m.file == file and m.edit.function == function}
    assert serves == {frozenset(operations)}


# --- in the place of a kernel --------------------------------------------------------------------


def replacing(implementation: str, file: str, old: str, new: str) -> Mutant:
    text = text_of(file)
    assert old in text
    start = text.index(old)
    edit = Edit("", "", start, start + len(old), new)
    return Mutant(implementation, file, edit, frozenset())


def elsewhere(look: Callable[[], object]) -> object:
    """What a function finds in a fork of this process."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=lambda: sender.send(look()))
    process.start()
    sender.close()
    found = receiver.recv()
    process.join()
    return found


def test_a_mutant_is_what_is_called_and_what_inspect_shows(tmp_path: Path) -> None:
    """Triton reads a kernel's source once more."""
    file = "witness/triton_fused.py"
    mutant = replacing("triton", file, "return a | b", "return a & b")
    before = (KERNELS / file).read_bytes()

    def look() -> object:
        operations = install(mutant, tmp_path).operations
        module = inspect.getmodule(operations["topology_witness_indices"])
        return inspect.getsource(vars(module)["_or"].fn)

    assert "return a & b" in str(elsewhere(look))
    assert (KERNELS / file).read_bytes() == before
    catalogued = catalog.load("triton").operations["topology_witness_indices"]
    assert "return a | b" in inspect.getsource(inspect.getmodule(catalogued) or catalog)


def test_what_imports_a_mutated_file_gets_the_mutant(tmp_path: Path) -> None:
    mutant = replacing(
        "torch", "xattention/refusals.py", "if not m_chunks:", "if m_chunks == 'none':"
    )

    def look() -> object:
        try:
            install(mutant, tmp_path).operations["merge_softmax_stats"]([], [])
        except ValueError:
            return "refused"
        except IndexError:
            return "not refused"
        return None

    assert elsewhere(look) == "not refused"


def test_cuda_is_built_of_the_mutated_text(tmp_path: Path) -> None:
    mutant = replacing("cuda", "witness/cuda_fused.cu", "if (token < 0) return 0;", "")

    def look() -> object:
        os.environ["XDG_CACHE_HOME"] = str(tmp_path)
        return [module.source.read_text() for module in install(mutant, tmp_path).sources]

    assert mutant.text in str(elsewhere(look)).encode().decode("unicode_escape")
    assert list(tmp_path.rglob("cuda_fused-*.so"))


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        ("cuda", "witness/cuda_fused.cu", "if (token < 0) return 0;", "if (token < 0) {"),
        ("torch", "xattention/torch_reference.py", "import math\n", "import math_\n"),
        ("torch", "witness/torch_reference.py", "MAX_TOPOLOGY_SEGMENTS = 64", "a = b"),
    ],
)
def test_what_does_not_compile_or_load_is_no_mutant(
    name: str, file: str, old: str, new: str, tmp_path: Path
) -> None:
    mutant = replacing(name, file, old, new)

    def look() -> object:
        os.environ["XDG_CACHE_HOME"] = str(tmp_path)
        try:
            install(mutant, tmp_path)
        except Stillborn:
            return "stillborn"
        return "born"

    assert elsewhere(look) == "stillborn"
