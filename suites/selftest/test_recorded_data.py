"""The recorded rows are what their provenance says, and the loader refuses anything else."""

import hashlib
import math
import shutil
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.files import ROOT, GoldenError
from golden.recorded import RecordedContext, RecordedStates, load_recorded, load_states

RECORDED = ROOT / "recorded"
CONTEXTS = load_recorded()
STATES = load_states()
NAMES = [*(context.name for context in CONTEXTS), STATES.name]
each_context = pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: context.name)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_hashes_are_those_of_the_provenance_file() -> None:
    provenance = tomllib.loads((RECORDED / "provenance.toml").read_text(encoding="utf-8"))
    entries = [*provenance["contexts"], provenance["states"]]
    named = {f"{entry['name']}.npz": entry["sha256"] for entry in entries}
    assert named == {path.name: sha256(path) for path in RECORDED.glob("*.npz")}
    assert provenance["text_sha256"] == sha256(RECORDED / provenance["text"])
    assert (RECORDED / provenance["script"]).is_file()


def test_the_encoder_agreed_with_the_published_similarities() -> None:
    check = tomllib.loads((RECORDED / "provenance.toml").read_text(encoding="utf-8"))["check"]
    # four decimals are published: half a unit of the last, and float32 noise
    assert check["computed"] == pytest.approx(check["published"], rel=0, abs=6e-5)


def test_every_context_loads_the_shortest_first() -> None:
    widths = [(context.context_len, context.learned.shape[1]) for context in CONTEXTS]
    assert widths == [(20, 32), (64, 32), (128, 32), (256, 64), (512, 64)]


@each_context
def test_there_is_a_row_for_every_layer_and_head(context: RecordedContext) -> None:
    assert context.labels == tuple((layer, head) for layer in range(6) for head in range(12))
    assert context.attention.shape == (72, context.context_len)
    assert context.learned.shape[0] == 72
    assert context.attention.dtype == np.float32
    assert context.learned.dtype == np.int32


@each_context
def test_a_learned_row_is_the_top_k_of_its_attention(context: RecordedContext) -> None:
    kept = min(context.learned.shape[1], context.context_len)
    assert (context.learned[:, kept:] == -1).all()
    for learned, attention in zip(context.learned[:, :kept], context.attention, strict=True):
        assert len(set(learned.tolist())) == kept
        assert learned.min() >= 0
        assert learned.max() < context.context_len
        # by weight and not by token, so that it does not matter how ties were broken
        assert attention[learned].tolist() == sorted(attention.tolist(), reverse=True)[:kept]


def test_padding_occurs() -> None:
    assert any((context.learned < 0).any() for context in CONTEXTS)


@each_context
def test_an_attention_row_is_a_distribution(context: RecordedContext) -> None:
    """Softmax divides e_i, whatever the error of exp, by the float32 sum of the e_i.

    The sum of L terms takes at most L - 1 roundings in any order; the division takes one, or two
    as a product with the reciprocal. Each is a factor within 1 +- u, u = 2^-24, so the weights add
    up to 1 within gamma = n u / (1 - n u), n = L + 1. A weight that underflows is off by at most
    2^-126 more.
    """
    n_u = Fraction(context.context_len + 1, 2**24)
    bound = n_u / (1 - n_u) + Fraction(context.context_len, 2**126)
    assert (context.attention >= 0).all()
    for row in context.attention.tolist():
        assert abs(sum(map(Fraction, row), Fraction(-1))) <= bound


# --- queries and keys ----------------------------------------------------------------------------


def test_the_states_are_those_of_four_heads() -> None:
    assert (STATES.name, STATES.context_len) == ("states-256", 256)
    assert STATES.labels == ((0, 2), (0, 8), (4, 5), (4, 9))
    for states in (STATES.query, STATES.key):
        assert states.shape == (1, 4, 256, 32)
        assert states.dtype == np.float16
        assert np.isfinite(states).all()


def last_attention() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The attention [heads, length] of the last query, by its states; and how far the recorded one
    may be from it.

    A stored number is within d = max(2^-11 |it|, 2^-25) of the one that the model had, so a logit
    q k / sqrt(n), n = head_dim, is within sum(|q| d_k + |k| d_q + d_q d_k) / sqrt(n). The model
    worked in float32, u = 2^-24: n products and their sum (n u of the sum of magnitudes), sqrt(n)
    and the division by it (2 u), x less the maximum (u of the difference), an exponential of two
    ulp (4 u), the sum of L of them and a division (L u). All of that is in the exponent, a weight's
    own and, at most the largest, that of the sum which divides it. Underflow is absolute.
    """
    q, k = STATES.query[0, :, -1:].astype(np.float64), STATES.key[0].astype(np.float64)
    d_q, d_k = (np.maximum(2.0**-11 * abs(x), 2.0**-25) for x in (q, k))
    u, n, root = 2.0**-24, q.shape[-1], math.sqrt(q.shape[-1])
    x = (q * k).sum(-1) / root
    m = x.max(-1, keepdims=True)
    weights = np.exp(x - m)
    weights /= weights.sum(-1, keepdims=True)

    stored = (abs(q) * d_k + abs(k) * d_q + d_q * d_k).sum(-1) / root
    magnitude = ((abs(q) + d_q) * (abs(k) + d_k)).sum(-1) / root
    spread = m - x + 2 * stored.max(-1, keepdims=True)
    slip = stored + u * ((n + 2) * magnitude + spread + 4 + STATES.context_len)
    return weights, weights * np.expm1(slip + slip.max(-1, keepdims=True)) + 2.0**-126


def test_the_states_make_the_recorded_attention() -> None:
    """Each head that of its own label, and of no other."""
    weights, bound = last_attention()
    (context,) = (c for c in CONTEXTS if c.context_len == STATES.context_len)
    for head, label in enumerate(STATES.labels):
        error = abs(context.attention.astype(np.float64) - weights[head])
        (same,) = np.nonzero((error <= bound[head]).all(-1))
        assert [context.labels[row] for row in same] == [label]


# --- the loaders refuse --------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A golden folder of our own, with nothing in it but a copy of the recorded files."""
    shutil.copytree(RECORDED, tmp_path / "golden/recorded")
    return tmp_path / "golden"


def load_everything(root: Path) -> tuple[list[RecordedContext], RecordedStates]:
    return load_recorded(root), load_states(root)


def refusal(root: Path) -> str:
    with pytest.raises(GoldenError) as refused:
        load_everything(root)
    return str(refused.value)


def test_an_untouched_copy_loads(root: Path) -> None:
    contexts, states = load_everything(root)
    assert [context.name for context in contexts] == [context.name for context in CONTEXTS]
    assert np.array_equal(states.key, STATES.key)


@pytest.mark.parametrize("name", [f"{name}.npz" for name in NAMES])
def test_a_corrupted_file_is_refused_in_one_line(root: Path, name: str) -> None:
    path = root / "recorded" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert refusal(root) == (
        f"golden/recorded/{name}: its sha256 is not the one in provenance.toml; "
        "restore the folder from version control"
    )


@pytest.mark.parametrize("name", ["context-20.npz", "states-256.npz", "provenance.toml"])
def test_a_missing_file_is_refused_in_one_line(root: Path, name: str) -> None:
    (root / "recorded" / name).unlink()
    message = refusal(root)
    assert message.startswith(f"golden/recorded/{name}: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    "line",
    [b"layers = 'six'", b"layers = 6\nsurprise = 1", b"", b"=", b"layers = 6 # \xff"],
    ids=["another type", "an unknown field", "a missing field", "not TOML", "not UTF-8"],
)
def test_a_malformed_provenance_is_refused_in_one_line(root: Path, line: bytes) -> None:
    path = root / "recorded/provenance.toml"
    path.write_bytes(path.read_bytes().replace(b"layers = 6\n", line + b"\n"))
    message = refusal(root)
    assert message.startswith("golden/recorded/provenance.toml: ")
    assert message.endswith("; restore the folder from version control")
    assert "\n" not in message
