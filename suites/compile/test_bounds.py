"""What must hold of every compiled kernel, whatever the toolchain."""

import re

import pytest

from suites.compile.bounds import (
    IEEE,
    ORDERS,
    TENSOR_CORES,
    makes_scores_of_16_bits,
    makes_scores_of_32_bits,
    reads_aligned_rows,
    stores_slots,
)
from suites.compile.compiler import Compiled, Compiler
from suites.compile.figures import Figures

about = pytest.mark.about.with_args


def test_nothing_spills(compiled: Compiled, figures: Figures) -> None:
    """No register goes to memory and back.

    ``spilled_registers`` is no part of it: LLVM counts with them AMD's scalar registers that move
    to lanes of a vector register, which costs an instruction and no access to memory. Those that
    do go to memory are stored and loaded by instructions, and these are counted.
    """
    assert (figures.spill_stores, figures.spill_loads) == (0, 0)


def test_a_block_fits(compiled: Compiled, figures: Figures) -> None:
    assert figures.occupancy > 0


@about(reads_aligned_rows)
def test_aligned_rows_are_loaded_128_bits_at_a_time(compiled: Compiled, figures: Figures) -> None:
    assert figures.widest_load >= 128


@about(makes_scores_of_16_bits)
def test_scores_of_16_bits_are_made_by_tensor_cores(compiled: Compiled, figures: Figures) -> None:
    wanted = TENSOR_CORES[compiled.architecture]
    assert any(opcode.startswith(wanted) for opcode in figures.tensor_cores)


@about(makes_scores_of_32_bits)
def test_scores_of_32_bits_are_not_rounded_for_tensor_cores(
    compiled: Compiled, figures: Figures
) -> None:
    """Scores of fp32 are declared to be IEEE's, and NVIDIA's tensor cores know tf32 alone."""
    assert all(IEEE.fullmatch(opcode) for opcode in figures.tensor_cores)


@about(stores_slots)
def test_no_barrier_stands_between_the_stores_of_a_slot(
    compiled: Compiled, figures: Figures
) -> None:
    assert re.fullmatch(ORDERS[compiled.variant.operation], figures.order)


def test_every_kernel_is_compiled(module: str, compiler: Compiler) -> None:
    for survey in compiler.surveys[module].values():
        assert survey.kernels <= {variant.kernel for variant in survey.variants}
