"""What the design promises of compiled kernels, and of which."""

import re
from typing import Final

from suites.compile.compiler import Compiled

# Kernels that have nothing to gain from wide loads. The selection reads fewer elements of a row at
# a time than it has threads. The merge in CUDA C++ has a thread a row, whose loads fill whole lines
# as they are: four rows a thread would only be a quarter of the threads.
NARROW: Final = ("selection_kernel", "merge_statistics")
# Kernels that multiply queries and keys, beside those of the operation that does nothing else.
SCORES: Final = ("streaming_statistics_kernel", "streaming_block_sum_kernel", "score_kernel")
TENSOR_CORES: Final = {
    "sm_80": "HMMA",
    "sm_89": "HMMA",
    "sm_90": "HGMMA",
    "sm_100": "UTCHMMA",
    "gfx942": "v_mfma",
}
IEEE: Final = re.compile(r"v_mfma_f32_\w+_?f32")  # tensor cores that multiply fp32 as it is

# Loads, stores and barriers as they may stand in the code of an operation. Witnesses are stored
# after every load of the row. Of a merge the stores before the barrier are those of slots that
# cannot receive a witness; the others are stored after it, and nothing may have to order them.
ORDERS: Final = {
    "topology_witness_indices": r"[LB]*BS",
    "scatter_topology_witnesses_": r"[LB]*BS",
    "apply_topology_witnesses": r"[LB]*[LS]*B[LS]*",
}


def reads_aligned_rows(compiled: Compiled) -> bool:
    return compiled.variant.rows == "aligned" and compiled.variant.kernel not in NARROW


def makes_scores(compiled: Compiled) -> bool:
    variant = compiled.variant
    return variant.kernel in SCORES or variant.operation == "flat_group_gemm_fuse_reshape"


def makes_scores_of_16_bits(compiled: Compiled) -> bool:
    return makes_scores(compiled) and compiled.variant.dtype != "float32"


def makes_scores_of_32_bits(compiled: Compiled) -> bool:
    return makes_scores(compiled) and compiled.variant.dtype == "float32"


def stores_slots(compiled: Compiled) -> bool:
    return compiled.variant.operation in ORDERS
