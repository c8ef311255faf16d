"""The files of golden/compiled, and whether compiled kernels are still what these say."""

import json
from pathlib import Path
from typing import Final

import msgspec
import pytest

from suites.compile.figures import Change, CompiledFile, changes
from suites.compile.tables import changes_table

FOLDER: Final = Path(__file__).parents[2] / "golden" / "compiled"
ACCEPT: Final = "python -m pytest suites/compile --accept"
SHOWN: Final = 40  # changes: of another toolchain there may be thousands


def path_of(module: str, folder: Path = FOLDER) -> Path:
    """Where the figures of a module are, which goes by ``<family>/<name>``."""
    return folder / f"{module}.json"


def read(path: Path) -> CompiledFile | None:
    """The accepted figures; None where nothing was accepted yet.

    Raises ValueError, in one line, for a file that does not hold figures.
    """
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=CompiledFile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}; write it again with `{ACCEPT}`") from None


def write(path: Path, file: CompiledFile) -> None:
    """Accept figures: canonical JSON, a line a compiled kernel, so that a change is a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(file), encoding="utf-8")


def text_of(file: CompiledFile) -> str:
    """The canonical text. Variants are sorted; architectures keep their order."""
    lines = ["{", f'  "toolchain": {json.dumps(file.toolchain, sort_keys=True)},']
    blocks = []
    for variant, by_architecture in sorted(file.variants.items()):
        figures = [
            f"      {json.dumps(name)}: {json.dumps(msgspec.to_builtins(figures))}"
            for name, figures in by_architecture.items()
        ]
        blocks.append(f"    {json.dumps(variant)}: {{\n" + ",\n".join(figures) + "\n    }")
    return "\n".join([*lines, '  "variants": {', ",\n".join(blocks), "  }", "}"]) + "\n"


def compare(path: Path, made: CompiledFile) -> str:
    """What there is to report of figures that another toolchain made; nothing if they agree.

    With the toolchain of the accepted figures, others fail the test, with a table of both.
    """
    accepted = read(path)
    if accepted is None:
        pytest.fail(f"{path.name}: no figures yet; write them with `{ACCEPT}`", pytrace=False)
    changed = list(changes(accepted.variants, made.variants))
    if not changed:
        return ""
    if accepted.toolchain == made.toolchain:
        pytest.fail(
            f"{len(changed):,} figures are not the accepted ones; if they are meant to be, "
            f"`{ACCEPT}`\n{_shown(changed)}",
            pytrace=False,
        )
    before, after = (versions(each.toolchain) for each in (accepted, made))
    return f"{len(changed):,} figures differ with {after} from those with {before}\n" + _shown(
        changed
    )


def versions(toolchain: dict[str, str]) -> str:
    """A toolchain in one line."""
    return ", ".join(f"{name} {version}" for name, version in sorted(toolchain.items()))


def _shown(changed: list[Change]) -> str:
    table = changes_table(changed[:SHOWN])
    if (more := len(changed) - SHOWN) <= 0:
        return table
    return f"{table}\nand {more:,} more: `git diff golden/compiled` has them after `{ACCEPT}`"
