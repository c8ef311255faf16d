"""From the name given to ``--impl`` to an implementation, or to one line of what is wrong."""

import math
import sys
from pathlib import Path

import pytest

from kernels import api, catalog
from suites.cases import SPECIFICATIONS

INDICES = "def topology_witness_indices(context_lens, learned_indices, num_segments{more}): ..."

MISTAKES = {
    "needs_another": (
        "import nonesuch",
        "its import fails, No module named 'nonesuch'; install it first",
    ),
    "exits": (
        "raise SystemExit(3)",
        "its import fails with SystemExit: 3; `python -c 'import exits'` shows where",
    ),
    "is_empty": (
        "",
        "the module has no operation of the specification; define at least one of "
        "topology_witness_indices, apply_topology_witnesses",
    ),
    "no_function": (
        "topology_witness_indices = 3",
        "topology_witness_indices is not a function with a readable signature; define it as "
        "topology_witness_indices(context_lens, learned_indices, num_segments)",
    ),
    "another_order": (
        "def topology_witness_indices(learned_indices, context_lens, num_segments): ...",
        "topology_witness_indices(learned_indices, context_lens, num_segments) has another "
        "signature",
    ),
    "one_too_few": (
        "def topology_witness_indices(context_lens, learned_indices): ...",
        "topology_witness_indices(context_lens, learned_indices) has another signature",
    ),
    "one_too_many": (
        INDICES.format(more=", block"),
        "topology_witness_indices(context_lens, learned_indices, num_segments, block) has another "
        "signature",
    ),
    "by_keyword_only": (
        "def topology_witness_indices(*, context_lens, learned_indices, num_segments): ...",
        "topology_witness_indices(context_lens, learned_indices, num_segments) has another "
        "signature",
    ),
    "base_ten": (
        f"{INDICES.format(more='')}\nEXPONENT_BASE = 10",
        "EXPONENT_BASE is 10; set it to 2 or 2.718281828459045, or leave it out",
    ),
    "base_by_name": (
        f"{INDICES.format(more='')}\nEXPONENT_BASE = 'two\\nor e'",
        "EXPONENT_BASE is 'two\\nor e'; set it to 2 or 2.718281828459045, or leave it out",
    ),
    "eight_bits": (
        f"{INDICES.format(more='')}\nDOT = 'fp8'",
        "DOT is 'fp8'; set it to 'ieee' or 'tf32', or leave it out",
    ),
}


def load(
    name: str, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> catalog.Implementation:
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return catalog.load(name)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_module_that_cannot_be_used_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, message = MISTAKES[name]
    with pytest.raises(catalog.CatalogError) as error:
        load(name, source, tmp_path, monkeypatch)
    assert str(error.value).startswith(f"--impl {name}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("more", ["", ", block=64", ", *, block=64", ", **options"])
def test_further_parameters_need_defaults(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("usable", INDICES.format(more=more), tmp_path, monkeypatch)


def test_what_a_module_may_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = INDICES.format(more="")
    plain = load("plain_module", source, tmp_path, monkeypatch)
    assert (plain.exponent_base, plain.dot, plain.kernels) == (math.e, "ieee", {})
    declarations = """
EXPONENT_BASE = 2
DOT = "tf32"
KERNELS = {"topology_witness_indices": "witness_kernel"}"""
    declared = load("declares", source + declarations, tmp_path, monkeypatch)
    assert (declared.exponent_base, declared.dot) == (2, "tf32")
    assert declared.kernels == {"topology_witness_indices": "witness_kernel"}
    natural = load(
        "natural", f"{source}\nimport math\nEXPONENT_BASE = math.e", tmp_path, monkeypatch
    )
    assert natural.exponent_base == math.e


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_the_built_in_ones_have_every_operation_of_a_kernel(name: str) -> None:
    kernels = {operation for p in catalog.KERNELS for operation in catalog.operations(p)}
    assert catalog.load(name).operations.keys() == kernels


def test_the_cuda_one_has_the_witness_policy_and_the_softmax() -> None:
    assert catalog.load("cuda").operations.keys() == {
        *catalog.operations(api.WitnessKernels),
        "softmax_fuse_block_sum",
        "softmax_compute_partial_stats",
        "merge_softmax_stats",
        "softmax_normalize_and_block_sum",
    }


def test_the_streaming_one_estimates() -> None:
    assert catalog.load("triton_streaming").operations.keys() == {"xattn_estimate"}


def test_every_operation_has_a_signature_and_a_specification() -> None:
    assert catalog.signatures().keys() == SPECIFICATIONS.keys()
