"""The mass of a structured attention lies where the structure's name says, at any stride.

Expected masses are closed forms of the parameters. Everything is float64, where a rounding is
2**-53 and the largest logit 100: 1e-11 holds them all, and no closed form is that close to another.
"""

import math

import pytest
import torch
from torch import Tensor

from kernels.xattention.torch_reference import DEPUTY, xattn_estimate
from suites.strategies.structured import (
    FAR,
    NEAR,
    BlockDiagonal,
    Local,
    Needle,
    Noise,
    Sink,
    Structure,
    Uniform,
    states,
)

LENGTH, BLOCK = 128, 16
HEAD_DIM = 32

every_stride = pytest.mark.parametrize("stride", [1, 4, 8])
strengths = pytest.mark.parametrize("strength", [0.5, 3.0])


def logits(*structures: Structure, length: int = LENGTH) -> Tensor:
    queries, keys = states(
        *structures, length=length, head_dim=HEAD_DIM, heads=2, dtype=torch.float64
    )
    return queries @ keys.mT / math.sqrt(HEAD_DIM)


def attention(*structures: Structure) -> Tensor:
    return logits(*structures).softmax(-1)


def mass(stride: int, *structures: Structure, causal: bool = False) -> Tensor:
    """The mean mass of the tokens (stride 1) or positions of a query block on each key block."""
    pair = states(*structures, length=LENGTH, head_dim=HEAD_DIM, heads=2, dtype=torch.float64)
    sums, _ = xattn_estimate(
        *pair, BLOCK, stride, chunk_size=4 * BLOCK, causal=causal, dtypes=DEPUTY
    )
    return sums / (BLOCK // stride)


def share(strength: float, count: int, others: int) -> float:
    """What ``count`` logits of that strength have of the mass, beside others of 0."""
    return count * math.exp(strength) / (count * math.exp(strength) + others)


def near(actual: Tensor, expected: Tensor | float) -> bool:
    return bool(((actual - expected).abs() <= 1e-11).all())


# --- uniform -------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.0, -2.5])
def test_uniform_attention_is_the_same_everywhere(level: float) -> None:
    assert near(logits(Uniform(level)), level)
    assert near(attention(Uniform(level)), 1 / LENGTH)


@every_stride
def test_uniform_attention_at_a_stride(stride: int) -> None:
    assert near(mass(stride, Uniform(1.5)), BLOCK / LENGTH)


# --- sink ----------------------------------------------------------------------------------------


@strengths
@pytest.mark.parametrize("tokens", [1, 4, LENGTH])
def test_the_first_tokens_are_the_sink(strength: float, tokens: int) -> None:
    weights = attention(Sink(strength, tokens))
    assert near(weights[..., :tokens].sum(-1), share(strength, tokens, LENGTH - tokens))
    assert near(weights[..., :tokens], share(strength, tokens, LENGTH - tokens) / tokens)


@strengths
@every_stride
@pytest.mark.parametrize("tokens", [8, 16])
def test_the_sink_at_a_stride(strength: float, stride: int, tokens: int) -> None:
    """The first block has the sink's mass, and that of its other tokens."""
    of_sink = share(strength, tokens, LENGTH - tokens)
    expected = of_sink + (1 - of_sink) * (BLOCK - tokens) / (LENGTH - tokens)
    sums = mass(stride, Sink(strength, tokens))
    assert near(sums[..., 0], expected)
    assert near(sums[..., 1:], (1 - expected) / (LENGTH // BLOCK - 1))


def test_the_sink_of_causal_queries() -> None:
    sums = mass(4, Sink(9.0), causal=True)[..., 0]
    assert (sums > 0.99).all()


# --- local ---------------------------------------------------------------------------------------


@strengths
@pytest.mark.parametrize("width", [1, 5, 8])
def test_a_local_logit_falls_with_the_distance(strength: float, width: int) -> None:
    x = logits(Local(strength, width))
    position = torch.arange(LENGTH)
    distance = (position - position.unsqueeze(1)).abs().expand_as(x)
    lost = x.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) - x
    assert near(lost[distance == 0], 0)
    assert lost[distance <= width].max() <= NEAR / FAR * strength + 1e-11
    assert lost[distance >= 2 * width].min() >= strength - 1e-11
    # on average it goes on falling, octave by octave, by what one cosine loses on average
    octaves = [2 * width * 2**n for n in range(8) if 4 * width * 2**n <= LENGTH]
    means = [lost[(distance >= d) & (distance < 2 * d)].mean() for d in octaves]
    steps = torch.tensor(means).diff()
    assert ((steps - strength / FAR).abs() <= strength / 4).all()


@pytest.mark.parametrize("width", [2, 8])
def test_local_mass_lies_in_the_band(width: int) -> None:
    position = torch.arange(LENGTH)
    band = (position - position.unsqueeze(1)).abs() < 2 * width
    weak, strong = (
        torch.where(band, attention(Local(strength, width)), 0).sum(-1) for strength in (3.0, 9.0)
    )
    assert (strong > 0.99).all()
    assert (weak < strong).all()


@pytest.mark.parametrize("stride", [1, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_local_mass_at_a_stride(stride: int, causal: bool) -> None:
    """A band of a quarter block: every block sees itself and its neighbours."""
    sums = mass(stride, Local(12.0, BLOCK // 4), causal=causal)
    assert (sums.diagonal(dim1=-2, dim2=-1) > 0.6).all()
    assert (sums.tril(1).triu(-1).sum(-1) > 0.99).all()
    wider = mass(stride, Local(12.0, BLOCK), causal=causal).diagonal(dim1=-2, dim2=-1)
    assert (wider[..., 1:-1] < sums.diagonal(dim1=-2, dim2=-1)[..., 1:-1]).all()


# --- needle --------------------------------------------------------------------------------------


@strengths
@pytest.mark.parametrize("position", [0, 77])
def test_the_needle_draws_the_queries_that_ask_for_it(strength: float, position: int) -> None:
    weights = attention(Needle(strength, position, range(40, LENGTH, 3)))
    found = share(strength, 1, LENGTH - 1)
    assert near(weights[..., 40::3, position], found)
    other = torch.ones(LENGTH, dtype=torch.bool)
    other[40::3] = False
    assert near(weights[..., other, :], 1 / LENGTH)


@every_stride
@pytest.mark.parametrize("position", [0, 77])
def test_the_needle_at_a_stride(stride: int, position: int) -> None:
    """Of the logit a position has one part in ``stride``; the block has other positions too."""
    positions, in_block = LENGTH // stride, BLOCK // stride
    found = share(60 / stride, 1, positions - 1)
    expected = found + (1 - found) * (in_block - 1) / (positions - 1)
    sums = mass(stride, Needle(60.0, position, range(3 * BLOCK, 5 * BLOCK)))
    assert near(sums[..., 3:5, position // BLOCK], expected)
    assert near(sums[..., [0, 1, 2, 5, 6, 7], :], BLOCK / LENGTH)
    assert expected > 0.99


# --- block diagonal ------------------------------------------------------------------------------


@strengths
@pytest.mark.parametrize("block", [1, 16, 24])
def test_a_block_sees_itself(strength: float, block: int) -> None:
    length = 24  # at most a code for each of 32 features
    position = torch.arange(length) // block
    own = position == position.unsqueeze(1)
    x = logits(BlockDiagonal(strength, block), length=length)
    assert near(x, strength * own)


@strengths
@every_stride
@pytest.mark.parametrize("block", [BLOCK, 2 * BLOCK])
def test_a_block_sees_itself_at_a_stride(strength: float, stride: int, block: int) -> None:
    position = torch.arange(0, LENGTH, BLOCK) // block
    own = position == position.unsqueeze(1)
    inside = share(strength, block, LENGTH - block)
    sums = mass(stride, BlockDiagonal(strength, block))
    assert near(sums[..., own], inside * BLOCK / block)
    assert near(sums[..., ~own], (1 - inside) * BLOCK / (LENGTH - block))


# --- noise, and several structures ---------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.5, 4.0])
@pytest.mark.parametrize("dims", [4, 32])
def test_noise_has_its_deviation(strength: float, dims: int) -> None:
    x = logits(Noise(strength, dims, seed=0))
    # of 128 queries and keys each: some 1 / sqrt(128 * dims) of the deviation is chance
    assert x.std().item() == pytest.approx(strength, rel=0.2)
    assert abs(x.mean().item()) < 0.1 * strength
    queries, keys = Noise(strength, dims, seed=0).features(1, 1, LENGTH)
    assert queries.shape == keys.shape == (1, 1, LENGTH, dims)


def test_noise_is_that_of_its_seed() -> None:
    x, again, other = (logits(Noise(1.0, 8, seed)) for seed in (3, 3, 4))
    assert torch.equal(x, again)
    assert (x - other).abs().max() > 1
    assert (x[:, 0] - x[:, 1]).abs().max() > 1


def test_logits_add_up() -> None:
    parts = Sink(3.0), Local(2.0, 16), Noise(0.5, 8, seed=1)
    assert near(logits(*parts), sum((logits(part) for part in parts), torch.zeros(())))


def test_states_have_the_shape_that_was_asked_for() -> None:
    structures = Sink(3.0), Noise(1.0, 8, seed=1)
    exact = states(*structures, length=12, head_dim=16, batch=2, heads=3, dtype=torch.float64)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounded = states(*structures, length=12, head_dim=16, batch=2, heads=3, dtype=dtype)
        for x, wanted in zip(rounded, exact, strict=True):
            assert x.shape == (2, 3, 12, 16)
            assert x.dtype == dtype
            assert torch.equal(x, wanted.to(dtype))


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (Sink(1.0, 0), "tokens must be at least 1, got 0"),
        (Local(1.0, 0), "width must be at least 1, got 0"),
        (Needle(1.0, 8, range(8)), r"position must be in \[0, 8\), got 8"),
        (Needle(1.0, -1, range(8)), r"position must be in \[0, 8\), got -1"),
        (BlockDiagonal(1.0, 0), "block must be at least 1, got 0"),
        (Noise(1.0, 0, 0), "dims must be at least 1, got 0"),
        (Noise(1.0, 5, 0), "head_dim must be at least 5 for these structures, got 4"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(structure: Structure, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        states(structure, length=8, head_dim=4)
