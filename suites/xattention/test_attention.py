"""The estimate on attention as it occurs: a model's queries and keys, and named structures."""

import pytest
import torch

from golden.model import Value
from golden.recorded import load_states
from suites.cases import ESTIMATE, Case, real, to_golden
from suites.contracts import contract, operations
from suites.runner import Runner
from suites.strategies.structured import (
    BlockDiagonal,
    Local,
    Needle,
    Noise,
    Sink,
    Structure,
    Uniform,
    states,
)

BLOCK, STRIDE = 16, 4
STATES = load_states()

pytestmark = operations(ESTIMATE)


def estimate(queries: torch.Tensor, keys: torch.Tensor, causal: bool) -> Case:
    inputs: dict[str, Value] = {
        "query_states": to_golden(queries),
        "key_states": to_golden(keys),
        "block_size": BLOCK,
        "stride": STRIDE,
        "threshold": real(0.9),
        "chunk_size": 3 * BLOCK,
        "causal": causal,
    }
    return Case(ESTIMATE, inputs)


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float16)


@contract("xattention.bounds.derived", "xattention.select.threshold")
@pytest.mark.parametrize(
    ("head", "dtype"),
    list(enumerate(DTYPES)),
    ids=[f"layer {layer} head {head}" for layer, head in STATES.labels],
)
def test_a_head_of_a_model(implementation: Runner, head: int, dtype: torch.dtype) -> None:
    """The last tokens attend to all, and no block of either side is left whole."""
    queries, keys = (
        torch.from_numpy(each[:, head : head + 1]).to(dtype) for each in (STATES.query, STATES.key)
    )
    more = STATES.context_len - 4 * BLOCK
    implementation.judge(estimate(queries[:, :, more:-5], keys[:, :, :-5], causal=True))


STRUCTURES: dict[str, Structure] = {
    "uniform": Uniform(),
    "sink": Sink(8.0, tokens=4),
    "local": Local(12.0, width=BLOCK),
    "needle": Needle(40.0, position=37, queries=range(90)),
    "block-diagonal": BlockDiagonal(8.0, block=BLOCK),
}


@contract("xattention.bounds.derived", "xattention.select.threshold")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_attention_of_a_structure(
    implementation: Runner, structure: Structure, causal: bool
) -> None:
    noise = Noise(1.0, dims=4, seed=1)
    queries, keys = states(structure, noise, length=90, head_dim=20)
    implementation.judge(estimate(queries, keys, causal))
