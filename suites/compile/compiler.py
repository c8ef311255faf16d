"""The pool that compiles: processes of their own, since here kernels are interpreted."""

import os
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Final

from kernels.cuda.toolchain import BuildError, ToolchainMissing
from suites.compile import worker
from suites.compile.architectures import ARCHITECTURES
from suites.compile.figures import CompiledFile, Figures
from suites.compile.variants import Variant, modules
from suites.compile.worker import Survey

MOST_PROCESSES: Final = 16  # each has a torch and an LLVM of its own
AT_A_TIME: Final = 10  # variants that a process gets, and disassembles together

Measured = dict[str, Figures | BuildError]


@dataclass(frozen=True)
class Compiled:
    """What is to be compiled for one architecture."""

    variant: Variant
    architecture: str

    def __str__(self) -> str:
        return f"{self.variant.module} {self.variant.name} {self.architecture}"


@dataclass
class Compiler:
    """Finds out what there is to compile, and compiles what it is asked for, once.

    ``missing``: why a module cannot be compiled here.
    """

    missing: dict[str, ToolchainMissing] = field(default_factory=dict)
    _scratch: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)
    _asked: dict[Compiled, Future[Measured]] = field(default_factory=dict)
    _begun: dict[tuple[str, str], Future[Measured]] = field(default_factory=dict)

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        start = get_context("spawn")
        return ProcessPoolExecutor(processes, start, worker.prepare, (self._scratch.name,))

    @cached_property
    def surveys(self) -> dict[str, dict[str, Survey]]:
        """What there is to compile by module and architecture; of a ``missing`` one nothing.

        Modules that export no operation are left out: others launch their kernels.
        """
        asked = {
            module: {name: self._pool.submit(worker.survey, module, name) for name in ARCHITECTURES}
            for module in modules()
        }
        found: dict[str, dict[str, Survey]] = {}
        for module, by_architecture in asked.items():
            try:
                surveys = {name: each.result() for name, each in by_architecture.items()}
            except ToolchainMissing as error:
                self.missing[module] = error
                surveys = {}
            found[module] = {name: each for name, each in surveys.items() if each.variants}
        return {module: each for module, each in found.items() if each or module in self.missing}

    def of(self, module: str) -> list[Compiled]:
        """All that there is to compile of a module."""
        surveys = self.surveys[module]
        return [Compiled(each, name) for name, s in surveys.items() for each in s.variants]

    def toolchain(self, module: str) -> dict[str, str]:
        """The versions of what compiles a module; none where that is missing."""
        return next((survey.toolchain for survey in self.surveys[module].values()), {})

    def begin(self, wanted: Iterable[Compiled]) -> None:
        """Put on the pool what is not there yet, several variants of a module at a time."""
        wanted = list(wanted)
        new = {(each.architecture, each.variant.key): each for each in wanted}
        groups = defaultdict(list)
        for place, each in new.items():
            if place not in self._begun:
                groups[each.variant.module, each.architecture].append(each.variant)
        for (_, architecture), variants in groups.items():
            for start in range(0, len(variants), AT_A_TIME):
                some = variants[start : start + AT_A_TIME]
                task = self._pool.submit(worker.measure, some, architecture)
                self._begun |= {(architecture, variant.key): task for variant in some}
        for each in wanted:
            self._asked[each] = self._begun[each.architecture, each.variant.key]

    def figures(self, wanted: Compiled) -> Figures:
        """Wait for a variant. Raises ToolchainMissing and BuildError."""
        self.begin([wanted])
        try:
            figures = self._asked[wanted].result()[wanted.variant.key]
        except ToolchainMissing as error:
            self.missing[wanted.variant.module] = error
            raise
        if isinstance(figures, BuildError):
            raise figures
        return figures

    def file(self, module: str) -> CompiledFile:
        """Wait for all of a module. Raises ToolchainMissing and BuildError."""
        variants: dict[str, dict[str, Figures]] = {}
        self.begin(self.of(module))
        for each in self.of(module):
            variants.setdefault(each.variant.name, {})[each.architecture] = self.figures(each)
        return CompiledFile(self.toolchain(module), variants)

    @property
    def compiled(self) -> dict[Compiled, Figures]:
        """Every variant that was asked for and became machine code."""
        found = {}
        for each, task in self._asked.items():
            if task.done() and not task.cancelled() and task.exception() is None:
                figures = task.result()[each.variant.key]
                if isinstance(figures, Figures):
                    found[each] = figures
        return found

    def close(self) -> None:
        if "_pool" in self.__dict__:
            self._pool.shutdown(cancel_futures=True)
        self._scratch.cleanup()
