"""Placed values lie as asked, damage around them is found where it is, and poison shows."""

from collections.abc import Callable
from math import inf, nan
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from golden.model import Layout
from suites.watch.memory import (
    OutsideView,
    Placed,
    Poison,
    inside_views,
    overwrite,
    peak_allocation,
    place,
    poisoned_allocations,
)

LAYOUTS: tuple[Layout, ...] = tuple(layout for layout in get_args(Layout) if layout != "wide")
DTYPES = [torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.bool]
SHAPES = [(), (0,), (1,), (5,), (3, 4), (4, 0), (0, 4), (1, 1), (2, 3, 4)]


def sample(shape: tuple[int, ...], dtype: torch.dtype, layout: Layout = "contiguous") -> Tensor:
    """Distinct values, but for slices along the first dim that ``broadcast`` wants equal."""
    numel = torch.Size(shape).numel()
    values = (torch.arange(numel) % 2 if dtype == torch.bool else torch.arange(numel)).to(dtype)
    values = values.reshape(shape)
    return values[:1].expand(shape).contiguous() if layout == "broadcast" and shape else values


def same(one: Tensor, other: Tensor) -> bool:
    """In shape, dtype and bits."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    one, other = (x.clone(memory_format=torch.contiguous_format).view(-1) for x in (one, other))
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def memory_of(placed: Placed) -> Tensor:
    """All of the memory around a view, 1-D; element 64 of it is the first of most views."""
    view = placed.view
    size = view.untyped_storage().nbytes() // view.element_size()
    return view.as_strided((size,), (1,), 0)


# --- poison --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.float64, nan, -inf),
        (torch.float16, nan, -inf),
        (torch.int32, -(2**31), 2**31 - 1),
        (torch.int64, -(2**63), 2**63 - 1),
        (torch.uint8, 0, 255),
        (torch.uint64, 0, 2**64 - 1),
        (torch.bool, False, True),
        (torch.float8_e4m3fn, nan, -448.0),
    ],
)
def test_poison_by_dtype(dtype: torch.dtype, low: float, high: float) -> None:
    for poison, value in ((Poison.LOW, low), (Poison.HIGH, high)):
        assert poison.of(dtype) == pytest.approx(value, rel=0, abs=0, nan_ok=True)
        memory = memory_of(place(torch.zeros(1, dtype=dtype), "contiguous", poison, "cpu"))
        assert memory[0].item() == pytest.approx(value, rel=0, abs=0, nan_ok=True)
        assert memory[-1].item() == pytest.approx(value, rel=0, abs=0, nan_ok=True)


# --- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_holds_values_and_then_others(
    shape: tuple[int, ...], layout: Layout, dtype: torch.dtype
) -> None:
    values = sample(shape, dtype, layout)
    for poison in Poison:
        placed = place(values, layout, poison, "cpu")
        assert placed.view.dtype == dtype
        assert same(placed.view, values)
        if layout == "contiguous":
            assert placed.view.stride() == torch.empty(shape).stride()
        assert not placed.changed()
        assert placed.damage() is None
        memory = memory_of(placed)
        for guard in (memory[:64], memory[-64:]):
            assert same(guard, torch.full((64,), poison.of(dtype), dtype=dtype))
        overwrite(placed.view, values == 0)
        assert same(placed.view, (values == 0).to(dtype))
        assert placed.damage() is None


@pytest.mark.parametrize(
    ("layout", "of_1d", "of_2d", "of_3d"),
    [
        ("contiguous", (1,), (4, 1), (12, 4, 1)),
        ("offset", (1,), (4, 1), (12, 4, 1)),
        ("padded", (4,), (7, 1), (15, 4, 1)),
        ("sliced", (2,), (8, 2), (24, 8, 2)),
        ("transposed", (2,), (1, 3), (1, 2, 6)),
        ("broadcast", (0,), (0, 1), (0, 4, 1)),
    ],
)
def test_strides(layout: Layout, of_1d: object, of_2d: object, of_3d: object) -> None:
    for shape, strides in (((5,), of_1d), ((3, 4), of_2d), ((2, 3, 4), of_3d)):
        view = place(sample(shape, torch.int32, layout), layout, Poison.LOW, "cpu").view
        assert view.stride() == strides
        assert view.storage_offset() == (65 if layout == "offset" else 64)
        assert (view.data_ptr() % 16 == 0) == (layout != "offset")


@pytest.mark.parametrize("poison", Poison)
def test_wide_heads(poison: Poison) -> None:
    """2**30 elements apart: nothing in between is written, or could be."""
    values = sample((2, 3, 4), torch.float16)
    placed = place(values, "wide", poison, "cpu")
    assert placed.view.stride() == (4, 2**30, 1)
    assert same(placed.view, values)
    assert placed.damage() is None
    for head in range(3):
        around = placed.view.as_strided((136,), (1,), head * 2**30)
        assert same(around[:64], torch.full((64,), poison.of(torch.float16)).half())
        assert same(around[72:], torch.full((64,), poison.of(torch.float16)).half())
    placed.view.as_strided((1,), (1,), 64 + 2**30 - 5).fill_(1)
    assert placed.damage() == (
        "1 element outside the view changed, the first in the gap after element (1, 0, 3)"
    )
    assert not placed.changed()
    placed.view[1, 2, 3] = 1
    assert placed.changed()
    few = sample((3, 4), torch.float16)
    assert place(few, "wide", poison, "cpu").view.stride() == (4, 1)  # no heads


def test_broadcast_wants_slices_that_are_equal_bit_by_bit() -> None:
    placed = place(torch.tensor([[nan, 1.0]] * 3), "broadcast", Poison.HIGH, "cpu")
    assert placed.view.isnan().tolist() == [[True, False]] * 3
    with pytest.raises(ValueError, match="slices that differ; make them equal"):
        place(torch.tensor([0.0, -0.0]), "broadcast", Poison.LOW, "cpu")


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", Poison)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_damage_before_and_after_every_layout(
    layout: Layout, dtype: torch.dtype, poison: Poison
) -> None:
    values = sample((3, 4), dtype, layout)
    other = 0 if poison.of(dtype) is True else 1
    extent = {"padded": 18, "sliced": 23, "broadcast": 4}.get(layout, 12)

    placed = place(values, layout, poison, "cpu")
    start = placed.view.storage_offset()
    memory_of(placed)[start - 1] = other
    assert (
        placed.damage()
        == "1 element outside the view changed, the first 1 element before its start"
    )
    memory_of(placed)[0] = other
    assert placed.damage() == (
        f"2 elements outside the view changed, the first {start} elements before its start"
    )
    assert not placed.changed()

    placed = place(values, layout, poison, "cpu")
    memory_of(placed)[start + extent + 11 :] = other
    assert placed.damage() == (
        "53 elements outside the view changed, the first 12 elements past its end"
    )
    memory_of(placed)[start + extent] = other
    assert placed.damage() == (
        "54 elements outside the view changed, the first 1 element past its end"
    )
    assert not placed.changed()


@pytest.mark.parametrize(
    ("shape", "layout", "position", "where"),
    [
        ((3, 4), "padded", 4, "row 0"),
        ((3, 4), "padded", 13, "row 1"),
        ((2, 3, 4), "padded", 12, "row 0"),
        ((5,), "padded", 7, "element (1,)"),
        ((3, 4), "sliced", 7, "element (0, 3)"),
        ((3, 4), "sliced", 9, "element (1, 0)"),
        ((2, 3, 4), "sliced", 33, "element (1, 1, 0)"),
        ((5,), "transposed", 3, "element (1,)"),
    ],
)
def test_damage_in_a_gap(shape: tuple[int, ...], layout: Layout, position: int, where: str) -> None:
    placed = place(sample(shape, torch.float32), layout, Poison.LOW, "cpu")
    memory_of(placed)[64 + position] = 0
    assert (
        placed.damage() == f"1 element outside the view changed, the first in the gap after {where}"
    )
    assert not placed.changed()


def test_damage_is_a_matter_of_bits() -> None:
    placed = place(torch.tensor([nan, 0.0]), "contiguous", Poison.LOW, "cpu")
    memory = memory_of(placed)
    memory[0] = nan
    placed.view[0] = nan
    assert placed.damage() is None
    assert not placed.changed()
    memory.view(torch.int32)[0] += 1  # another NaN
    placed.view[1] = -0.0
    assert placed.damage() is not None
    assert placed.changed()


def test_what_happens_to_the_view_is_no_damage() -> None:
    for layout in LAYOUTS:
        placed = place(sample((3, 4), torch.int32, layout), layout, Poison.LOW, "cpu")
        placed.view[2, 3] += 1
        assert placed.changed()
        assert placed.damage() is None


def test_an_empty_view_still_has_a_guard() -> None:
    placed = place(torch.empty(0, 4), "padded", Poison.LOW, "cpu")
    memory_of(placed)[64] = 0
    assert placed.damage() == "1 element outside the view changed, the first 1 element past its end"


# --- allocations ---------------------------------------------------------------------------------

ALLOCATE: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda like: torch.empty(3, 4, dtype=like.dtype),
    "empty_like": lambda like: torch.empty_like(like),
    "empty_strided": lambda like: torch.empty_strided((3, 4), (1, 3), dtype=like.dtype),
    "empty_permuted": lambda like: torch.empty_permuted((3, 4), (1, 0), dtype=like.dtype),
    "new_empty": lambda like: like.new_empty(3, 4),
    "new_empty_strided": lambda like: like.new_empty_strided((3, 4), (4, 1)),
    "resize_": lambda like: like.new_zeros(0).resize_(3, 4),
}


@pytest.mark.parametrize("poison", Poison)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("allocate", ALLOCATE)
def test_what_is_allocated_is_poisoned(allocate: str, dtype: torch.dtype, poison: Poison) -> None:
    with poisoned_allocations(poison):
        fresh = ALLOCATE[allocate](torch.zeros(3, 4, dtype=dtype))
    assert same(fresh, torch.full((3, 4), poison.of(dtype), dtype=dtype))


def test_the_gaps_of_an_allocation_are_poisoned() -> None:
    with poisoned_allocations(Poison.HIGH):
        fresh = torch.empty_strided((3, 2), (4, 1), dtype=torch.int32)
    assert fresh.as_strided((10,), (1,)).tolist() == [2**31 - 1] * 10


def test_growth_keeps_what_was_there() -> None:
    held = torch.arange(3)
    with poisoned_allocations(Poison.HIGH):
        held.resize_(5)
    assert held.tolist() == [0, 1, 2, 2**63 - 1, 2**63 - 1]


def test_everything_else_works_as_before() -> None:
    x = torch.arange(12).reshape(3, 4)
    out, kept = torch.empty(3), torch.zeros(6)
    with poisoned_allocations(Poison.HIGH):
        assert torch.zeros(2).tolist() == [0, 0]
        assert torch.full_like(x, 7).max().item() == 7
        assert (x + 1)[1:, ::2].T.tolist() == [[5, 9], [7, 11]]
        assert x.clone().contiguous().tolist() == x.tolist()
        assert x.to(torch.float32).softmax(-1).sum().item() == pytest.approx(3)
        assert torch.cat([x, x.T.contiguous().T]).sort().values.shape == (6, 4)
        x[1:].mul_(2)
        torch.sum(x.float(), 1, out=out)
        torch.empty(2, out=kept[:2])
    assert x.tolist() == [[0, 1, 2, 3], [8, 10, 12, 14], [16, 18, 20, 22]]
    assert out.tolist() == [6, 44, 76]
    assert kept.tolist() == [0] * 6


def test_afterwards_allocations_are_left_alone() -> None:
    with poisoned_allocations(Poison.HIGH), poisoned_allocations(Poison.LOW):
        assert len(_get_current_dispatch_mode_stack()) == 2
    with pytest.raises(ValueError, match="inside"), poisoned_allocations(Poison.HIGH):
        raise ValueError("inside")
    assert not _get_current_dispatch_mode_stack()


# --- how much is held ----------------------------------------------------------------------------

CPU = torch.device("cpu")
HELD: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "nothing": (lambda given: None, 0),
    "a scalar": (lambda given: torch.zeros(()), 4),
    "one after another": (lambda given: [torch.ones(100).sum().item() for _ in range(3)], 404),
    "one beside another": (lambda given: [torch.ones(100) for _ in range(3)], 1200),
    "the larger of two, apart": (lambda given: [torch.ones(n).numel() for n in (9, 5)], 36),
    "views": (lambda given: [given[1:], given.T, given.view(-1), given.detach()], 0),
    "views of a result": (lambda given: torch.ones(100)[::2].unsqueeze(0).expand(5, -1), 400),
    "what is written in place": (lambda given: given.add_(1).mul_(2).zero_(), 0),
    "what is written to an output": (lambda given: torch.add(given, 1, out=given), 0),
    "temporaries": (lambda given: (given + 1) * 2 + 3, 2 * 48),
    "several results": (lambda given: torch.sort(torch.ones(10)), 40 + 40 + 80),
    "a smaller type": (lambda given: given.half(), 24),
    "an expanded scalar": (lambda given: torch.zeros(1).expand(1000), 4),
    "uninitialised memory": (lambda given: torch.empty_strided((10,), (3,)), 112),
    "growth": (lambda given: torch.zeros(10).resize_(30), 120),
    "another's storage": (lambda given: torch.empty(0).set_(given.untyped_storage()), 0),
}


@pytest.mark.parametrize("what", HELD)
def test_the_peak_of_what_is_held(what: str) -> None:
    (act, held), given = HELD[what], torch.zeros(3, 4)
    with peak_allocation(CPU) as peak:
        kept = act(given)
    assert peak.bytes == held
    del kept


def test_a_view_keeps_what_it_shows() -> None:
    with peak_allocation(CPU) as peak:
        kept = torch.ones(100)[:1]
        torch.ones(50)
        assert peak.bytes == 600
        del kept
        torch.ones(120)
        assert peak.bytes == 600
        torch.ones(151)
    assert peak.bytes == 604


def test_what_came_before_is_not_held() -> None:
    """Not even where nothing outside holds it any more."""
    before = torch.ones(1000)
    with peak_allocation(CPU) as peak:
        view = before[1:]
        del before
        part = view[:10] + 1
    assert peak.bytes == part.nbytes == 40


def test_poison_is_not_counted() -> None:
    with poisoned_allocations(Poison.LOW), peak_allocation(CPU) as peak:
        torch.empty(100)
    assert peak.bytes == 400
    with peak_allocation(CPU) as peak, poisoned_allocations(Poison.LOW):
        torch.empty(100)
    assert peak.bytes == 400
    assert not _get_current_dispatch_mode_stack()


# --- what a call reaches by as_strided -----------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_as_strided_reaches_outside_a_view_is_told(layout: Layout) -> None:
    placed = place(sample((3, 4), torch.int32, layout), layout, Poison.LOW, CPU)
    view = placed.view
    start = view.storage_offset()
    with inside_views({"other": place(view, "padded", Poison.LOW, CPU)}):
        view.as_strided((1,), (1,), start - 1)  # of a tensor that nobody looks at
    with inside_views({"rows": placed}):
        view.as_strided(view.shape, view.stride())
        view.as_strided((2, 4), view.stride())
        for reached in (start - 1, start + 1 + sum(view.stride()[d] * (3, 4)[d] for d in (0, 1))):
            with pytest.raises(OutsideView, match="as_strided reaches outside rows"):
                view.as_strided((1,), (1,), reached)
