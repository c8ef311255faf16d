"""Boards that kernels run on, and what their vendors publish of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Board:
    """What a vendor publishes of one board at its peak.

    ``bandwidth``: bytes a second. ``rates``: multiplications and additions a second, by the type of
    the factors, of dense matrices and summed up in fp32.
    """

    architecture: str
    bandwidth: float
    rates: Mapping[str, float]


def _device(architecture: str, terabytes: float, fp32: float, tf32: float, half: float) -> Board:
    """Rates in 10**12 a second; those of fp16 and bf16 are one."""
    rates = {"float32": fp32, "tf32": tf32, "float16": half, "bfloat16": half}
    return Board(
        architecture, terabytes * 1e12, {name: each * 1e12 for name, each in rates.items()}
    )


DEVICES: Final = {
    # NVIDIA's data sheets. From the L4 on they print tensor cores with sparsity: half of it here.
    # Of the B200 there are two bandwidths, 7.7 and 8 TB/s: the floor is by the higher one.
    "A100 SXM 80 GB": _device("sm_80", 2.039, 19.5, 156, 312),
    "L4": _device("sm_89", 0.3, 30.3, 60, 121),
    "H100 SXM": _device("sm_90", 3.35, 67, 494.7, 989.4),
    "H200 SXM": _device("sm_90", 4.8, 67, 494.7, 989.4),
    "HGX B200": _device("sm_100", 8.0, 75, 1100, 2250),
    # Appendix A of NVIDIA's white paper on the Ada architecture; fp16 as summed up in fp32.
    "RTX 4090": _device("sm_89", 1.008, 82.6, 82.6, 165.2),
    # AMD's data sheet.
    "MI300X": _device("gfx942", 5.3, 163.4, 653.7, 1307.4),
}
