"""Where kernels fall short of a bound today: expected to fail, and seen until they do not."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from suites.compile.compiler import Compiled


@dataclass(frozen=True)
class Shortfall:
    """All but the first and the last are patterns of the shell, several with blanks between."""

    bound: str  # the name of its test
    kernels: str
    variants: str
    architectures: str
    reason: str

    def covers(self, bound: str, compiled: Compiled) -> bool:
        return (
            self.bound == bound
            and _any(self.kernels, compiled.variant.kernel)
            and _any(self.variants, compiled.variant.label)
            and _any(self.architectures, compiled.architecture)
        )


def _any(patterns: str, text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns.split())


SPILLS: Final = "test_nothing_spills"
WIDTH: Final = "test_aligned_rows_are_loaded_128_bits_at_a_time"
BARRIER: Final = "test_no_barrier_stands_between_the_stores_of_a_slot"

FULL: Final = (
    "fp32 tiles, without tensor cores, and 64-bit addresses of elements apart: 255 registers"
)
CHOSEN: Final = "ptxas keeps to fewer registers than a thread may have, and spills a few bytes"
SCALARS: Final = "scalar registers go to lanes of vector registers, and not to memory"
LIMITS: Final = "each row of a causal tile has a limit of its own, which may fall within a vector"
BLOCKS: Final = "8 positions a block: Triton knows a size to be aligned if it is a multiple of 16"
HALVES: Final = "a tile of 16-bit queries or keys has 4 elements for each of 512 threads"
REDUCTION: Final = "the count of witnesses is reduced, with barriers, between the two stores"

SELECTIONS: Final = (
    "float32-*-causal float32-*-causal-estimate "
    "float16-odd-causal bfloat16-aligned-causal* bfloat16-odd-causal*"
)

SHORTFALLS: Final = (
    Shortfall(SPILLS, "streaming_statistics_kernel", "float32-odd-*", "sm_*", FULL),
    Shortfall(SPILLS, "streaming_statistics_kernel", "float32-odd-*", "gfx942", SCALARS),
    Shortfall(SPILLS, "streaming_statistics_kernel", "float32-aligned-*", "sm_90", CHOSEN),
    Shortfall(SPILLS, "streaming_statistics_kernel", "float32-aligned-causal-*", "sm_8?", CHOSEN),
    Shortfall(SPILLS, "streaming_block_sum_kernel", "float32-odd-*", "sm_*", FULL),
    Shortfall(SPILLS, "streaming_block_sum_kernel", "float32-aligned-*", "sm_100", CHOSEN),
    Shortfall(SPILLS, "streaming_block_sum_kernel", "float32-aligned-causal-*", "sm_90", CHOSEN),
    Shortfall(SPILLS, "streaming_block_sum_kernel", "*", "gfx942", SCALARS),
    Shortfall(SPILLS, "score_kernel", "float32-odd-*-estimate", "sm_90", FULL),
    Shortfall(SPILLS, "statistics_kernel", "float32-aligned-causal", "sm_90", CHOSEN),
    Shortfall(SPILLS, "one_pass_kernel", "*-odd-causal", "sm_100", CHOSEN),
    Shortfall(SPILLS, "one_pass_kernel", "*-odd-full", "sm_90", CHOSEN),
    Shortfall(SPILLS, "one_pass_kernel", "*float16-odd-full", "sm_89", CHOSEN),
    Shortfall(SPILLS, "block_sum_kernel", "*-odd-*-estimate", "sm_90", CHOSEN),
    Shortfall(SPILLS, "block_sum_kernel", "*-odd-full-estimate", "sm_89", CHOSEN),
    Shortfall(SPILLS, "block_sum_kernel", "*-odd-causal-estimate", "gfx942", SCALARS),
    Shortfall(SPILLS, "selection_kernel", SELECTIONS, "gfx942", SCALARS),
    Shortfall(WIDTH, "statistics_kernel", "*-causal", "*", LIMITS),
    Shortfall(WIDTH, "one_pass_kernel", "*-causal", "*", LIMITS),
    Shortfall(WIDTH, "block_sum_kernel", "*-causal", "*", LIMITS),
    Shortfall(WIDTH, "block_sum_kernel", "*-estimate", "*", BLOCKS),
    Shortfall(WIDTH, "streaming_*_kernel", "*float16-*", "gfx942", HALVES),
    Shortfall(BARRIER, "witness_merge_kernel", "*", "sm_*", REDUCTION),
)
