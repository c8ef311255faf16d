"""A failure as a Python script that needs torch, the module at fault, and nothing of this project.

For a bug report: it makes the call, in the layouts of the case, and compares the result with
numbers that it carries.
"""

import math
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import torch

from golden.model import Refusal
from kernels.catalog import signatures
from suites.cases import Bounds, Case, Results
from suites.comparison import difference
from suites.runner import Runner
from suites.verdicts import Nonconformance

WIDTH: Final = 96
INTERPRETED: Final = 'os.environ.setdefault("TRITON_INTERPRET", "1")\n'
LARGE: Final = 2**26  # elements beyond which memory is reserved and not filled

HEAD: Final = '''"""{statement}

It needs torch and the module {module}, wherever that is:

    PYTHONPATH=FOLDER python {name}

Exit codes: 0 where the call does what is expected, 1 where it does not, 2 where there is no such
module. Another module may be named behind it. Found by sparse-conformance:
{origin}.{caution}
"""

{imports}
import torch
from torch import inf, nan

MODULE = sys.argv[1] if len(sys.argv) > 1 else "{module}"
OPERATION = "{operation}"
DEVICE = "{device}"
IN_PLACE = {in_place!r}  # the argument that is the result

try:
    function = getattr(importlib.import_module(MODULE), OPERATION)
except (ImportError, AttributeError) as error:
    print(f"{{error}}; put the folder of {{MODULE}} on PYTHONPATH")
    sys.exit(2)

problems = []
placed = {{}}  # by argument: the memory it lies in, that memory's bits, which of it is the argument


def bits(tensor):
    widths = {{1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}}
    return tensor.view(widths[tensor.itemsize])


def nothing(dtype):
    """What memory holds that no argument lies in."""
    if dtype.is_floating_point:
        return nan
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min


def tensor(name, dtype, shape, strides, start, size, values):
    """An argument, amid memory that holds nothing."""
    memory = torch.empty(size, dtype=dtype, device=DEVICE)
    view = memory.as_strided(shape, strides, start)
    values = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else dtype)
    values = values.to(dtype).reshape(shape)
    if size <= {large}:
        memory.fill_(nothing(dtype))
        inside = torch.zeros(size, dtype=torch.bool, device=DEVICE)
        inside[torch.arange(size, device=DEVICE).as_strided(shape, strides, start).flatten()] = True
    one = 1 if shape and strides[0] == 0 else None  # all slices are the same memory
    view[:one].copy_(values[:one]) if shape else view.copy_(values)
    if size <= {large}:
        placed[name] = memory, bits(memory).clone(), inside
    return view


arguments = {{
'''

CALL: Final = """}

try:
    returned = function(*arguments.values())
    refusal = None
except ValueError as error:
    returned, refusal = None, error

for name, (memory, before, inside) in placed.items():
    changed = bits(memory) != before
    if (changed & inside).any() and (name != IN_PLACE or refusal):
        problems.append(f"the call changed its input {name}")
    if (changed & ~inside).any():
        problems.append(f"the call wrote outside {name}")
"""

REFUSED: Final = """
import re

names = {names!r}  # what the refusal may name; any, where there is none
print(f"expected  a refusal: ValueError{{' that names ' + ' or '.join(names) if names else ''}}")
print(f"actual    {{repr(refusal) if refusal else 'the call was accepted'}}")
if refusal is None:
    problems.append("the call must be refused with ValueError; it was accepted")
elif names and not any(re.search(rf"\\b{{name}}\\b", str(refusal)) for name in names):
    problems.append(f"the refusal must name {{' or '.join(names)}}")
"""

COMPARED: Final = """
if refusal is not None:
    print(f"actual    {refusal!r}")
    problems.append("a legal call was refused")
    expected = {}


def compare(name, actual, dtype, shape, values, bound):
    if not isinstance(actual, torch.Tensor):
        actual = torch.tensor(actual, dtype=dtype).reshape(shape)
    print(f"expected  {name} {dtype} {shape} {values}")
    print(f"actual    {name} {actual.dtype} {list(actual.shape)} {actual.flatten().tolist()}")
    if (actual.dtype, list(actual.shape)) != (dtype, shape):
        problems.append(f"{name} is {actual.dtype} {list(actual.shape)}, not {dtype} {shape}")
        return
    wide = torch.float64 if dtype.is_floating_point or bound is not None else torch.int64
    actual, wanted = actual.cpu().flatten().to(wide), torch.tensor(values, dtype=wide)
    right = actual == wanted
    if wide == torch.float64:
        limit = torch.tensor(bound, dtype=wide) if bound is not None else torch.zeros_like(wanted)
        close = ((actual - wanted).abs() <= limit) & ~(actual.isinf() & wanted.isinf())
        right |= (actual.isnan() & wanted.isnan()) | close
        print(f"bound     {name} {limit.tolist()}")
    if not right.all():
        problems.append(f"{int((~right).sum())} of {right.numel()} elements of {name} differ")


results = arguments[IN_PLACE] if IN_PLACE else returned
results = results if len(expected) > 1 else (results,)
for (name, wanted), actual in zip(expected.items(), results):
    compare(name, actual, *wanted)
"""

TAIL: Final = """
for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
"""


def script(
    name: str,
    failure: Nonconformance,
    runner: Runner,
    expected: Results | Refusal,
    origin: str,
) -> str:
    """The text of the script that is to be called ``name``.

    ``expected``: the oracle's results, or that the call is refused. ``origin``: with what it was
    found, in a few words.
    """
    case, device = failure.case, str(runner.device)
    # On the CPU, for a device may be lost.
    call = Runner(runner.implementation, torch.device("cpu")).place(case)
    imports = "import importlib\nimport sys\n"
    if device == "cpu":
        imports = "import importlib\nimport os\nimport sys\n\n" + INTERPRETED
    text = HEAD.format(
        statement=_text(f"{case.operation} of {runner.name}: {failure.statement}"),
        name=name,
        module=_module(runner, case),
        origin=_text(origin),
        caution=_caution(failure, runner, expected),
        imports=imports,
        operation=case.operation,
        device=device,
        in_place=case.specification.in_place,
        large=LARGE,
    )
    names = signatures()[case.operation].parameters
    for parameter, argument in zip(names, call.arguments, strict=True):
        text += f'    "{parameter}": {_argument(parameter, argument)},\n'
    text += CALL
    if isinstance(expected, Refusal):
        text += REFUSED.format(names=case.at_fault(expected.argument))
    else:
        text += "\nexpected = {  # by result: dtype, shape, values, and how far each may be off\n"
        text += "".join(_expected(runner, case, expected)) + "}\n" + COMPARED
    return text + TAIL


def _module(runner: Runner, case: Case) -> str:
    """The module that a user would import the operation from."""
    first, *others = runner.implementation.modules
    if not others:
        return first  # which may be another interpreter's
    return next(name for name in (first, *others) if hasattr(import_module(name), case.operation))


def _caution(failure: Nonconformance, runner: Runner, expected: Results | Refusal) -> str:
    """What to know of a failure that one comparison need not show."""
    if failure.actual is None or isinstance(expected, Refusal):
        return ""
    case = failure.case
    bounds = case.bounds(runner.implementation.dot)
    if difference(case.specification.results, expected, failure.actual, bounds):
        return ""
    return (
        "\n\nThe result is within its bounds, and what is wrong is in the first line: this script\n"
        "shows the call, and need not fail."
    )


def _text(statement: str) -> str:
    lines = textwrap.wrap(statement.replace("\\", "/").replace('"""', "'''"), WIDTH)
    return "\n".join(lines)


def _argument(name: str, argument: Any) -> str:
    if isinstance(argument, list):
        each = "".join(f"        {_argument(f'{name}[{i}]', x)},\n" for i, x in enumerate(argument))
        return f"[\n{each}    ]"
    if isinstance(argument, torch.Tensor):
        storage = argument.untyped_storage().nbytes() // argument.element_size()
        place = f"{list(argument.shape)}, {argument.stride()}, {argument.storage_offset()}"
        values = _numbers(argument)
        return f'tensor(\n        "{name}", {argument.dtype}, {place}, {storage},\n{values}\n    )'
    return str(argument) if isinstance(argument, torch.dtype) else repr(argument)


def _expected(runner: Runner, case: Case, expected: Results) -> Iterator[str]:
    """Each result as the implementation gives it, m in its base, with its bounds."""
    bounds: Bounds = case.bounds(runner.implementation.dot)
    for name, result, bound in zip(case.specification.results, expected, bounds, strict=True):
        unit = math.log(runner.implementation.exponent_base) if name == "m" else 1.0
        values = result.double() / unit if unit != 1 else result
        limits = "        None" if bound is None else _numbers(bound / unit)
        place = f"{result.dtype}, {list(result.shape)}"
        yield f'    "{name}": (\n        {place},\n{_numbers(values)},\n{limits},\n    ),\n'


def _numbers(values: torch.Tensor) -> str:
    """All elements, exactly, on lines of their own."""
    flat = values.detach().cpu().flatten()
    numbers = flat.double().tolist() if flat.dtype.is_floating_point else flat.tolist()
    lines = textwrap.wrap(f"[{', '.join(map(repr, numbers))}]", WIDTH - 8)
    return "\n".join(f"        {line}" for line in lines)
