"""What a run says of figures: in the record, and in its tables."""

from itertools import product

import msgspec

from suites.compile.architectures import ARCHITECTURES
from suites.compile.calls import calls
from suites.compile.compiler import Compiled
from suites.compile.figures import Figures, changes
from suites.compile.measurements import figures_of, work_of_calls
from suites.compile.tables import changes_table, occupancy_table
from suites.compile.variants import Variant
from suites.selftest.compile.samples import SMALL, WIDE, compiled


def test_figures_go_to_the_record_by_names_that_can_be_compared() -> None:
    wide = msgspec.structs.replace(WIDE, spill_loads=8)
    kernels = {
        compiled("kernel", "float32-odd", "sm_80"): SMALL,
        compiled("kernel", "float32-odd", "sm_90"): wide,
    }
    found = list(figures_of(kernels))
    names = {(m.implementation, m.subject, m.quantity, m.variant): m.value for m in found}
    assert len(names) == len(found) == 2 * 9
    kernel = "kernels.f.m", "kernel float32-odd"
    assert names[*kernel, "registers", "sm_80"] == 32
    assert names[*kernel, "occupancy", "sm_80"] == 1.0
    assert names[*kernel, "spill_loads", "sm_90"] == 8
    assert {m.quantity for m in found} <= {*Figures.__struct_fields__}


def test_the_work_of_a_call_goes_to_the_record() -> None:
    """Of the operations whose kernels were compiled, and of all their calls."""
    variant = Variant("f/m", "k", "merge_softmax_stats", "float32", "aligned", "label", "key")
    found = list(work_of_calls({Compiled(variant, "sm_80"): SMALL}))
    assert {m.subject for m in found} == {"merge_softmax_stats"}
    labels = {each.label for each in calls() if each.operation == "merge_softmax_stats"}
    assert {m.variant for m in found} == labels
    # Two chunks of 2 x 16 x 256 rows, m and l, to one of each.
    values = {m.quantity: m.value for m in found if m.variant == "float32-aligned-full"}
    assert values == {
        "bytes read": 2 * 2 * 2 * 16 * 256 * 4,
        "bytes written": 2 * 2 * 16 * 256 * 4,
        "products": 0,
        "operations": 4 * 2 * 2 * 16 * 256,
        "exponentials": 2 * 2 * 16 * 256,
    }


def test_the_occupancy_table_has_the_range_of_a_kernel() -> None:
    variants = {
        compiled("kernel", "float32-odd", "sm_80"): msgspec.structs.replace(SMALL, occupancy=0.25),
        compiled("kernel", "float32-aligned", "sm_80"): SMALL,
        compiled("kernel", "float32-odd", "gfx942"): SMALL,
    }
    variants[compiled("other", "float32-odd", "sm_80")] = SMALL
    rows = [line.split() for line in occupancy_table(variants).splitlines()]
    assert rows[-3:] == [["f/m"], ["kernel", "(2)", "25-100", "100"], ["other", "100"]]


def test_tables_fit_80_columns() -> None:
    """With names as long as the longest."""
    kernel, labels = "streaming_statistics_kernel", {"odd-a": 0.12, "odd-b": 1.0}
    others = {
        compiled(kernel, label, name): msgspec.structs.replace(SMALL, occupancy=labels[label])
        for label, name in product(labels, ARCHITECTURES)
    }
    others[compiled("normalised_block_sums<__nv_bfloat16>", "odd-a", "sm_80")] = SMALL
    before = {"streaming_statistics_kernel float32-aligned-causal-estimate": {"sm_100": SMALL}}
    after = {name: {"sm_100": WIDE} for name in before}
    for table in (occupancy_table(others), changes_table(changes(before, after))):
        assert max(map(len, table.splitlines())) <= 80
