"""The architectures that kernels are compiled for, and how many warps of one can be resident."""

from dataclasses import dataclass
from typing import Final

SCHEDULERS: Final = 4  # of a multiprocessor; each has a fourth of its registers and warps
REGISTER_UNIT: Final = 8  # registers are given to the threads of a warp in multiples of it
TENSOR_MEMORY: Final = 512  # columns of a multiprocessor that has such memory


@dataclass(frozen=True)
class Architecture:
    """What one multiprocessor has (on AMD's side: a compute unit, and a warp is a wavefront).

    ``registers``: of 32 bits, for all threads. ``shared``: bytes for all blocks, handed out in
    multiples of ``shared_unit``; ``reserved``: bytes of it that each block loses to the system.
    ``instructions``: what nvdisasm calls them.
    """

    name: str
    backend: str
    number: int | str
    instructions: str
    warp: int
    warps: int
    blocks: int
    registers: int
    shared: int
    reserved: int
    shared_unit: int

    def occupancy(
        self, *, threads: int, registers: int, shared: int, tensor_memory: int = 0
    ) -> float:
        """Resident warps over the most that there can be, by what a block of ``threads`` needs.

        ``registers``: of a thread; ``shared``: bytes; ``tensor_memory``: columns. 0 where not even
        one block fits.
        """
        warps = _up(threads, self.warp) // self.warp
        for_one = _up(registers, REGISTER_UNIT) * self.warp
        resident = min(self.warps, self.registers // SCHEDULERS // max(for_one, 1) * SCHEDULERS)
        blocks = min(self.blocks, resident // warps)
        if needed := _up(shared + self.reserved, self.shared_unit):
            blocks = min(blocks, self.shared // needed)
        if tensor_memory:
            blocks = min(blocks, TENSOR_MEMORY // tensor_memory)
        return round(blocks * warps / self.warps, 4)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _nvidia(number: int, warps: int, blocks: int, shared: int, features: str = "") -> Architecture:
    """By the table of compute capabilities in NVIDIA's CUDA programming guide."""
    return Architecture(
        name=f"sm_{number}",
        backend="cuda",
        number=number,
        instructions=f"SM{number}{features}",
        warp=32,
        warps=warps,
        blocks=blocks,
        registers=65536,
        shared=shared * 1024,
        reserved=1024,
        shared_unit=128,
    )


ARCHITECTURES: Final = {
    architecture.name: architecture
    for architecture in (
        _nvidia(80, warps=64, blocks=32, shared=164),
        _nvidia(89, warps=48, blocks=24, shared=100),
        _nvidia(90, warps=64, blocks=32, shared=228, features="a"),
        _nvidia(100, warps=64, blocks=32, shared=228, features="a"),
        # By AMD's CDNA 3 instruction set reference. With several wavefronts a block, a compute
        # unit has barriers for 16 blocks.
        Architecture(
            name="gfx942",
            backend="hip",
            number="gfx942",
            instructions="",
            warp=64,
            warps=32,
            blocks=16,
            registers=4 * 512 * 64,
            shared=64 * 1024,
            reserved=0,
            shared_unit=512,
        ),
    )
}
