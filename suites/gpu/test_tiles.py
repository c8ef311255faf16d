"""Every tile that a caller can choose: the kernels of block sums take theirs by the block size.

All other tiles, and every number of warps, are constants of the kernels: each call has them.
"""

import pytest

from golden.model import Operation
from suites.cases import NORMALISE, ONE_PASS
from suites.contracts import DEFINED_BY, contract
from suites.gpu.device import Device
from suites.gpu.samples import sample
from suites.runner import Runner


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize(
    "operation", [pytest.param(o, marks=contract(DEFINED_BY[o])) for o in (NORMALISE, ONE_PASS)]
)
def test_block_sums_of_every_block_size(
    implementation: Runner, device: Device, operation: Operation, block: int
) -> None:
    implementation.judge(sample(operation, block=block))
