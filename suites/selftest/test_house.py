"""The rules of the house, read from the source of every file.

A rule takes the root of a tree and returns its violations, a line each. Every rule is shown a
tree that breaks it.
"""

import ast
import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("golden", "oracles", "kernels", "suites", "reports")

Rule = Callable[[Path], list[str]]


def sources(root: Path, *packages: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every file of the packages that exist, with its tree."""
    for package in packages:
        for file in sorted((root / package).rglob("*.py")):
            yield file.relative_to(root), ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the full name of every module that a file imports, at any depth."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, level=level):
                above = file.parent.parts[: len(file.parent.parts) - level + 1] if level else ()
                yield node.lineno, ".".join([*above, *([module] if module else [])])
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def layering(package: str, allowed: set[str]) -> Rule:
    """A package imports, of ours, only the packages that are allowed."""

    def rule(root: Path) -> list[str]:
        return [
            f"{file}:{line} imports {name}: {package}/ may import only {sorted(allowed)} of ours"
            for file, tree in sources(root, package)
            for line, name in imports(file, tree)
            if name.split(".")[0] in set(PACKAGES) - allowed
        ]

    return rule


def suites_leave_reports_alone(root: Path) -> list[str]:
    """A record is all that the two have in common; only the tests of the reports import them.

    But for the rule for speed and what it returns: it says which benchmarks are to be confirmed,
    which the benchmark tier has to know while it has both trees at hand.
    """
    return [
        f"{file}:{line} imports {name}: reports/ reads the record of a run, and a run needs no page"
        for file, tree in sources(root, "suites")
        for line, name in imports(file, tree)
        if name.split(".")[0] == "reports"
        and file.parts[1] != "selftest"
        and not (file.parts[1] == "bench" and name in ("reports.speed", "reports.model"))
    ]


def oracles_need_only_the_standard_library(root: Path) -> list[str]:
    return [
        f"{file}:{line} imports {name}: oracles/ may import only the standard library and itself"
        for file, tree in sources(root, "oracles")
        for line, name in imports(file, tree)
        if name.split(".")[0] not in sys.stdlib_module_names | {"oracles"}
    ]


def oracles_load_only_the_standard_library(root: Path) -> list[str]:
    """The same, as a fresh interpreter without site-packages sees it after importing them all."""
    modules = [
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file, _ in sources(root, "oracles")
    ]
    program = (
        "import importlib, sys\n"
        "root, *modules = sys.argv[1:]\n"
        "sys.path.insert(0, root)\n"
        "for module in modules: importlib.import_module(module)\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print(*sorted(loaded - sys.stdlib_module_names - {'__main__', 'oracles'}))\n"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", program, str(root), *modules]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        return [f"oracles/ does not import on its own: {run.stderr.strip().splitlines()[-1]}"]
    return [f"importing oracles/ loads {name}, not standard library" for name in run.stdout.split()]


class Anonymous(ast.NodeTransformer):
    """Numbers a function's own names in order of appearance; drops annotations and docstrings."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.numbers: dict[str, str] = {}

    def rename(self, name: str) -> str:
        return self.numbers.setdefault(name, f"_{len(self.numbers)}") if name in self.own else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.rename(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self.rename(node.arg))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.generic_visit(ast.Assign([node.target], node.value))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else self.generic_visit(node)


def shape(function: ast.FunctionDef) -> str:
    """A function's parameters and body, whatever its names, annotations and docstring."""
    function = copy.deepcopy(function)
    own = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    own |= {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    anonymous = Anonymous(own)
    parts = [anonymous.visit(function.args), *map(anonymous.visit, function.body)]
    return "\n".join(ast.dump(part) for part in parts if part is not None)


def long_functions(root: Path, package: str) -> Iterator[tuple[str, str]]:
    """Where each function of more than two statements is, and its shape."""
    for file, tree in sources(root, package):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                where = f"{file}:{node.lineno} {node.name}"
                statements = [step for step in ast.walk(node) if isinstance(step, ast.stmt)]
                docstring = ast.get_docstring(node) is not None
                if len(statements) - 1 - docstring > 2:
                    yield where, shape(node)


def oracles_and_kernels_share_no_code(root: Path) -> list[str]:
    oracles = {shape: where for where, shape in long_functions(root, "oracles")}
    return [
        f"{where} has the body of {oracles[shape]}: an oracle shares no code with a kernel"
        for where, shape in long_functions(root, "kernels")
        if shape in oracles
    ]


def triton_kernels_are_launched_where_their_tensors_are(root: Path) -> list[str]:
    """Triton launches on the current device, which need not be theirs."""
    problems = []
    for file, tree in sources(root, "kernels"):
        launches = [
            call for call in ast.walk(tree) if isinstance(call, ast.Call) and _launches_triton(call)
        ]
        guarded = {
            call
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and "on_device_of(" in ast.unparse(block.items[0])
            for call in ast.walk(block)
        }
        problems += [
            f"{file}:{launch.lineno}: launch it within `with on_device_of(tensor):`"
            for launch in launches
            if launch not in guarded
        ]
    return problems


def _launches_triton(node: ast.AST) -> bool:
    """Whether it is ``some_kernel[grid](...)``."""
    match node:
        case ast.Call(func=ast.Subscript(value=ast.Name(name))):
            return name.endswith("_kernel")
    return False


def no_module_is_named_utils(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: name the module after what it does"
        for package in PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.name in ("utils", "utils.py")
    ]


def conftest_hands_over_the_plugin_and_nothing_else(root: Path) -> list[str]:
    file = root / "conftest.py"
    if not file.exists():
        return ["conftest.py is missing: pytest would not load the plug-in"]
    match ast.parse(file.read_text(encoding="utf-8")).body:
        case [
            ast.Expr(ast.Constant(str())),
            ast.Assign([ast.Name("pytest_plugins")], ast.List([ast.Constant("suites.plugin")])),
        ]:
            return []
    return ['conftest.py may hold only its docstring and pytest_plugins = ["suites.plugin"]']


RULES: dict[str, Rule] = {
    "golden imports nothing of ours": layering("golden", {"golden"}),
    "oracles import nothing of ours": layering("oracles", {"oracles"}),
    # It may take types from oracles; today it needs none.
    "kernels import nothing of ours": layering("kernels", {"kernels"}),
    "reports import golden": layering("reports", {"reports", "golden"}),
    "suites leave reports alone": suites_leave_reports_alone,
    "oracles need only the standard library": oracles_need_only_the_standard_library,
    "oracles load only the standard library": oracles_load_only_the_standard_library,
    "oracles and kernels share no code": oracles_and_kernels_share_no_code,
    "triton runs where its tensors are": triton_kernels_are_launched_where_their_tensors_are,
    "no module is named utils": no_module_is_named_utils,
    "conftest hands over the plug-in": conftest_hands_over_the_plugin_and_nothing_else,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(rule: str) -> None:
    assert RULES[rule](ROOT) == []


def test_the_rules_read_the_house() -> None:
    """Else a rule could hold for want of a file."""
    read = {file.as_posix() for file, _ in sources(ROOT, *PACKAGES)}
    assert {"golden/model.py", "oracles/witness.py", "kernels/api.py"} <= read
    assert list(long_functions(ROOT, "oracles"))
    assert list(long_functions(ROOT, "kernels"))
    trees = [tree for _, tree in sources(ROOT, "kernels")]
    assert any(_launches_triton(node) for tree in trees for node in ast.walk(tree))


# --- every rule is shown a tree that breaks it ---------------------------------------------------

ORACLE = '''"""An oracle."""

import math

from oracles import other


def closest(values: list[int], wanted: int) -> int:
    """The value nearest to the wanted one."""
    best = values[0]
    for value in values:
        if abs(value - wanted) < abs(best - wanted):
            best = value
    return best


def double(value: int) -> int:
    twice = value + value
    return twice
'''
COPY = """import torch

from oracles.types import Array


def pick(items, goal):
    nearest = items[0]
    for item in items:
        if abs(item - goal) < abs(nearest - goal):
            nearest = item
    return nearest
"""
SOUND = {
    "conftest.py": '"""Hands pytest the plug-in."""\n\npytest_plugins = ["suites.plugin"]\n',
    "golden/model.py": "import msgspec\n\nfrom golden import other\n",
    "oracles/__init__.py": "",
    "oracles/math_of_it.py": ORACLE,
    "oracles/other.py": "from . import third\n",
    "oracles/third.py": "import fractions\n",
    "kernels/torch_reference.py": """import importlib

import torch

from kernels import api


def load(name):
    module = importlib.import_module(name)
    return module


def double(value):
    twice = value + value
    return twice


def closest(values, wanted):
    distances = [abs(value - wanted) for value in values]
    nearest = min(distances)
    return values[distances.index(nearest)]
""",
    "suites/plugin.py": "import pytest\n\nfrom kernels import api\nfrom oracles import other\n",
    "suites/selftest/test_pages.py": "from reports import pages\n",
    "suites/bench/pairs.py": "from reports.model import Timing\nfrom reports.speed import judge\n",
    "reports/pages.py": "import jinja2\n\nfrom golden import model\nfrom reports import other\n",
}


def build(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_tree_passes(rule: str, tmp_path: Path) -> None:
    assert RULES[rule](build(tmp_path, SOUND)) == []


@pytest.mark.parametrize(
    ("rule", "file", "text", "complaint"),
    [
        ("golden imports nothing of ours", "golden/a.py", "import oracles.witness", "a.py:1"),
        ("golden imports nothing of ours", "golden/a.py", "from kernels import api", "kernels"),
        ("golden imports nothing of ours", "golden/a.py", "def f():\n  import suites", "a.py:2"),
        ("golden imports nothing of ours", "golden/a.py", "from reports import b", "reports"),
        ("oracles import nothing of ours", "oracles/a.py", "import kernels", "kernels"),
        ("oracles import nothing of ours", "oracles/b/a.py", "from ...golden import c", "golden"),
        ("kernels import nothing of ours", "kernels/a/b.py", "from suites import c", "b.py:1"),
        ("kernels import nothing of ours", "kernels/a.py", "import golden.model", "golden"),
        ("kernels import nothing of ours", "kernels/a.py", "import reports", "reports"),
        ("kernels import nothing of ours", "kernels/a.py", "from oracles import c", "oracles"),
        ("reports import golden", "reports/a.py", "from suites.verdicts import c", "suites"),
        ("reports import golden", "reports/a.py", "import kernels", "kernels"),
        ("reports import golden", "reports/a.py", "import oracles", "oracles"),
        ("suites leave reports alone", "suites/a.py", "import reports.model", "a.py:1"),
        ("suites leave reports alone", "suites/a/b.py", "from reports.speed import c", "b.py:1"),
        ("suites leave reports alone", "suites/bench/a.py", "from reports import c", "a.py:1"),
        ("suites leave reports alone", "suites/bench/a.py", "import reports.pages", "pages"),
        ("oracles need only the standard library", "oracles/a.py", "import numpy as n", "numpy"),
        ("oracles need only the standard library", "oracles/a.py", "from torch.nn import b", "nn"),
        (
            "oracles need only the standard library",
            "oracles/a.py",
            "try:\n    import torch\nexcept ImportError:\n    pass",
            "a.py:2",
        ),
        (
            "oracles need only the standard library",
            "oracles/a.py",
            "def f():\n    from importlib import import_module\n    import_module('torch')",
            "a.py:3",
        ),
        (
            "oracles need only the standard library",
            "oracles/a.py",
            "import importlib\nimportlib.import_module('torch')",
            "a.py:2",
        ),
        ("oracles need only the standard library", "oracles/a.py", "__import__('a')", "a.py:1"),
        (
            "oracles load only the standard library",
            "oracles/a.py",
            "import importlib\nimportlib.import_module('gol' + 'den')",
            "loads golden",
        ),
        ("oracles load only the standard library", "oracles/b/a.py", "import pytest", "on its own"),
        ("oracles and kernels share no code", "kernels/a.py", COPY, "a.py:6 pick"),
        ("triton runs where its tensors are", "kernels/a.py", "a_kernel[(1,)](b, 2)", "a.py:1"),
        (
            "triton runs where its tensors are",
            "kernels/a.py",
            "with on_device_of(b):\n    a_kernel[c](b)\nwith open(b):\n    a_kernel[c](b)",
            "a.py:4",
        ),
        ("no module is named utils", "kernels/utils.py", "", "utils.py"),
        ("no module is named utils", "suites/utils/a.py", "", "utils"),
        ("conftest hands over the plug-in", "conftest.py", "", "may hold only"),
        (
            "conftest hands over the plug-in",
            "conftest.py",
            SOUND["conftest.py"] + "import pytest\n",
            "may hold only",
        ),
        (
            "conftest hands over the plug-in",
            "conftest.py",
            '"""A."""\npytest_plugins = ["suites.plugin", "other"]\n',
            "may hold only",
        ),
    ],
)
def test_a_broken_rule_is_named(
    rule: str, file: str, text: str, complaint: str, tmp_path: Path
) -> None:
    violations = RULES[rule](build(tmp_path, SOUND | {file: text}))
    assert len(violations) == 1
    assert complaint in violations[0]


def test_a_missing_conftest_is_named(tmp_path: Path) -> None:
    assert conftest_hands_over_the_plugin_and_nothing_else(tmp_path) == [
        "conftest.py is missing: pytest would not load the plug-in"
    ]
