"""Attention of a real model on a real text, and the top-k rows that a learned indexer would emit.

Of a few heads there are the queries and keys as well.

``capture.py`` made the files, once; ``provenance.toml`` says from what, and holds their hashes.
"""

import hashlib
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from golden.files import ROOT, GoldenError, read_bytes, shown


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the script ran on."""

    python: str
    torch: str
    numpy: str
    safetensors: str
    tokenizers: str


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sentence similarities: as the model's authors publish them, and as the script got them."""

    published: tuple[float, float, float]
    computed: tuple[float, float, float]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One context; its arrays are in ``<name>.npz``."""

    name: str
    context_len: int
    topk: int
    sha256: str


class States(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queries and keys of one context, in ``<name>.npz``; ``rounded`` says how."""

    name: str
    context_len: int
    dtype: Literal["float16"]
    rounded: str
    labels: tuple[tuple[int, int], ...]
    sha256: str


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``provenance.toml``."""

    model: str
    licence: str
    package: str
    package_version: str
    weights_sha256: str
    text: str
    text_source: str
    text_sha256: str
    script: str
    date: date
    layers: int
    heads: int
    head_dim: int
    versions: Versions
    check: Check
    contexts: tuple[Entry, ...]
    states: States


@dataclass(frozen=True)
class RecordedContext:
    """The last query of one context, in every layer and head: a row for each (layer, head).

    ``learned``: int32 ``[rows, topk]``, the tokens of most attention, descending, equal ones by
    token, then -1 in every slot past ``min(topk, context_len)``. ``attention``: float32
    ``[rows, context_len]``, softmax weights. ``labels``: the (layer, head) of each row.
    """

    name: str
    context_len: int
    learned: NDArray[np.int32]
    attention: NDArray[np.float32]
    labels: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RecordedStates:
    """The queries and keys of every position of one context, in a few heads.

    ``query`` and ``key``: float16 ``[1, heads, context_len, head_dim]``, rounded once from the
    model's float32. Its attention is ``softmax(query @ key.T / sqrt(head_dim))``, and not causal.
    ``labels``: the (layer, head) of each.
    """

    name: str
    context_len: int
    query: NDArray[np.float16]
    key: NDArray[np.float16]
    labels: tuple[tuple[int, int], ...]


def read_provenance(root: Path = ROOT) -> Provenance:
    """``recorded/provenance.toml`` of a golden folder. Raises GoldenError."""
    path = root / "recorded/provenance.toml"
    content = read_bytes(path, root)
    try:
        return msgspec.toml.decode(content, type=Provenance)
    except msgspec.DecodeError as error:
        raise GoldenError(f"{shown(path, root)}: {error}; {_ADVICE}") from None


def load_recorded(root: Path = ROOT) -> list[RecordedContext]:
    """Every recorded context of a golden folder, the shortest first, in new arrays.

    Raises GoldenError when a file is missing, or is not the one that ``provenance.toml`` names.
    """
    provenance = read_provenance(root)
    labels = tuple(product(range(provenance.layers), range(provenance.heads)))
    contexts = []
    for entry in provenance.contexts:
        arrays = _arrays(entry, root)
        learned = arrays["learned"].reshape(len(labels), entry.topk)
        attention = arrays["attention"].reshape(len(labels), entry.context_len)
        contexts.append(RecordedContext(entry.name, entry.context_len, learned, attention, labels))
    return contexts


def load_states(root: Path = ROOT) -> RecordedStates:
    """The recorded queries and keys of a golden folder, in new arrays.

    Raises GoldenError when a file is missing, or is not the one that ``provenance.toml`` names.
    """
    entry = read_provenance(root).states
    arrays = _arrays(entry, root)
    query, key = arrays["query"], arrays["key"]
    return RecordedStates(entry.name, entry.context_len, query, key, entry.labels)


def _arrays(entry: Entry | States, root: Path) -> dict[str, NDArray[Any]]:
    path = root / f"recorded/{entry.name}.npz"
    content = read_bytes(path, root)
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise GoldenError(
            f"{shown(path, root)}: its sha256 is not the one in provenance.toml; {_ADVICE}"
        )
    with np.load(BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


_ADVICE = "restore the folder from version control"
