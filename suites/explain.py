"""A failure as a table that a person can read."""

import io
import math
from collections.abc import Iterator, Sequence

import torch
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from golden.model import Tensor, Value
from oracles import witness
from suites.cases import INDICES, ROWS, SERVE, Case, Results, number, to_golden, to_torch
from suites.comparison import agree
from suites.verdicts import Nonconformance

SHOWN = 16  # lines of a table before it is cut


def explain(failure: Nonconformance, implementation: str) -> str:
    """Several lines of plain text, 100 columns wide at most."""
    case = failure.case
    lines = [f"{case.operation} of {implementation}: {failure.statement}", ""]
    row = _row_shown(failure)
    if row is None:
        lines += [_plain(_inputs(failure)), *map(_plain, _elements(failure))]
    else:
        lines += [_facts(case, row), ""]
        if case.operation != INDICES:
            lines += [_plain(_slots(failure, row))]
        lines += [_plain(_segments(failure, row))]
    return "\n".join(lines)


def _row_shown(failure: Nonconformance) -> int | None:
    """The row to show, or None where the case has no well-formed rows."""
    case = failure.case
    learned = case.inputs.get(ROWS.get(case.operation, ""))
    lengths = case.inputs.get("context_lens")
    if not (isinstance(learned, Tensor) and isinstance(lengths, Tensor)):
        return None
    well_formed = len(learned.shape) == 2 and lengths.shape == learned.shape[:1]
    if not well_formed or learned.shape[0] == 0 or case.number("num_segments") < 1:
        return None
    return failure.row or 0


def _learned(case: Case, row: int) -> list[int]:
    values: list[int] = to_torch(case.tensor(ROWS[case.operation]))[row].tolist()
    return values


def _keep_and_budget(case: Case, topk: int) -> tuple[int, int]:
    segments = case.number("num_segments")
    if case.operation == SERVE:
        return max(topk - segments, 0), min(topk, segments)
    keep = case.number("learned_keep")
    return keep, min(case.number("max_replacements"), topk - keep)


def _facts(case: Case, row: int) -> str:
    rows, topk = case.tensor(ROWS[case.operation]).shape
    length = int(to_torch(case.tensor("context_lens"))[row])
    segments = case.number("num_segments")
    facts = [f"row {row} of {rows}", f"L {length}", f"S {segments}"]
    facts += [f"S_eff {min(segments, max(length, 0))}", f"topk {topk}"]
    if case.operation != INDICES:
        keep, budget = _keep_and_budget(case, topk)
        facts += [f"keep {keep}", f"B {budget}"]
    layouts = {v.layout for v in case.inputs.values() if isinstance(v, Tensor)} - {"contiguous"}
    return "   ".join([*facts, *sorted(layouts)])


def _slots(failure: Nonconformance, row: int) -> Table:
    """Slot by slot: learned, expected, actual."""
    case = failure.case
    learned = _learned(case, row)
    length, segments = int(to_torch(case.tensor("context_lens"))[row]), case.number("num_segments")
    expected, actual = _row(failure.expected, row), _row(failure.actual, row)
    keep, budget = _keep_and_budget(case, len(learned))
    table = _table("slot", "learned", "in segment", "expected", "actual", "")
    for slot in _worth_showing(expected, actual, len(learned)):
        token, wanted, got = learned[slot], _at(expected, slot), _at(actual, slot)
        marks = [
            "differs" if wanted and got and wanted != got else "",
            "reserved" if keep <= slot < keep + budget else "",
        ]
        marked = str(witness.segment_of(token, length, segments)) if token >= 0 else "padding"
        table.add_row(str(slot), str(token), marked, wanted, got, " ".join(filter(None, marks)))
    return _cut(table, len(learned), "slots")


def _segments(failure: Nonconformance, row: int) -> Table:
    """Segment by segment: its tokens, the slots that mark it, its witness."""
    case = failure.case
    learned = _learned(case, row)
    length, segments = int(to_torch(case.tensor("context_lens"))[row]), case.number("num_segments")
    effective = min(segments, max(length, 0))
    by_segment = case.operation == INDICES
    expected = _row(failure.expected, row) if by_segment else None
    actual = _row(failure.actual, row) if by_segment else None
    witnesses = witness.witness_slots(learned, length, segments)
    columns = ["segment", "tokens", "marked by slots", "witness"]
    table = _table(*columns, *(["actual", ""] if by_segment else []))
    for s in _worth_showing(expected, actual, segments if by_segment else effective):
        edges = [witness.edge(s + side, length, effective) for side in (0, 1) if s < effective]
        markers = [
            str(slot)
            for slot, token in enumerate(learned)
            if token >= 0 and witness.segment_of(token, length, segments) == s
        ]
        cells = [
            str(s),
            f"[{edges[0]}, {edges[1]})" if edges else "none",
            ", ".join(markers[:6]) + (", …" if len(markers) > 6 else ""),
            "" if witnesses[s] < 0 else str(witnesses[s]),
        ]
        if by_segment:
            wanted, got = _at(expected, s), _at(actual, s)
            cells += [got, "differs" if wanted and got and wanted != got else ""]
        table.add_row(*cells)
    return _cut(table, segments if by_segment else effective, "segments")


def _inputs(failure: Nonconformance) -> Table:
    """A case without rows: every input and every result."""
    table = _table("", "", align="left")
    for name, value in failure.case.inputs.items():
        if isinstance(value, tuple):
            for i, each in enumerate(value):
                table.add_row(f"{name}[{i}]", _described(each))
        else:
            table.add_row(name, _described(value))
    for which, results in (("expected", failure.expected), ("actual", failure.actual)):
        for name, result in zip(failure.case.specification.results, results or (), strict=False):
            named = which if name == "result" else f"{which} {name}"
            table.add_row(named, _described(to_golden(result)))
    return table


def _described(value: Value) -> str:
    plain = number(value)
    if not isinstance(plain, Tensor):
        return str(plain)
    layout = "" if plain.layout == "contiguous" else f" {plain.layout}"
    return f"{plain.dtype} {list(plain.shape)}{layout} {_short(plain.data)}"


def _short(values: Sequence[object]) -> str:
    text = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in values[:SHOWN])
    return f"[{text}, …]" if len(values) > SHOWN else f"[{text}]"


def _elements(failure: Nonconformance) -> Iterator[Table]:
    """Of each result that differs, its elements that do, the worst first."""
    names = failure.case.specification.results
    expected, actual = failure.expected or (), failure.actual or ()
    bounds = failure.bounds or (None,) * len(names)
    for name, wanted, got, bound in zip(names, expected, actual, bounds, strict=False):
        if wanted.shape != got.shape or wanted.dtype != got.dtype:
            continue
        error = (got.double() - wanted.double()).abs().nan_to_num(math.inf, math.inf)
        allowed = torch.zeros_like(error) if bound is None else bound
        wrong = (~agree(wanted, got, bound)).nonzero()
        excess = [(error[tuple(i)] / allowed[tuple(i)]).item() for i in wrong]
        table = _table(name, "expected", "actual", "|error|", "bound", "|error| / bound")
        for _, place in sorted(zip(excess, wrong.tolist(), strict=True), key=lambda x: -x[0])[
            :SHOWN
        ]:
            at = tuple(place)
            figures = (wanted[at], got[at], error[at], allowed[at], error[at] / allowed[at])
            table.add_row(str(place), *(f"{figure.item():.7g}" for figure in figures))
        if len(wrong):
            yield _cut(table, len(wrong), "elements that differ")


def _row(results: Results | None, row: int) -> list[int] | None:
    if results is None or results[0].dim() != 2 or row >= results[0].shape[0]:
        return None
    values: list[int] = results[0][row].tolist()
    return values


def _at(values: list[int] | None, index: int) -> str:
    return str(values[index]) if values is not None and index < len(values) else ""


def _worth_showing(expected: list[int] | None, actual: list[int] | None, count: int) -> list[int]:
    """The first lines, or where two long results differ, the lines around the differences."""
    indices = list(range(count))
    if count <= SHOWN or expected is None or actual is None:
        return indices[:SHOWN]
    differing = [
        i for i, (e, a) in enumerate(zip(expected, actual, strict=False)) if e != a and i < count
    ]
    around = sorted({i for d in differing for i in (d - 1, d, d + 1) if 0 <= i < count})
    return (around or indices)[:SHOWN]


def _table(*columns: str, align: str = "right") -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(column, justify=align)  # type: ignore[arg-type]
    return table


def _cut(table: Table, count: int, what: str) -> Table:
    if table.row_count < count:
        table.caption = f"{table.row_count} of {count} {what}"
    return table


def _plain(renderable: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=100, no_color=True, force_terminal=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"
