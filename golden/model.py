"""The typed form of the files under ``golden/``, from which ``golden/schema`` is generated."""

from typing import Annotated, Literal

import msgspec

Slug = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
ContractId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Size = Annotated[int, msgspec.Meta(ge=0)]
Bits = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]+$")]
IntegerType = Literal["int32", "int64", "uint64"]
FloatType = Literal["float16", "bfloat16", "float32", "float64"]
ElementType = IntegerType | FloatType | Literal["bool"]
Mode = Literal["prefill", "both", "decode"]
Layout = Literal["contiguous", "offset", "padded", "sliced", "transposed", "broadcast", "wide"]
Family = Literal["witness", "xattention"]
Kind = Literal[
    "identity",
    "contract",
    "disabled",
    "fallback",
    "caveat",
    "refusal",
    "robustness",
    "null",
    "metric",
]
Operation = Literal[
    "topology_witness_indices",
    "apply_topology_witnesses",
    "scatter_topology_witnesses_",
    "segment_of",
    "random_null",
    "locality_null",
    "segment_coverage",
    "attention_mass_recall",
    "flat_group_gemm_fuse_reshape",
    "softmax_fuse_block_sum",
    "softmax_compute_partial_stats",
    "merge_softmax_stats",
    "softmax_normalize_and_block_sum",
    "find_blocks_chunked",
    "xattn_estimate",
]


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor as data: values in row-major order.

    Integers and booleans are exact. Floats appear twice: in ``data`` for people (the shortest
    decimal that rounds to the value; "nan", "inf" and "-inf" by name) and in ``bits`` for machines
    (the IEEE 754 pattern as hexadecimal digits, most significant first), and the two agree.
    ``layout`` says how the tensor lay in memory when a case was found; readers may ignore it.
    """

    dtype: ElementType
    shape: tuple[Size, ...]
    data: tuple[bool | int | float | Literal["nan", "inf", "-inf"], ...]
    bits: tuple[Bits, ...] = ()
    layout: Layout = "contiguous"


# What a parameter takes. A float is a float64 tensor without dimensions, for the sake of its bits;
# a dtype and a mode go by their names.
Value = Tensor | tuple[Tensor, ...] | bool | int | ElementType | Mode


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The call must be refused (in Python with ValueError); ``argument`` is the one at fault."""

    argument: str


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Why a vector exists."""

    reason: Text
    link: str = ""


class Vector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One case that someone kept: inputs by parameter name, and the expected value or the refusal.

    A parameter that has a default may be left out. For an in-place operation ``expected`` is the
    buffer after the call; of a call with two results it lists both. An expected float is the exact
    value, rounded once to the type of the result. It carries no tolerance: how far an honest
    result may be from it is derived from the inputs (R-X14). Where the specification leaves an
    entry open, a score in the future of its query (R-X1), ``expected`` holds what the formula
    gives, and a result has to be finite there and no more.
    """

    id: Slug
    contracts: tuple[ContractId, ...]
    notes: tuple[Slug, ...]
    inputs: dict[str, Value]
    expected: Tensor | tuple[Tensor, ...] | int | None = None
    refusal: Refusal | None = None

    def __post_init__(self) -> None:
        if (self.expected is None) == (self.refusal is None):
            raise ValueError(f"vector {self.id!r} needs `expected` or `refusal`, and not both")


class VectorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``golden/<family>/<operation>.json``."""

    schema: Literal[1]
    operation: Operation
    notes: dict[Slug, Note]
    vectors: tuple[Vector, ...]


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a counterexample was found, and by what.

    ``actual``: what the implementation gave, where it gave anything. ``versions``: of the tools,
    by name. ``device``: as a person names it.
    """

    implementation: Text
    seed: int
    device: str
    commit: str
    versions: dict[str, str]
    actual: Tensor | tuple[Tensor, ...] | None = None


class CounterexampleFile(VectorFile, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A vector file of one case that failed, as a run leaves it, and how that was found.

    ``expected`` is the oracle's. A vector file without ``found`` is one, too, so that all that
    reads counterexamples reads vectors.
    """

    found: Found | None = None


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One checkable statement of the specification.

    ``source`` names the section of the source document or the ruling. ``no_vector`` says why no
    vector can show the contract; it is empty for a contract that has one.
    """

    id: ContractId
    family: Family
    kind: Kind
    operations: tuple[Operation, ...]
    statement: Text
    source: Text
    no_vector: str = ""


class ContractFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``golden/contracts.toml``."""

    contract: tuple[Contract, ...]
