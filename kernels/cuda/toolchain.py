"""What a launch needs beyond torch: where builds are kept, and the ways in which one can fail."""

import os
import re
from pathlib import Path


class ToolchainMissing(RuntimeError):  # noqa: N818 - a fact about the machine
    """This machine cannot build a kernel. One line: what is missing, and what to install."""


class BuildError(RuntimeError):
    """A compiler refused a kernel: its first error, in one line; all it said is ``__cause__``'s."""


class LaunchFault(RuntimeError):  # noqa: N818 - a verdict on the kernel
    """A kernel on the host did what CUDA leaves undefined. One line: which kernel, what, where."""


def cache_folder() -> Path:
    """Where builds are kept: the user's cache directory, ``XDG_CACHE_HOME`` if that is set."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sparse-conformance" / "cuda"


def text_of(source: Path) -> str:
    """A .cu file's text, which is all that is built, and what a build is known by.

    Raises BuildError when it includes a file that is not CUDA's.
    """
    text = source.read_text(encoding="utf-8")
    if own := re.search(r'^[ \t]*#[ \t]*include[ \t]*(".*")', text, re.MULTILINE):
        raise BuildError(
            f"{source.name}: it includes {own[1]}, whose changes no build would see; "
            "a .cu file stands alone, with CUDA's own headers in angle brackets"
        )
    return text
