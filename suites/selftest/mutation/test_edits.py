"""The rules: what each makes of a line, what none touches, and which edits are chosen."""

import ast
import re
from textwrap import dedent, indent

import pytest

from suites.mutation import cuda_edits, python_edits
from suites.mutation.edits import Edit, chosen, numbered, text_of
from suites.mutation.mutants import FILES, mutants

PYTHON = {
    "relational": ("x = a < b", ["x = (a <= b)"]),
    "order": (
        "x = a[0] > b[0]\ny = c.sort(descending=True)",
        ["x = (b[0] > a[0])", "y = c.sort(descending=False)"],
    ),
    "and-or": ("x = a & b\ny = a or b", ["x = (a | b)", "y = (a and b)"]),
    "clause": ("x = f(a, ~b)\ny = a and b", ["x = f(a, b)", "y = (b)", "y = (a)"]),
    "refusal": ("if a:\n    raise ValueError(b)", ["if a and False:"]),
    "branch": ("if a:\n    b()", ["if not a:"]),
    "one-off": (
        "x = a - 1\ny = a >= 0\nz = b & 63",
        ["x = a", "y = (a >= 1)", "z = (b & 31)"],
    ),
    "sign": ("x = -1", ["x = 0", "x = 1"]),
    "rounding": ("x = a // b\ny = f.cdiv(a, b)", ["x = ((a + b - 1) // b)", "y = (a // b)"]),
    "extremum": (
        "x = min(a, b)\ny = a.amax(-1)\nz = a.clamp(min=1)",
        ["x = max(a, b)", "y = a.amin(-1)", "z = a.clamp(max=1)"],
    ),
    "limit": ("x = min(a, b, c)", ["x = min(b, c)", "x = min(a, c)", "x = min(a, b)"]),
    "term": (
        "x = a - (b + c)\ny += z",
        ["x = a", "x = (a + (b + c))", "x = a - (c)", "x = a - (b)", "x = a - ((b - c))", "y -= z"],
    ),
    "factor": ("x = a * scale", ["x = a", "x = scale", "x = (a * scale * scale)"]),
    "modulus": ("x = a % b", ["x = (a // b)"]),
    "width": ("x = a.to(tl.int64)", ["x = a.to(tl.int32)"]),
    "precision": ("x = f(tl.float32)", ["x = f(tl.float16)"]),
    "sentinel": ("x = -math.inf\ny = float('-inf')", ["x = -1.0e6"]),
    "exponential": ("x = (a - b).exp()", ["x = (a - b).exp2()"]),
    "mask": ("x = tl.load(a, mask=b, other=0)", ["x = tl.load(a)"]),
    "other": ("x = tl.load(a, mask=b, other=0)", ["x = tl.load(a, mask=b, other=1)"]),
    "where": (
        "x = tl.where(a, b, c)\ny = b.where(a, 0)",
        ["x = b", "x = c", "y = b"],
    ),
    "stride": (
        "x = a * strides[2]\ny = a.stride(0)\nf(row_stride, slot_stride)",
        ["x = a * strides[3]", "y = a.stride(1)", "f(slot_stride, row_stride)"],
    ),
    "axis": ("x = tl.sum(a, 1)\ny = a.sum(-1)", ["x = tl.sum(a, 0)", "y = a.sum(-2)"]),
    "program": ("x = tl.program_id(0)", ["x = tl.program_id(1)"]),
    "statement": ("tl.store(a, b)\nx += a\ny[0] = a", ["pass", "pass", "pass"]),
    "tail": (
        "for x in range(0, a, b):\n    f(x)",
        ["for x in range(0, a - (b - 1), b):", "    break"],
    ),
    "break": ("for x in a:\n    break", ["    pass"]),
}


def mutated(body: str, rule: str) -> list[str]:
    """The line that each edit of a rule brings into a function of that body."""
    text = f"def f():\n{indent(body, '    ')}\n"
    before = text.splitlines()
    found = []
    for edit in python_edits.edits(text):
        if edit.rule == rule:
            after = edit.applied(text)
            ast.parse(after)
            found += [line for line in dedent(after).splitlines() if line not in before]
    return [line.removeprefix("    ") for line in found]


@pytest.mark.parametrize("rule", python_edits.RULES)
def test_what_a_rule_makes_of_python(rule: str) -> None:
    body, expected = PYTHON[rule]
    assert sorted(mutated(body, rule)) == sorted(expected)


def test_what_is_said_and_what_is_declared_stays() -> None:
    text = dedent('''
        LIMIT = 1 + 2
        @decorated(a < b)
        def f(a: int = 1 + 2) -> x[3 < 4]:
            """a < b"""
            raise ValueError(f"{a + 1}" + b)
    ''')
    assert list(python_edits.edits(text)) == []


CUDA = {
    "relational": ("if (a < b) c = d;", "if (a <= b) c = d;"),
    "and-or": ("x = a && b;", "x = a || b;"),
    "clause": ("if (a < b && c) d();", "if (c) d();"),
    "one-off": ("x = a - 1;", "x = a;"),
    "extremum": ("x = fmaxf(a, b);", "x = fminf(a, b);"),
    "term": ("x += a + b * c;", "x += a;"),
    "factor": ("x = a * b;", "x = a;"),
    "modulus": ("x = a / b;", "x = a % b;"),
    "stride": ("x = a * head_stride + batch_stride;", "x = a * batch_stride + batch_stride;"),
    "width": ("const Wide a = b;", "const int a = b;"),
    "precision": ("float total = a;", "__half total = a;"),
    "sentinel": ("x = -kInfinity;", "x = -1.0e6f;"),
    "exponential": ("x = expf(a);", "x = exp2f(a);"),
    "scale": ("x = f(a, scale);", "x = f(a, 1.0f);"),
    "barrier": ("__syncthreads();", ""),
    "lanes": ("x = f(0xffffffff);", "x = f(0x0000ffff);"),
    "program": ("x = blockIdx.x;", "x = blockIdx.y;"),
    "accumulation": ("x |= a;", "x = a;"),
    "statement": ("x[a] = b;", ";"),
    "where": ("x = a == b ? c : d;", "x = true ? c : d;"),
}


@pytest.mark.parametrize("rule", cuda_edits.RULES)
def test_what_a_rule_makes_of_cuda(rule: str) -> None:
    line, expected = CUDA[rule]
    text = f"__device__ void f() {{\n    {line}\n}}\n"
    lines = [edit.applied(text).splitlines()[1].strip() for edit in cuda_edits.edits(text)
             if edit.rule == rule]  # fmt: skip
    assert expected in lines


def test_comments_templates_and_what_is_in_no_function_stay() -> None:
    text = "// a < b\n#if a < b\nint x = a < b;\ntemplate <class A>\n__device__ int f() {}\n"
    assert list(cuda_edits.edits(text)) == []


def test_every_mutant_differs_from_its_file_and_from_all_others() -> None:
    """Whatever its parentheses and its spaces. A person may make what a rule makes."""

    def bare(text: str) -> str:
        return re.sub(r"[()\s]", "", text)

    files = {bare(text_of(file)) for names in FILES.values() for file in names}
    by_rule = [each for each in mutants() if each.edit.rule not in ("planted", "made")]
    assert len({bare(mutant.text) for mutant in by_rule} - files) == len(by_rule)
    assert files.isdisjoint(bare(mutant.text) for mutant in mutants())


def test_one_edit_of_each_rule_is_chosen_in_each_function_whatever_is_elsewhere() -> None:
    text = "def f():\n    x = a < b\n    y = c < d\n\n\ndef g():\n    z = 0 < e\n"
    found = chosen(numbered(python_edits.edits(text)), text)
    sites = [edit.site for edit in found]
    assert sites.count(("f", "relational")) == sites.count(("g", "relational")) == 1
    longer = text.replace("def f():", "def f():\n    h()")
    again = chosen(numbered(python_edits.edits(longer)), longer)
    assert {e.text for e in found if e.rule == "relational"} == {
        e.text for e in again if e.rule == "relational"
    }


def test_edits_of_one_rule_in_one_function_are_numbered() -> None:
    edit = Edit("f", "relational", 0, 1, "x")
    assert [e.number for e in numbered([edit, Edit("g", "relational", 2, 3, "x"), edit])] == [
        1,
        1,
        2,
    ]
