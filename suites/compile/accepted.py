"""Whether compiled kernels are what they were."""

from pathlib import Path

import pytest

from suites.compile.figures import ACCEPT, CompiledFile, changes, read
from suites.compile.tables import changes_table


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
    table = changes_table(changed)
    if accepted.toolchain == made.toolchain:
        pytest.fail(
            f"{len(changed)} figures are not the accepted ones; if they are meant to be, "
            f"`{ACCEPT}`\n{table}",
            pytrace=False,
        )
    before, after = (_versions(each.toolchain) for each in (accepted, made))
    return f"{len(changed)} figures differ with {after} from those with {before}\n{table}"


def _versions(toolchain: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(toolchain.items()))
