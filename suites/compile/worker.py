"""What a process of the pool does: it surveys modules and compiles variants, without interpreting.

Triton decides at its import and at the definition of a kernel whether kernels are interpreted, so
nothing here may import it before `prepare` has run.
"""

import os
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import msgspec

from kernels.cuda.toolchain import BuildError, ToolchainMissing, cache_folder
from suites.compile import architectures, figures, machine_code
from suites.compile.architectures import ARCHITECTURES
from suites.compile.figures import Figures
from suites.compile.machine_code import Assembly, Cubin
from suites.compile.variants import Variant, language

if TYPE_CHECKING:
    from suites.compile.launches import Launch

# The code that makes figures of machine code: with another one, cached figures are of no use.
READERS: Final = (architectures, figures, machine_code)


class Survey(msgspec.Struct, frozen=True):
    """What a module launches on an architecture, what it has to launch, and what compiles it."""

    variants: tuple[Variant, ...]
    kernels: frozenset[str]
    toolchain: dict[str, str]


def prepare(scratch: str) -> None:
    """Before anything else: an environment in which Triton compiles, as it does by default."""
    for name in list(os.environ):
        if name.startswith("TRITON_"):
            del os.environ[name]
    # The default changes in Triton 3.10; the figures are of this one.
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    os.environ["TRITON_CACHE_DIR"] = scratch


def survey(module: str, architecture: str) -> Survey:
    """What there is to compile. Raises ToolchainMissing."""
    _module("tools").require()
    launched = _launches(module, architecture)
    kernels, toolchain = _backend(module).kernels(module), _backend(module).toolchain()
    return Survey(tuple(launch.variant for launch in launched), kernels, toolchain)


def measure(variants: Sequence[Variant], architecture: str) -> dict[str, Figures | BuildError]:
    """The figures of variants by their keys, from the cache or from their machine code.

    BuildError stands for those that their compiler refuses. Raises ToolchainMissing.
    """
    made: dict[str, Figures | BuildError] = {}
    compiled: dict[Variant, Cubin | Assembly] = {}
    for variant in variants:
        if (cached := _cache(variant, architecture)).is_file():
            made[variant.key] = msgspec.json.decode(cached.read_bytes(), type=Figures)
            continue
        launches = _launches(variant.module, architecture)
        (launch,) = (each for each in launches if each.variant == variant)
        try:
            compiled[variant] = launch.compile()
        except ToolchainMissing:
            raise
        except Exception as error:  # of its own kind for each compiler
            refused = f"{variant.module} {variant.name} for {architecture}: {error!r}"
            made[variant.key] = BuildError(refused)
    figures = _module("tools").read([*compiled.values()], ARCHITECTURES[architecture])
    for variant, each in zip(compiled, figures, strict=True):
        made[variant.key] = each
        _keep(_cache(variant, architecture), msgspec.json.encode(each))
    return made


def _cache(variant: Variant, architecture: str) -> Path:
    """Where figures are kept, in the user's cache directory, by all that they depend on."""
    toolchain = sorted(_backend(variant.module).toolchain().items())
    depends_on = [architecture, variant.key, repr(toolchain), *_readers()]
    digest = sha256("\0".join(depends_on).encode()).hexdigest()[:32]
    return cache_folder().parent / "compiled" / f"{digest}.json"


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(path)


@cache
def _readers() -> tuple[str, ...]:
    return tuple(Path(str(module.__file__)).read_text(encoding="utf-8") for module in READERS)


@cache
def _launches(module: str, architecture: str) -> "tuple[Launch, ...]":
    return tuple(_backend(module).launches(module, ARCHITECTURES[architecture]))


@cache
def _backend(module: str) -> ModuleType:
    return _module(f"{language(module)}_launches")


def _module(name: str) -> ModuleType:
    """One of ours that imports Triton or may be without it. Raises ToolchainMissing."""
    try:
        return import_module(f"suites.compile.{name}")
    except ImportError as error:
        raise ToolchainMissing(f"{error}; install it") from error
