"""Puts a mutant in the place of the kernel that it was made from, within this process alone."""

import linecache
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

import torch

from kernels import catalog
from suites.mutation.edits import KERNELS
from suites.mutation.mutants import Mutant

FAMILIES: Final = ("kernels.witness", "kernels.xattention")


class Stillborn(Exception):  # noqa: N818 - a fact about a mutant
    """A mutant that no compiler accepts, or that cannot be imported: no suite has to find it."""


def install(mutant: Mutant, folder: Path) -> catalog.Implementation:
    """The mutant's implementation, all of it loaded anew. ``folder``: for what is to be built.

    Raises Stillborn.
    """
    for name in [name for name in sys.modules if name.startswith(FAMILIES)]:
        del sys.modules[name]
    try:
        if not mutant.file.endswith(".cu"):
            _import(mutant)
            return catalog.load(mutant.implementation)
        implementation = catalog.load(mutant.implementation)
        copy = folder / Path(mutant.file).name
        copy.write_text(mutant.text, encoding="utf-8")
        for module in implementation.sources:
            if module.source == KERNELS / mutant.file:
                module.source = copy
                module.built_for(torch.device("cpu"))
    except Exception as error:  # whatever importing it, or compiling it, comes to
        raise Stillborn(str(error)) from error
    return implementation


def _import(mutant: Mutant) -> None:
    """Import the mutated module, from a text that inspect reads too: Triton asks it for source."""
    path = KERNELS / mutant.file
    package = import_module(f"kernels.{path.parent.name}")
    name, text = f"{package.__name__}.{path.stem}", mutant.text
    # Without a time of modification the entry is not held to what is on the disk.
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    exec(compile(text, path, "exec", dont_inherit=True), vars(module))
    setattr(package, path.stem, module)
