"""What a run leaves in the record: figures of compiled kernels, and the work of a call."""

from collections.abc import Iterator, Mapping
from typing import Final

from golden.record import Measurement
from suites.compile.calls import calls
from suites.compile.compiler import Compiled
from suites.compile.figures import Figures
from suites.compile.variants import importable
from suites.roofline import WORK
from suites.runner import ORACLE

# By the names that they have in golden/compiled.
FIGURES: Final = (
    "registers",
    "spill_stores",
    "spill_loads",
    "spilled_registers",
    "stack",
    "static_shared",
    "dynamic_shared",
    "code",
    "occupancy",
)
WORKS: Final = {  # by the fields of `Work`
    "read": "bytes read",
    "written": "bytes written",
    "products": "products",
    "operations": "operations",
    "exponentials": "exponentials",
}


def figures_of(compiled: Mapping[Compiled, Figures]) -> Iterator[Measurement]:
    """One a figure, on a kernel and what calls it, of an architecture."""
    for each, figures in compiled.items():
        module = importable(each.variant.module)
        for name in FIGURES:
            value = getattr(figures, name)
            yield Measurement(module, each.variant.name, name, each.architecture, value)


def work_of_calls(compiled: Mapping[Compiled, Figures]) -> Iterator[Measurement]:
    """What the specification asks of each call of an operation whose kernels were compiled."""
    operations = {each.variant.operation for each in compiled}
    for call in calls():
        if call.operation in operations:
            work = WORK[call.operation](**call.arguments)
            for name, quantity in WORKS.items():
                value = getattr(work, name)
                yield Measurement(ORACLE.name, call.operation, quantity, call.label, value)
