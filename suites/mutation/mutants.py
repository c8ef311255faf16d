"""The mutants of every implementation: what each one is called, changes, and makes wrong.

Most are made by rule. Others a person made: the bugs of `bug_classes.toml`, and those that
`closure.toml` makes where no rule makes one that a contract alone can find.
"""

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from golden.model import Operation
from kernels import catalog
from suites.cases import SPECIFICATIONS
from suites.mutation import bug_classes, closure, cuda_edits, python_edits
from suites.mutation.edits import Edit, changed, chosen, numbered, text_of

# Whose tests a file's mutants are for. What several implementations share is for one of them.
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": (
        "witness/torch_reference.py",
        "xattention/torch_reference.py",
        "xattention/refusals.py",
    ),
    "triton": (
        "witness/triton_fused.py",
        "xattention/triton_three_stage.py",
        "xattention/triton_selection.py",
        "xattention/triton_tiles.py",
    ),
    "triton_streaming": ("xattention/triton_streaming.py",),
    "cuda": (
        "witness/cuda_fused.py",
        "witness/cuda_fused.cu",
        "xattention/cuda_three_stage.py",
        "xattention/cuda_three_stage.cu",
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One edit of one file in `kernels`, tested by the tests of one implementation.

    ``operations``: those that call what the edit is in, and may therefore be wrong.
    """

    implementation: str
    file: str
    edit: Edit
    operations: frozenset[Operation]

    @property
    def name(self) -> str:
        return f"{self.file}:{self.edit.function}:{self.edit.rule}:{self.edit.number}"

    @property
    def text(self) -> str:
        """All of the file, mutated."""
        return self.edit.applied(text_of(self.file))

    @property
    def diff(self) -> tuple[str, ...]:
        """The lines that go, with ``-`` before them, and the ones that come, with ``+``."""
        before, after = text_of(self.file).splitlines(), self.text.splitlines()
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        return tuple(line[0] + line[1:].strip() for line in lines if line[0] in "-+")


@cache
def mutants() -> tuple[Mutant, ...]:
    """All of them, an implementation after the other."""
    by_rule = (mutant for implementation in FILES for mutant in _by_rule(implementation))
    return (*by_rule, *_by_hand())


def _by_rule(implementation: str) -> Iterator[Mutant]:
    callers = _callers(implementation)
    for file in FILES[implementation]:
        text = text_of(file)
        rules = cuda_edits if file.endswith(".cu") else python_edits
        for edit in chosen(numbered(rules.edits(text)), text):
            if operations := callers.get(edit.function):
                yield Mutant(implementation, file, edit, operations)


def _by_hand() -> Iterator[Mutant]:
    """Changes of the reference: of what a person made, the name has the place of the function."""
    callers = _callers(closure.FOR)
    planted = [("planted", e.name, e.file, e.changes) for e in bug_classes.load().planted]
    made = [("made", e.name, e.file, e.changes) for e in closure.load().made]
    for rule, name, file, changes in (*planted, *made):
        text, mutated = text_of(file), changed(name, file, changes)
        before, after = _functions_in(text), _functions_in(mutated)
        touched = [each for each in before if before[each] != after.get(each)]
        operations = [callers[each] for each in touched or before if each in callers]
        edit = Edit(re.sub(r"\W+", "-", name), rule, 0, len(text), mutated, 1)
        yield Mutant(closure.FOR, file, edit, frozenset().union(*operations))


def _callers(implementation: str) -> dict[str, frozenset[Operation]]:
    """By the name of a function, in any of the implementation's files, the operations it serves.

    A function that names another may call it. Names of several files are taken for one function,
    which finds an operation too many now and then and none too few.
    """
    bodies: dict[str, str] = {}
    for file in {f for files in FILES.values() for f in files if _serves(f, implementation)}:
        for name, body in _functions(file).items():
            bodies[name] = f"{bodies.get(name, '')}\n{body}"
    named = {name: set(re.findall(r"\w+", body)) & bodies.keys() for name, body in bodies.items()}
    callers: dict[str, frozenset[Operation]] = {}
    for operation in [each for each in SPECIFICATIONS if each in bodies]:
        ahead: list[str] = [operation]
        reached = {*ahead}
        while ahead:
            news = named.get(ahead.pop(), set()) - reached
            reached |= news
            ahead += news
        for name in reached:
            callers[name] = callers.get(name, frozenset()) | {operation}
    return callers


def _serves(file: str, implementation: str) -> bool:
    """Whether a file is the implementation's own, or shared by several."""
    modules = {module.rpartition(".")[2] for module in catalog.BUILT_IN[implementation]}
    every = {module.rpartition(".")[2] for each in catalog.BUILT_IN.values() for module in each}
    stem = Path(file).stem
    return stem in modules or stem not in every


def _functions(file: str) -> dict[str, str]:
    text = text_of(file)
    if file.endswith(".cu"):
        return cuda_edits.functions(text)
    return _functions_in(text)


def _functions_in(text: str) -> dict[str, str]:
    return {
        node.name: ast.get_source_segment(text, node) or ""
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }
