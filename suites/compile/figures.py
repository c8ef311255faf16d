"""What is known of a compiled kernel, and what of it has changed."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kernel, compiled for one architecture.

    ``threads`` is a block's. ``registers`` (of 32 bits), ``stack``, ``spill_stores`` and
    ``spill_loads`` (bytes) are a thread's: what its code stores to local memory and loads from it,
    each instruction counted once. ``spilled_registers``: as LLVM counts them for AMD, those
    that went to lanes of other registers too. ``static_shared``, ``dynamic_shared`` (bytes) and
    ``tensor_memory`` (columns) are a block's. ``code``: bytes. ``widest_load``, ``widest_store``:
    bits of global memory that one instruction moves for a thread, 0 without any. ``tensor_cores``:
    such instructions, and how many. ``order``: global loads (L), global stores (S) and barriers (B)
    as they stand in the code, several in a row as one. ``occupancy``: resident warps over the most
    that there can be.
    """

    threads: int
    registers: int
    code: int
    occupancy: float
    spill_stores: int = 0
    spill_loads: int = 0
    spilled_registers: int = 0
    stack: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0
    tensor_memory: int = 0
    widest_load: int = 0
    widest_store: int = 0
    tensor_cores: dict[str, int] = {}
    barriers: int = 0
    order: str = ""


Variants = Mapping[str, Mapping[str, Figures]]  # by the name of the variant, by architecture


class CompiledFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one module's kernels, and the versions of the tools that made them."""

    toolchain: dict[str, str]
    variants: dict[str, dict[str, Figures]]


class Change(msgspec.Struct, frozen=True):
    """A figure that is not what it was; None where a kernel has none, before or after."""

    variant: str
    architecture: str
    figure: str
    before: Any
    after: Any


def changes(before: Variants, after: Variants) -> Iterator[Change]:
    """Every figure that differs; a kernel that came or went as a change of ``compiled``."""
    for variant in sorted({*before, *after}):
        old, new = before.get(variant, {}), after.get(variant, {})
        for architecture in dict.fromkeys((*old, *new)):
            if architecture not in old or architecture not in new:
                was, is_ = architecture in old or None, architecture in new or None
                yield Change(variant, architecture, "compiled", was, is_)
                continue
            for figure in Figures.__struct_fields__:
                was, is_ = (getattr(each[architecture], figure) for each in (old, new))
                if was != is_:
                    yield Change(variant, architecture, figure, was, is_)
