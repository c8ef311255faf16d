"""The rules by which CUDA C++ goes wrong: patterns over its text, where it is no comment.

A pattern's match is replaced; what does not compile afterwards is no mutant. House style has a
space on both sides of a binary operator and none within the brackets of a template.
"""

import re
from collections.abc import Iterator
from typing import Final

from suites.mutation.edits import Edit

# What begins in the first column and ends with a brace there: the functions and the structures.
DEFINITION: Final = re.compile(
    r"^(?:template <.*>\n)?"
    r"(?:__global__ void __launch_bounds__\(.*\) |__device__ [^(;{]*?|struct (?:__align__\(.*\) )?)"
    r"(?P<name>\w+)(?:\(|(?= \{))"
    r"(?:.*\}$|(?s:.*?)\n\};?$)",
    re.MULTILINE,
)
COMMENT: Final = re.compile(r"//.*|^#.*|template <.*>", re.MULTILINE)

OPERAND: Final = r"\w+(?:\.\w+|\[[\w.]+\]|\([\w., ]*\)|\{\w+\})*"
END: Final = r"(?=[;)\]},: ])"
RULES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "relational": (
        (r" < ", " <= "),
        (r" <= ", " < "),
        (r" > ", " >= "),
        (r" >= ", " > "),
        (r" == ", " != "),
    ),
    "and-or": ((r" && ", " || "), (r" \|\| ", " && "), (r" & ", " | "), (r" \| ", " & ")),
    "clause": (
        (rf"(?<=\(){OPERAND} (?:[<>]=?|==) {OPERAND} && ", ""),
        (rf" && {OPERAND} (?:[<>]=?|==) {OPERAND}(?=[) ])", ""),
        (r"~(?=\w)", ""),
    ),
    "one-off": ((r" [+-] 1\b", ""), (r"(?<= = )0(?=;)", "1"), (r"(?<=[<>] )0\b", "1")),
    "extremum": (
        (r"\bmin(?=\()", "max"),
        (r"\bmax(?=\()", "min"),
        (r"\bfmaxf(?=\()", "fminf"),
    ),
    "term": ((rf" [+-] (?!1\b){OPERAND}(?: \* {OPERAND})?{END}", ""),),
    "factor": ((rf" [*/%] {OPERAND}{END}", ""),),
    "modulus": ((r" / ", " % "), (r" % ", " / ")),
    "stride": (
        (r"(?<=\* )row_stride\b", "slot_stride"),
        (r"(?<=\* )row_stride\b", "column_stride"),
        (r"(?<=\* )(?:slot_stride|column_stride)\b", "row_stride"),
        (r"(?<=\* )head_stride\b", "batch_stride"),
        (r"(?<=\* )m_(?=\w*stride\b)", "l_"),
        (r"(?<=\* )l_(?=\w*stride\b)", "m_"),
        (r"(?<=\* )queries\.row_stride\b", "queries.column_stride"),
    ),
    "width": ((r"\bWide(?= \w+ = )", "int"), (r"(?<=static_cast<)Wide(?=>)", "int")),
    "precision": (
        (r"\bfloat(?= total| l\b)", "__half"),
        (r"static_cast<float>\(score\)", "static_cast<float>(__half(static_cast<float>(score)))"),
    ),
    "sentinel": ((r"-kInfinity", "-1.0e6f"),),
    "exponential": ((r"\bexpf(?=\()", "exp2f"),),
    "scale": ((r", scale\)", ", 1.0f)"), (r", scale\)", ", scale * scale)")),
    "barrier": ((r"__syncthreads\(\);", ""),),
    "lanes": ((r"\b0xffffffff\b", "0x0000ffff"), (r"\bbits = 16\b", "bits = 8")),
    "program": ((r"\bblockIdx\.x\b", "blockIdx.y"), (r"\bthreadIdx\.x\b", "threadIdx.y")),
    "accumulation": ((r" (?:\+|\||\*)= ", " = "),),
    "statement": (
        (r"(?:(?<=\n) +|(?<=\) ))\*?[\w.]+(?:\[[^;{}]*\])? [+|*]?= [^;{}=]+;(?=\n)", ";"),
        (r"if \([^;{}]*\) return[^;]*;", ""),
        (r"\bone\(slot, row\[[^;]*;", ""),
    ),
    "where": ((r"(?<=[=n,(] )[\w.]+ == [\w.]+ \? ", "true ? "), (r"\? 0\.0f : ", "? 1.0f : ")),
}


def edits(text: str) -> Iterator[Edit]:
    """Every edit of a file's functions, in the order of the text."""
    code = COMMENT.sub(lambda comment: " " * len(comment[0]), text)
    for definition in DEFINITION.finditer(text):
        found = [
            Edit(definition["name"], rule, match.start(), match.end(), replacement)
            for rule, patterns in RULES.items()
            for pattern, replacement in patterns
            if not replacement.endswith("stride") or replacement in code
            for match in re.compile(pattern).finditer(code, definition.start(), definition.end())
        ]
        yield from sorted(found, key=lambda edit: (edit.start, edit.rule))


def functions(text: str) -> dict[str, str]:
    """The text of every function and structure, by its name."""
    return {definition["name"]: definition[0] for definition in DEFINITION.finditer(text)}
