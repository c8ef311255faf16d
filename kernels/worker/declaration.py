"""An implementation that a TOML file declares: ``--impl toml:FILE``."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import msgspec

from kernels.worker import serve
from kernels.worker.protocol import VERSION, Capability, Dot, Hello
from kernels.worker.supervision import Worker, WorkerUnusable

ROOT: Final = Path(__file__).parents[2]

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.]+$")]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Divisor = Annotated[int, msgspec.Meta(ge=1)]
# What a call may be asked to have a multiple of: parameters, and dims of its tensors.
Extent = Literal[
    "block_size",
    "chunk_size",
    "head_dim",
    "k_len",
    "q_len",
    "reshaped_block_size",
    "segment_size",
    "stride",
]

# What each key of the file takes, for people.
KEYS: Final[Mapping[str, str]] = {
    "name": "letters, digits, _ and . under which it appears in the record",
    "import": 'the module to import in a worker, "package.module"',
    "command": 'in place of import: a program that speaks the protocol, ["./worker", "argument"]',
    "python": 'the interpreter that imports the module, ".venv/bin/python"; by default this one',
    "device": 'the torch device that calls are carried out on, "cuda:0"; by default --device',
    "path": 'folders to put on the import path before all others, ["src"]',
    "environment": 'variables to set, {CUDA_VISIBLE_DEVICES = "1"}',
    "exponent_base": "2, when the interface of the statistics is in that base; else leave it out",
    "dot": '"ieee" or "tf32", how it multiplies fp32',
    "multiples": f"what a size must be a multiple of, by its name: {', '.join(get_args(Extent))}",
    "lacks": f"a list of what it refuses: operations, {', '.join(get_args(Capability))}",
    "deviations": "the file of its declared deviations",
    "time_limit": "seconds a call may take, more than 0; by default 20",
}


class DeclarationError(ValueError):
    """One line: which file, which key, and what is allowed."""


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is. Paths in it are relative to its folder (`Declared.folder`)."""

    name: Name
    import_: Text = msgspec.field(name="import", default="")
    command: tuple[Text, ...] = ()
    python: Text = sys.executable
    device: str = ""
    path: tuple[Text, ...] = ()
    environment: dict[str, str] = {}
    exponent_base: Literal[2] | None = None
    dot: Dot | None = None
    multiples: dict[Extent, Divisor] = {}
    lacks: tuple[str, ...] = ()
    deviations: str = ""
    time_limit: Seconds = 20.0


def read(file: Path, operations: Mapping[str, tuple[str, ...]]) -> Declaration:
    """The declaration in a file. Raises DeclarationError."""
    try:
        declaration = msgspec.toml.decode(file.read_bytes(), type=Declaration)
    except OSError as error:
        raise DeclarationError(f"{file}: cannot be read, {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise DeclarationError(f"{file}: {_allowed(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{file}: {error}; it is no TOML") from None
    if bool(declaration.import_) == bool(declaration.command):
        raise DeclarationError(
            f"{file}: it needs `import` or `command`, and not both; "
            f"`import` is {KEYS['import']}; `command`, {KEYS['command']}"
        )
    for lack in declaration.lacks:
        if lack not in (*operations, *get_args(Capability)):
            raise DeclarationError(f"{file}: `lacks` has {lack!r}; it is {KEYS['lacks']}")
    return declaration


def start(
    declaration: Declaration,
    folder: Path,
    device: str,
    operations: Mapping[str, tuple[str, ...]],
    logs: Path | None,
) -> Worker:
    """The worker of a declaration whose file is in that folder. Raises WorkerUnusable.

    ``device``: unless the file has another. ``logs``: the folder for what it writes to stderr.
    """
    device = declaration.device or device
    if declaration.import_:
        path = [str(folder / each) for each in map(os.path.expanduser, declaration.path)]
        command = [declaration.python, serve.__file__, declaration.import_, *path]
    else:
        command = [*declaration.command]
    command[0] = _program(command[0], folder)
    return Worker(
        command,
        _environment(device) | declaration.environment,
        folder,
        Hello(VERSION, device, {**operations}),
        declaration.time_limit,
        logs and logs / f"{declaration.name}.log",
    )


def _allowed(mistake: str) -> str:
    """What msgspec says of a mistake, and what is allowed in its place."""
    text = mistake.partition(" - at ")[0]
    key = re.search(r"`\$\.(\w+)", mistake)
    if key is not None and key[1] in KEYS:
        return f"{text} in `{key[1]}`; it is {KEYS[key[1]]}"
    return f"{text}; the keys are {', '.join(KEYS)}"


def _program(name: str, folder: Path) -> str:
    """The program of that name on the PATH, or at that path. Raises WorkerUnusable."""
    expanded = os.path.expanduser(name)
    found = shutil.which(str(folder / expanded) if "/" in expanded else expanded)
    if found is None:
        raise WorkerUnusable(
            f"{name} is no program, in {folder} or on the PATH; "
            "give its path relative to the TOML file, or an absolute one"
        )
    return os.path.abspath(found)


def _environment(device: str) -> dict[str, str]:
    """The variables of a worker: ours, but without this checkout on any path."""
    environment = dict(os.environ)
    path = environment.pop("PYTHONPATH", "").split(os.pathsep)
    ours = [folder for folder in path if folder and Path(folder).resolve() != ROOT]
    if ours:
        environment["PYTHONPATH"] = os.pathsep.join(ours)
    environment["TRITON_INTERPRET"] = "1" if device.startswith("cpu") else "0"
    return environment
