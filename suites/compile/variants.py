"""Which kernels there are to compile, in words that cross from one process to another."""

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
LANGUAGES: Final = ("triton", "cuda")


class Variant(msgspec.Struct, frozen=True):
    """A kernel of a module as one call of an operation, the first of its kind, launches it.

    ``dtype`` and ``rows`` are the call's (`suites.compile.calls.Call`), ``label`` describes it.
    Variants of one ``key`` become the same machine code.
    """

    module: str
    kernel: str
    operation: str
    dtype: str
    rows: str
    label: str
    key: str

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.label}"


def modules() -> list[str]:
    """The modules that may have kernels which become machine code, as ``<family>/<name>``."""
    folder = ROOT / "kernels"
    found = [path for kind in LANGUAGES for path in folder.glob(f"*/{kind}_*.py")]
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in found)


def importable(module: str) -> str:
    """The name by which a module is imported, and given to ``--impl``."""
    return f"kernels.{module.replace('/', '.')}"


def language(module: str) -> str:
    """One of `LANGUAGES`, by which the name of a module begins."""
    return module.partition("/")[2].partition("_")[0]
