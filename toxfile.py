"""A tox plug-in: environments that name one ``env_dir`` use one folder, installed once.

tox writes the environment's name into its folder and empties the folder when another name comes.
The guard is against two environments that want different packages, which tox still notices: it
compares the interpreter, the requirements and the constraints as well. Here the name alone is not
a reason, for torch and triton weigh more than a gigabyte. Turns are taken: ``tox -p`` would
install into the folder twice at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tox.plugin import impl
from tox.tox_env.api import ToxEnv
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner
from tox.tox_env.register import ToxEnvRegister


class FolderInfo(Info):
    """What tox remembers about a folder, whichever environment asks."""

    @contextmanager
    def compare(
        self, value: Any, section: str, sub_section: str | None = None
    ) -> Iterator[tuple[bool, Any]]:
        if section == ToxEnv.__name__:
            value = {**value, "name": self._path.parent.name}
        with super().compare(value, section, sub_section) as outcome:
            yield outcome


class SharedFolder(VirtualEnvRunner):
    """``runner = shared-folder``: a virtual environment known by its folder, not by its name."""

    @staticmethod
    def id() -> str:
        return "shared-folder"

    @property
    def cache(self) -> Info:
        return FolderInfo(self.env_dir)


@impl
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    register.add_run_env(SharedFolder)
