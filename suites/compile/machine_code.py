"""Figures out of machine code: NVIDIA's as its tools print it, AMD's as LLVM's assembly text."""

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Final

from suites.compile.architectures import Architecture
from suites.compile.figures import Figures

INSTRUCTION: Final = 16  # bytes of one of NVIDIA's, since Volta

NVIDIA_LOADS: Final = ("LDG", "LDGSTS", "LD")  # from global memory, also straight to shared
NVIDIA_STORES: Final = ("STG", "ST")
NVIDIA_TENSOR: Final = "MMA"  # how the names end; `HFMA2.MMA`, of the ordinary cores, is no such
AMD_WIDTHS: Final = {
    "byte": 8,
    "ubyte": 8,
    "sbyte": 8,
    "short": 16,
    "ushort": 16,
    "sshort": 16,
    "dword": 32,
    "dwordx2": 64,
    "dwordx3": 96,
    "dwordx4": 128,
}


@dataclass(frozen=True)
class Cubin:
    """A kernel in a file of NVIDIA's, and what its launch says. ``dynamic_shared``: bytes."""

    content: bytes
    symbol: str
    threads: int
    dynamic_shared: int
    tensor_memory: int = 0  # columns


@dataclass(frozen=True)
class Assembly:
    """The text that LLVM makes of a kernel for AMD, and what its launch says."""

    text: str
    threads: int
    dynamic_shared: int


def nvidia(cubin: Cubin, usage: str, opcodes: Sequence[str], architecture: Architecture) -> Figures:
    """The figures of a kernel from the opcodes of its code.

    ``usage``: what ``cuobjdump --dump-resource-usage`` prints. Raises ValueError where it says
    nothing of the kernel.
    """
    resources = _resources(usage, cubin.symbol)
    static = resources["SHARED"]
    if int(architecture.number) >= 90:  # where the tool counts what the system takes of a block's
        static = max(static - architecture.reserved, 0)
    loads = [_width(each) for each in opcodes if _stem(each) in NVIDIA_LOADS]
    stores = [_width(each) for each in opcodes if _stem(each) in NVIDIA_STORES]
    tensor = Counter(each for each in opcodes if _stem(each).endswith(NVIDIA_TENSOR))
    return Figures(
        threads=cubin.threads,
        registers=resources["REG"],
        code=len(opcodes) * INSTRUCTION,
        occupancy=architecture.occupancy(
            threads=cubin.threads,
            registers=resources["REG"],
            shared=static + cubin.dynamic_shared,
            tensor_memory=cubin.tensor_memory,
        ),
        spill_stores=sum(_width(each) // 8 for each in opcodes if _stem(each) == "STL"),
        spill_loads=sum(_width(each) // 8 for each in opcodes if _stem(each) == "LDL"),
        stack=resources["STACK"],
        static_shared=static,
        dynamic_shared=cubin.dynamic_shared,
        tensor_memory=cubin.tensor_memory,
        widest_load=max(loads, default=0),
        widest_store=max(stores, default=0),
        tensor_cores=dict(sorted(tensor.items())),
        barriers=sum(_nvidia_event(each) == "B" for each in opcodes),
        order=_order(opcodes, _nvidia_event),
    )


def amd(assembly: Assembly, architecture: Architecture) -> Figures:
    """The figures of the one kernel of a text. Raises ValueError where that describes none."""
    text, shared = assembly.text, assembly.dynamic_shared
    opcodes = re.findall(r"^\t(\w+)\b", text, re.MULTILINE)
    registers = _stated(text, r"\.vgpr_count:\s+")
    loads = [_amd_width(each, "load") for each in opcodes]
    stores = [_amd_width(each, "store") for each in opcodes]
    tensor = Counter(each for each in opcodes if re.match(r"v_s?mfma", each))
    return Figures(
        threads=assembly.threads,
        registers=registers,
        code=_stated(text, r"; codeLenInByte = "),
        occupancy=architecture.occupancy(
            threads=assembly.threads, registers=registers, shared=shared
        ),
        spill_stores=sum(_amd_width(each, "store", "scratch") // 8 for each in opcodes),
        spill_loads=sum(_amd_width(each, "load", "scratch") // 8 for each in opcodes),
        spilled_registers=sum(_stated(text, rf"\.{kind}gpr_spill_count:\s+") for kind in "sv"),
        stack=_stated(text, r"\.private_segment_fixed_size:\s+"),
        dynamic_shared=shared,
        widest_load=max(loads, default=0),
        widest_store=max(stores, default=0),
        tensor_cores=dict(sorted(tensor.items())),
        barriers=sum(_amd_event(each) == "B" for each in opcodes),
        order=_order(opcodes, _amd_event),
    )


def _order(opcodes: Iterable[str], event: Callable[[str], str]) -> str:
    return "".join(each for each, _ in groupby(filter(None, map(event, opcodes))))


# --- NVIDIA --------------------------------------------------------------------------------------


def code_of(cubin: Cubin) -> bytes:
    """The instructions of a kernel and of what it calls: its section of the ELF file.

    Raises ValueError where there is none.
    """
    content = cubin.content
    (headers,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    # Of a header: where the name is, then from byte 24 on where the section is and how long.
    sections = [
        (*struct.unpack_from("<I", content, at), *struct.unpack_from("<QQ", content, at + 24))
        for at in range(headers, headers + size * count, size)
    ]
    names_at = sections[names][1]
    wanted = f".text.{cubin.symbol}\0".encode()
    for name, start, length in sections:
        if content.startswith(wanted, names_at + name):
            return content[start : start + length]
    raise ValueError(f"the cubin has no code of {cubin.symbol}")


def split(disassembly: str, codes: Sequence[bytes]) -> list[list[str]]:
    """The opcodes of each of several codes, from what ``nvdisasm -json`` prints of all in a row.

    Raises ValueError where it prints another number of instructions.
    """
    _, functions = json.loads(disassembly)
    opcodes = iter([each["opcode"] for f in functions for each in f["sass-instructions"]])
    parts = [list(islice(opcodes, len(code) // INSTRUCTION)) for code in codes]
    if [len(part) * INSTRUCTION for part in parts] != [len(code) for code in codes] or [*opcodes]:
        raise ValueError("nvdisasm prints another number of instructions than there are")
    return parts


def _resources(usage: str, symbol: str) -> dict[str, int]:
    found = re.search(rf"Function {re.escape(symbol)}:\s*\n([^\n]*)", usage)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of {symbol}")
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", found[1])}


def _stem(opcode: str) -> str:
    return opcode.partition(".")[0]


def _width(opcode: str) -> int:
    """Bits that an instruction moves for a thread: 32 unless it says otherwise."""
    for part in opcode.split(".")[1:]:
        if found := re.fullmatch(r"[US]?(8|16|64|128|256)", part):
            return int(found[1])
    return 32


def _nvidia_event(opcode: str) -> str:
    stem = _stem(opcode)
    if stem in NVIDIA_LOADS:
        return "L"
    if stem in NVIDIA_STORES:
        return "S"
    return "B" if stem == "BAR" else ""


# --- AMD -----------------------------------------------------------------------------------------


def _stated(assembly: str, what: str) -> int:
    found: Any = re.search(what + r"(\d+)", assembly)
    if found is None:
        raise ValueError(f"the assembly text does not say {what}")
    return int(found[1])


def _amd_width(opcode: str, kind: str, *memory: str) -> int:
    """Bits that an instruction moves for a thread; 0 for one of another kind."""
    spaces = "|".join(memory or ("global", "buffer", "flat"))
    found = re.fullmatch(rf"(?:{spaces})_{kind}_(?:lds_)?(\w+?)(?:_d16(?:_hi)?)?", opcode)
    return AMD_WIDTHS.get(found[1], 0) if found else 0


def _amd_event(opcode: str) -> str:
    if _amd_width(opcode, "load"):
        return "L"
    if _amd_width(opcode, "store"):
        return "S"
    return "B" if opcode == "s_barrier" else ""
