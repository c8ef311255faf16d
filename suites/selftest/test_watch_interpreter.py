"""The watch over Triton kernels sees what they touch, and says nothing of kernels that behave."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable

import pytest
import torch

from suites.watch.interpreter import KernelFault, watched
from suites.watch.memory import Poison, place, poisoned_allocations

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402

if not knobs.runtime.interpret:
    pytest.skip("these kernels are interpreted: set TRITON_INTERPRET=1", allow_module_level=True)


@triton.jit
def copy(
    x: tl.tensor,
    y: tl.tensor,
    shift: tl.tensor,
    readable: tl.tensor,
    writable: tl.tensor,
    size: tl.constexpr,
) -> None:
    at = tl.program_id(0) * size + tl.arange(0, size) + shift
    values = tl.load(x + at, mask=at < readable, other=0)
    tl.store(y + at, values, mask=at < writable)


@triton.jit
def copy_rows(
    x: tl.tensor,
    y: tl.tensor,
    x_row: tl.tensor,
    x_column: tl.tensor,
    y_row: tl.tensor,
    y_column: tl.tensor,
    columns: tl.tensor,
    size: tl.constexpr,
) -> None:
    row, column = tl.program_id(0), tl.arange(0, size)
    values = tl.load(x + row * x_row + column * x_column, mask=column < columns, other=0)
    tl.store(y + row * y_row + column * y_column, values, mask=column < columns)


@triton.jit
def turns(
    x: tl.tensor,
    first: tl.tensor,
    first_stores: tl.constexpr,
    second: tl.tensor,
    second_stores: tl.constexpr,
) -> None:
    """Two programs, by number, take their turn at element 0; the others do nothing."""
    x_programs, y_programs = tl.num_programs(0), tl.num_programs(1)
    me = tl.program_id(0) + x_programs * (tl.program_id(1) + y_programs * tl.program_id(2))
    if me == first:
        tl.store(x, 1) if first_stores else tl.load(x)
    if me == second:
        tl.store(x, 1) if second_stores else tl.load(x)


@triton.jit
def all_load_last_stores(x: tl.tensor, last: tl.tensor) -> None:
    value = tl.load(x)
    if tl.program_id(0) == last:
        tl.store(x, value + 1)


@triton.jit
def store_twice(x: tl.tensor, scratch: tl.tensor) -> None:
    """Each program comes back to its own element, which is nobody else's."""
    mine = scratch + tl.program_id(0)
    tl.store(mine, tl.load(x))
    tl.store(mine, tl.load(mine) + tl.load(x))


@triton.jit
def count(x: tl.tensor, counters: tl.tensor, size: tl.constexpr) -> None:
    values = tl.load(x + tl.program_id(0) * size + tl.arange(0, size))
    tl.atomic_add(counters + values, 1)


@triton.jit
def atomic_and_plain(
    x: tl.tensor, atomic: tl.tensor, plain: tl.tensor, stores: tl.constexpr
) -> None:
    if tl.program_id(0) == atomic:
        tl.atomic_add(x, 1)
    if tl.program_id(0) == plain:
        tl.store(x, 1) if stores else tl.load(x)


@triton.jit
def swap(counters: tl.tensor, index: tl.tensor) -> None:
    tl.atomic_cas(counters + index, 0, 1)


@triton.jit
def publish(flag: tl.tensor) -> None:
    tl.atomic_store(flag, 1)
    tl.atomic_load(flag)


@triton.jit
def publish_then_store(flag: tl.tensor, x: tl.tensor) -> None:
    tl.atomic_store(flag, 1)
    tl.store(x, 1)


@triton.jit
def load_from_either(x: tl.tensor, y: tl.tensor, out: tl.tensor, size: tl.constexpr) -> None:
    lane = tl.arange(0, size)
    tl.store(out + lane, tl.load(tl.where(lane % 2 == 0, x + lane, y + lane)))


@triton.jit
def sum_of_pair(pair: tuple[tl.tensor, ...], y: tl.tensor) -> None:
    tl.store(y, tl.load(pair[0]) + tl.load(pair[1]))


def fault_of(launch: Callable[[], None]) -> str:
    """The one line of the fault that a launch raises."""
    with pytest.raises(KernelFault) as caught, watched():
        launch()
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- kernels that behave -------------------------------------------------------------------------


def test_a_correct_kernel_passes_and_does_its_work() -> None:
    x, y = torch.arange(100), torch.zeros(100, dtype=torch.int64)
    with watched():
        copy[(4,)](x, y, 0, 100, 100, size=32)
    assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float64])
def test_strided_views_may_be_touched_in_full(dtype: torch.dtype) -> None:
    x = torch.arange(60).reshape(10, 6).to(dtype)[1::2, 1::2]
    y = torch.zeros(3, 5, dtype=dtype).T
    with watched():
        copy_rows[(5,)](x, y, *x.stride(), *y.stride(), 3, size=4)
    assert torch.equal(x, y)


def test_a_program_may_come_back_to_its_own_elements() -> None:
    x, scratch = torch.tensor([3]), torch.zeros(5, dtype=torch.int64)
    with watched():
        store_twice[(5,)](x, scratch)
    assert scratch.tolist() == [6] * 5


def test_atomics_do_not_race_with_each_other() -> None:
    counters = torch.zeros(2, dtype=torch.int32)
    with watched():
        count[(4,)](torch.tensor([0, 1] * 8, dtype=torch.int32), counters, size=4)
        swap[(4,)](counters, 0)
    assert counters.tolist() == [8, 8]


@pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="this Triton has no atomic loads")
def test_atomic_loads_and_stores_are_atomics() -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    with watched():
        publish[(3,)](flag)
    assert flag.item() == 1


def test_lanes_that_are_masked_off_are_not_looked_at() -> None:
    x, y = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with watched():
        copy[(2,)](x, y, 1 << 40, 0, 0, size=4)
    assert y.tolist() == [0] * 4


def test_arguments_need_not_be_tensors_or_hold_anything() -> None:
    with watched() as watch:
        for argument in (None, 3, torch.empty(0), torch.empty(4, 0).T):
            turns[(1,)](argument, 9, True, 9, False)
    assert watch.launches == ["turns"] * 4


def test_a_launch_does_not_race_with_the_one_before() -> None:
    x, y = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with watched():
        copy[(1,)](x, y, 0, 4, 4, size=4)
        copy[(2,)](x, y, 0, 4, 4, size=2)
        copy[(2,)](y, x, 0, 4, 4, size=2)


def test_tensors_in_tuples_and_reinterpreted_ones_are_arguments_too() -> None:
    pair, y = (torch.tensor([1]), torch.tensor([2])), torch.zeros(1, dtype=torch.int64)
    with watched():
        sum_of_pair[(1,)](pair, triton.reinterpret(y, tl.int64))
    assert y.item() == 3


def test_poison_shows_through_a_kernel_that_forgets_a_slot() -> None:
    def forgetful(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        copy[(1,)](x, y, 0, 8, 7, size=8)
        return y

    x = place(torch.arange(8), "offset", Poison.LOW, "cpu")
    for poison in Poison:
        with watched(), poisoned_allocations(poison):
            y = forgetful(x.view)
        assert y.tolist() == [0, 1, 2, 3, 4, 5, 6, poison.of(torch.int64)]
    assert x.damage() is None


def test_tensors_may_be_named() -> None:
    x, y = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with watched():
        copy[(1,)](y=y, x=x, shift=0, readable=4, writable=4, size=4)
    assert torch.equal(x, y)


def test_one_access_may_reach_several_tensors() -> None:
    x, y, out = torch.arange(4), torch.arange(4) + 10, torch.zeros(4, dtype=torch.int64)
    with watched():
        load_from_either[(1,)](x, y, out, size=4)
    assert out.tolist() == [0, 11, 2, 13]
    message = fault_of(lambda: load_from_either[(1,)](x[:2], y[:1], out, size=4))
    assert "(3 of 4 lanes)" in message


def test_overlapping_views_may_differ_in_width() -> None:
    halves = torch.ones(4, dtype=torch.int32)
    whole = halves.view(torch.int64)
    with watched():
        copy[(2,)](whole, halves, 0, 0, 2, size=1)  # two programs, the two halves of one element
        copy[(1,)](halves[:1], whole, 0, 1, 2, size=2)
    assert halves.tolist() == [0, 0, 0, 0]


# --- outside the tensors -------------------------------------------------------------------------


def test_a_load_past_the_end() -> None:
    x, y = torch.arange(100), torch.zeros(128, dtype=torch.int64)
    assert fault_of(lambda: copy[(4,)](x, y, 0, 101, 100, size=32)) == (
        "copy: load by program (3, 0, 0) outside `x` of shape (100,), first at x + 100"
        " (1 of 5 lanes); mask those lanes or correct the offset"
    )


def test_a_store_past_the_end_is_stopped_before_it_happens() -> None:
    x, buffer = torch.arange(128), torch.zeros(128, dtype=torch.int64)
    message = fault_of(lambda: copy[(4,)](x, buffer[:100], 0, 128, 128, size=32))
    assert "store by program (3, 0, 0) outside `y` of shape (100,), first at y + 100" in message
    assert "(28 of 32 lanes)" in message
    assert torch.equal(buffer[:96], x[:96])
    assert not buffer[96:].any()


def test_a_load_before_the_start() -> None:
    x, y = torch.arange(9)[1:], torch.zeros(9, dtype=torch.int64)[1:]
    message = fault_of(lambda: copy[(1,)](x, y, -1, 4, 4, size=4))
    assert "load by program (0, 0, 0) outside `x` of shape (8,), first at x + -1" in message


def test_a_store_into_a_gap_of_a_strided_view() -> None:
    x = torch.arange(8).reshape(2, 4)
    y = torch.zeros(2, 7, dtype=torch.int64)
    gapped = y[:, :3]
    message = fault_of(lambda: copy_rows[(2,)](x, gapped, 4, 1, 7, 1, 4, size=4))
    assert "outside `y` of shape (2, 3) and strides (7, 1), first at y + 3 (1 of 4" in message
    assert not y.any()


def test_an_access_that_is_wider_than_the_element() -> None:
    x, y = torch.arange(3, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    message = fault_of(lambda: copy[(1,)](triton.reinterpret(x, tl.int64), y, 0, 4, 4, size=4))
    assert "outside `x` of shape (3,), first at x + 2 (3 of 4 lanes)" in message
    gapped = torch.arange(8, dtype=torch.int32)[::2]
    message = fault_of(lambda: copy[(1,)](triton.reinterpret(gapped, tl.int64), y, 0, 4, 4, size=4))
    assert "outside `x` of shape (4,) and strides (2,), first at x + 0 (4 of 4 lanes)" in message


def test_an_atomic_outside() -> None:
    counters = torch.zeros(2, dtype=torch.int32)
    message = fault_of(lambda: swap[(1,)](counters, 2))
    assert "swap: atomic by program (0, 0, 0) outside `counters` of shape (2,)" in message
    far = torch.full((4,), 7, dtype=torch.int32)
    assert "first at counters + 7 (4 of 4 lanes)" in fault_of(
        lambda: count[(1,)](far, counters, size=4)
    )


def test_an_access_when_there_is_no_tensor_to_access() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    message = fault_of(lambda: copy[(1,)](nothing, nothing, 0, 4, 4, size=4))
    assert "outside every tensor: it has none" in message


# --- races ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("store", "store", "store by program (1, 0, 1) races with the store by program (0, 2, 1)"),
        ("store", "load", "load by program (1, 0, 1) races with the store by program (0, 2, 1)"),
        ("load", "store", "store by program (1, 0, 1) races with the load by program (0, 2, 1)"),
    ],
)
def test_programs_race_when_one_of_them_stores(first: str, second: str, message: str) -> None:
    # Number 10 of a (2, 3, 2) grid is program (0, 2, 1), number 7 is (1, 0, 1).
    x = torch.zeros(4, dtype=torch.int64)
    text = fault_of(lambda: turns[(2, 3, 2)](x, 10, first == "store", 7, second == "store"))
    assert text == (
        f"turns: {message} on `x` of shape (4,), first at x + 0 (1 of 1 lanes);"
        " let one program own each element, or use atomics"
    )


def test_loads_do_not_race() -> None:
    with watched():
        turns[(2, 3, 2)](torch.zeros(4, dtype=torch.int64), 10, False, 7, False)


def test_overlapping_blocks_race_in_some_lanes() -> None:
    x, y = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    message = fault_of(lambda: copy_rows[(2,)](x, y, 3, 1, 3, 1, 4, size=4))
    assert "store by program (1, 0, 0) races with the store by program (0, 0, 0)" in message
    assert "first at y + 3 (1 of 4 lanes)" in message


def test_a_store_races_with_the_loads_of_several_programs() -> None:
    message = fault_of(lambda: all_load_last_stores[(3,)](torch.zeros(1), 2))
    assert "store by program (2, 0, 0) races with the load by several programs" in message


@pytest.mark.parametrize("plain", ["load", "store"])
def test_an_atomic_races_with_a_plain_access(plain: str) -> None:
    x, stores = torch.zeros(1, dtype=torch.int32), plain == "store"
    with watched():
        atomic_and_plain[(1,)](x, 0, 0, stores)
    assert f"{plain} by program (1, 0, 0) races with the atomic by program (0, 0, 0)" in fault_of(
        lambda: atomic_and_plain[(2,)](x, 0, 1, stores)
    )
    assert f"atomic by program (1, 0, 0) races with the {plain} by program (0, 0, 0)" in fault_of(
        lambda: atomic_and_plain[(2,)](x, 1, 0, stores)
    )


@pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="this Triton has no atomic loads")
def test_after_an_atomic_store_a_plain_one_is_plain() -> None:
    flag, x = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    assert "store by program (1, 0, 0) races with the store by program (0, 0, 0) on `x`" in (
        fault_of(lambda: publish_then_store[(2,)](flag, x))
    )


def test_views_of_one_storage_race_through_each_other() -> None:
    halves = torch.zeros(2, dtype=torch.int32)
    whole = halves.view(torch.int64)
    message = fault_of(lambda: copy[(2,)](halves, whole, 0, 2, 1, size=1))
    assert "load by program (1, 0, 0) races with the store by program (0, 0, 0)" in message
    assert "1 (1 of 1 lanes)" in message
