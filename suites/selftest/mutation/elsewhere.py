"""A function called in a process of its own: what runs pytest, or starts processes that stay."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from suites.mutation.honest.together import Tally
from suites.selftest.whole_runs import ROOT

CALL: Final = """\
import sys
from importlib import import_module
from pathlib import Path

import msgspec

module, name, arguments = msgspec.json.decode(sys.argv[1])
found = getattr(import_module(module), name)(*arguments)
Path(sys.argv[2]).write_bytes(msgspec.json.encode(found))
"""


def elsewhere(
    folder: Path, function: Callable[..., dict[str, Tally]], *arguments: object
) -> dict[str, Tally]:
    """What a function of a module returns for arguments that JSON has.

    Raises RuntimeError with the last line that it said, where it ends otherwise.
    """
    called = msgspec.json.encode((function.__module__, function.__name__, arguments)).decode()
    result = folder / "result.json"
    process = subprocess.run(
        [sys.executable, "-c", CALL, called, str(result)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if process.returncode:
        raise RuntimeError(process.stderr.strip().rpartition("\n")[2])
    return msgspec.json.decode(result.read_bytes(), type=dict[str, Tally])
