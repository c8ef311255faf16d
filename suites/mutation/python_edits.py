"""The rules by which Python goes wrong: what a person who writes a kernel gets wrong in a line.

Each rule takes a node of the syntax tree and yields what its text is replaced by. Expressions are
put in parentheses, so that a rule need not think of precedence. Device code and its callers are
mutated alike; annotations, decorators, defaults, docstrings and what a refusal says are left alone.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

from suites.mutation.edits import Edit

Node = ast.expr | ast.stmt | ast.keyword


@dataclass(frozen=True)
class Source:
    """A file, and where the nodes of its tree lie in its text (which is ASCII)."""

    text: str

    @cached_property
    def _lines(self) -> list[int]:
        """Where each line begins."""
        lengths = (len(line) for line in self.text.splitlines(keepends=True))
        return list(accumulate(lengths, initial=0))

    def begin(self, node: Node) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: Node) -> int:
        return self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def plain(self, node: Node) -> str:
        return self.text[self.begin(node) : self.end(node)]

    def of(self, node: Node) -> str:
        """An operand's text, which can stand wherever an operand can."""
        atomic = ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant
        return self.plain(node) if isinstance(node, atomic) else f"({self.plain(node)})"


Rule = Callable[[ast.AST, Source], Iterator[str]]
RULES: Final[dict[str, Rule]] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def edits(text: str) -> Iterator[Edit]:
    """Every edit of a file's functions, in the order of the text."""
    source = Source(text)
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef):
            for node in _mutable(function):
                span = source.begin(node), source.end(node)
                for name, replacements in RULES.items():
                    for replacement in replacements(node, source):
                        yield Edit(function.name, name, *span, replacement)


def _mutable(node: ast.AST) -> Iterator[Node]:
    """The nodes below one that do what the code does, outermost first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise | ast.arguments | ast.JoinedStr):
            continue
        if child in getattr(node, "decorator_list", ()) or child is getattr(node, "returns", None):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.expr | ast.stmt | ast.keyword):
            yield child
        yield from _mutable(child)


# --- comparisons and conditions ------------------------------------------------------------------

STRICTNESS: Final = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">", "Eq": "!=", "NotEq": "=="}


@rule("relational")
def _relational(node: ast.AST, source: Source) -> Iterator[str]:
    """A boundary moved by one; equal for unequal."""
    match node:
        case ast.Compare(left, ops, comparators):
            operands = [source.of(operand) for operand in (left, *comparators)]
            for at, changed in enumerate(ops):
                if type(changed).__name__ in STRICTNESS:
                    signs = [_sign_of(op) for op in ops]
                    signs[at] = STRICTNESS[type(changed).__name__]
                    pairs = zip(signs, operands[1:], strict=True)
                    yield f"({operands[0]}{''.join(f' {s} {o}' for s, o in pairs)})"


def _sign_of(operator: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")]))[2:-2]


@rule("order")
def _order(node: ast.AST, source: Source) -> Iterator[str]:
    """The other way round."""
    match node:
        case ast.Compare(
            ast.Subscript() as left, [ast.Lt() | ast.Gt()], [ast.Subscript() as right]
        ):
            yield f"({source.of(right)} {_sign_of(node.ops[0])} {source.of(left)})"
        case ast.keyword("descending", ast.Constant(bool(value))):
            yield f"descending={not value}"


@rule("and-or")
def _and_or(node: ast.AST, source: Source) -> Iterator[str]:
    match node:
        case ast.BoolOp(op, values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield f"({other.join(source.of(value) for value in values)})"
        case ast.BinOp(left, ast.BitAnd(), right) if not isinstance(right, ast.Constant):
            yield f"({source.of(left)} | {source.of(right)})"
        case ast.BinOp(left, ast.BitOr(), right) if not isinstance(left, ast.Name):
            yield f"({source.of(left)} & {source.of(right)})"


@rule("clause")
def _clause(node: ast.AST, source: Source) -> Iterator[str]:
    """One part of a condition dropped, or all of it negated."""
    match node:
        case ast.BoolOp(op, values):
            sign = " and " if isinstance(op, ast.And) else " or "
            for dropped in range(len(values)):
                rest = [source.of(v) for at, v in enumerate(values) if at != dropped]
                yield f"({sign.join(rest)})"
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
            if not isinstance(right, ast.Constant):
                yield source.of(left)
                yield source.of(right)
        case ast.UnaryOp(ast.Invert() | ast.Not(), operand):
            yield source.of(operand)


@rule("refusal")
def _refusal(node: ast.AST, source: Source) -> Iterator[str]:
    """Never refused."""
    match node:
        case ast.If(test, [ast.Raise()], []):
            body = source.text[source.begin(node.body[0]) : source.end(node)]
            indent = " " * (node.col_offset + 4)
            yield f"if {source.of(test)} and False:\n{indent}{body}"


@rule("branch")
def _branch(node: ast.AST, source: Source) -> Iterator[str]:
    """The other branch; or the guarded statement whatever the condition."""
    match node:
        case ast.If(test, body, _) if not isinstance(body[0], ast.Raise):
            rest = source.text[source.end(test) : source.end(node)]
            yield f"if not {source.of(test)}{rest}"
        case ast.IfExp(test, body, orelse):
            yield source.of(body)
            yield source.of(orelse)


# --- numbers -------------------------------------------------------------------------------------


@rule("one-off")
def _one_off(node: ast.AST, source: Source) -> Iterator[str]:
    """An integer that is one more."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub(), ast.Constant(1)):
            yield source.of(left)
        case ast.Compare(left, [op], [ast.Constant(int(value))]) if not isinstance(value, bool):
            yield f"({source.of(left)} {_sign_of(op)} {value + 1})"
        case ast.BinOp(left, ast.BitAnd(), ast.Constant(int(value))):
            yield f"({source.of(left)} & {value >> 1})"
        case ast.Call(_, args, keywords) if _called(node) in (*EXTREMA, "clamp"):
            if _called(node) in REDUCTIONS and isinstance(node.func, ast.Attribute):
                return  # that is an axis
            for each in (*args, *(keyword.value for keyword in keywords)):
                if isinstance(each, ast.Constant) and type(each.value) is int:
                    yield _spliced(source, node, each, str(each.value + 1))


@rule("sign")
def _sign(node: ast.AST, source: Source) -> Iterator[str]:
    """Padding that is a token."""
    match node:
        case ast.UnaryOp(ast.USub(), ast.Constant(1)):
            yield "0"
            yield "1"


@rule("rounding")
def _rounding(node: ast.AST, source: Source) -> Iterator[str]:
    """Up for down, and down for up."""
    match node:
        case ast.BinOp(left, ast.FloorDiv(), right):
            a, b = source.of(left), source.of(right)
            yield f"(({a} + {b} - 1) // {b})"
        case ast.Call(_, [a, b], []) if _called(node) == "cdiv":
            yield f"({source.of(a)} // {source.of(b)})"
        case ast.Call(ast.Attribute(_, "ceil"), [ast.BinOp(a, ast.Div(), b)], []):
            yield f"({source.of(a)} // {source.of(b)})"


EXTREMA: Final = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "amax": "amin",
}


@rule("extremum")
def _extremum(node: ast.AST, source: Source) -> Iterator[str]:
    match node:
        case ast.Call(ast.Name(name) as function, _, _) if name in EXTREMA:
            yield _spliced(source, node, function, EXTREMA[name])
        case ast.Call(ast.Attribute(_, name) as function, _, _) if name in EXTREMA:
            changed = source.plain(function).removesuffix(name) + EXTREMA[name]
            yield _spliced(source, node, function, changed)
        case ast.Call(ast.Attribute(_, "clamp"), [], [ast.keyword(bound) as keyword]):
            other = "max" if bound == "min" else "min"
            yield _spliced(source, node, keyword, f"{other}={source.of(keyword.value)}")


@rule("limit")
def _limit(node: ast.AST, source: Source) -> Iterator[str]:
    """One of several limits forgotten: of a budget, of a width, of a length."""
    match node:
        case ast.Call(function, args, []) if _called(node) in EXTREMA and len(args) > 1:
            if _called(node) in ("max", "min") and isinstance(function, ast.Attribute):
                return  # a reduction
            for dropped in range(len(args)):
                rest = [source.of(each) for at, each in enumerate(args) if at != dropped]
                call = f"{source.of(function)}({', '.join(rest)})"
                yield rest[0] if len(rest) == 1 else call
        case ast.Call(ast.Attribute(value, "clamp"), _, _):
            yield source.of(value)


@rule("term")
def _term(node: ast.AST, source: Source) -> Iterator[str]:
    """An offset ignored, a batch index dropped, a difference with the wrong sign."""
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield source.of(right)
            if not _is_one(right):
                yield source.of(left)
                yield f"({source.of(left)} - {source.of(right)})"
        case ast.BinOp(left, ast.Sub(), right) if not _is_one(right):
            yield source.of(left)
            yield f"({source.of(left)} + {source.of(right)})"
        case ast.AugAssign(target, ast.Add(), _):
            yield f"{source.of(target)} -= {source.of(node.value)}"


@rule("factor")
def _factor_dropped(node: ast.AST, source: Source) -> Iterator[str]:
    """A stride or a scale dropped; a scale applied twice."""
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield source.of(left)
            yield source.of(right)
            if "scale" in (source.of(left), source.of(right)):
                yield f"({source.of(left)} * {source.of(right)} * scale)"
        case ast.BinOp(left, ast.FloorDiv() | ast.Mod() | ast.Div(), _):
            yield source.of(left)


@rule("modulus")
def _modulus(node: ast.AST, source: Source) -> Iterator[str]:
    match node:
        case ast.BinOp(left, ast.Mod(), right):
            yield f"({source.of(left)} // {source.of(right)})"
        case ast.BinOp(left, ast.FloorDiv(), right):
            yield f"({source.of(left)} % {source.of(right)})"


# --- types and special values --------------------------------------------------------------------


@rule("width")
def _width(node: ast.AST, source: Source) -> Iterator[str]:
    """64 bits become 32."""
    match node:
        case ast.Attribute(ast.Name("tl" | "torch" as module), "int64"):
            yield f"{module}.int32"


@rule("precision")
def _precision(node: ast.AST, source: Source) -> Iterator[str]:
    """fp32 becomes fp16."""
    match node:
        case ast.Attribute(ast.Name("tl" | "torch" as module), "float32"):
            yield f"{module}.float16"


@rule("sentinel")
def _sentinel(node: ast.AST, source: Source) -> Iterator[str]:
    """A finite number for -inf."""
    if isinstance(node, ast.expr) and source.plain(node) in ('float("-inf")', "-math.inf"):
        yield "-1.0e6"


@rule("exponential")
def _exponential(node: ast.AST, source: Source) -> Iterator[str]:
    """Base 2 for base e."""
    match node:
        case ast.Attribute(_, "exp"):
            yield f"{source.plain(node)}2"


# --- tensors and memory --------------------------------------------------------------------------


@rule("mask")
def _mask(node: ast.AST, source: Source) -> Iterator[str]:
    """A load or a store without its mask."""
    match node:
        case ast.Call(function, args, keywords) if _called(node) in ("load", "store"):
            if any(keyword.arg == "mask" for keyword in keywords):
                yield f"{source.of(function)}({', '.join(map(source.of, args))})"


@rule("other")
def _other(node: ast.AST, source: Source) -> Iterator[str]:
    """What a masked lane holds."""
    match node:
        case ast.keyword("other", value):
            if source.plain(value) != "-1":  # whose sign is a rule of its own
                yield "other=1" if source.plain(value) == "0" else "other=0"


@rule("where")
def _where(node: ast.AST, source: Source) -> Iterator[str]:
    """One side of a choice, whatever the condition."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("tl"), "where"), [_, yes, no], []):
            yield source.of(yes)
            yield source.of(no)
        case ast.Call(ast.Attribute(value, "where"), [_, _], []):
            yield source.of(value)


@rule("stride")
def _stride(node: ast.AST, source: Source) -> Iterator[str]:
    """Another dimension's stride or length."""
    match node:
        case ast.Subscript(value, ast.Constant(int(k))) if source.of(value).endswith(
            ("strides", "shape")
        ):
            yield f"{source.of(value)}[{k ^ 1}]"
        case ast.Call(ast.Attribute(_, "stride") as function, [ast.Constant(int(k))], []):
            yield f"{source.of(function)}({k ^ 1})"
        case ast.Call(_, args, _):
            for first, second in pairwise(args):
                names = source.of(first), source.of(second)
                if all(name.endswith(("stride", "strides")) for name in names):
                    yield _spliced(source, node, first, names[1], second, names[0])


@rule("axis")
def _axis(node: ast.AST, source: Source) -> Iterator[str]:
    """A reduction over another dimension."""
    match node:
        case ast.Call(ast.Attribute(_, name), [*_, ast.Constant(int(k)) as last], []):
            if name in REDUCTIONS:
                yield _spliced(source, node, last, 1 - k)
        case ast.Call(ast.Attribute(_, name), [*_, ast.UnaryOp(ast.USub()) as last], _):
            if name in REDUCTIONS:
                yield _spliced(source, node, last, -2)


REDUCTIONS: Final = ("sum", "amax", "max", "cumsum")


@rule("program")
def _program(node: ast.AST, source: Source) -> Iterator[str]:
    """The wrong program's number."""
    match node:
        case ast.Call(ast.Attribute(_, "program_id") as function, [ast.Constant(int(k))], []):
            yield f"{source.of(function)}({1 - k})"


# --- statements ----------------------------------------------------------------------------------


@rule("statement")
def _statement(node: ast.AST, source: Source) -> Iterator[str]:
    """A store skipped, something not added."""
    match node:
        case ast.Expr(ast.Call() as call) if _called(call) != "on_device_of":
            yield "pass"
        case ast.AugAssign() | ast.Assign([ast.Subscript()], _):
            yield "pass"


@rule("tail")
def _tail(node: ast.AST, source: Source) -> Iterator[str]:
    """A loop without what its last, partial step covers; or with its first step alone."""
    match node:
        case ast.For(_, ast.Call(ast.Name("range"), [first, end, step], []) as call, body, []):
            text = source.of
            short = f"range({text(first)}, {text(end)} - ({text(step)} - 1), {text(step)})"
            yield _spliced(source, node, call, short)
    match node:
        case ast.For(_, _, body, []):
            at = source.begin(node)
            indent = " " * (body[0].col_offset)
            yield f"{source.text[at : source.end(node)]}\n{indent}break"


@rule("break")
def _break(node: ast.AST, source: Source) -> Iterator[str]:
    if isinstance(node, ast.Break):
        yield "pass"


# --- where things are ----------------------------------------------------------------------------


def _called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    match node.func:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _spliced(source: Source, whole: Node, *parts: object) -> str:
    """The text of a node with the texts of nodes in it, in order, replaced: node, text, ..."""
    text, at = "", source.begin(whole)
    for part, replacement in zip(parts[::2], parts[1::2], strict=True):
        assert isinstance(part, ast.expr | ast.keyword)
        text += source.text[at : source.begin(part)] + str(replacement)
        at = source.end(part)
    return text + source.text[at : source.end(whole)]
