"""Which kernels a call launches and, of Triton's under ``TRITON_INTERPRET=1``, what they touch.

The interpreter reads and writes memory through four functions of one C++ module, whatever its
version (3.4 to 3.9). A stand-in for that module sees every access before it happens.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import Kernel
from kernels.worker import operations
from suites.watch.launch import Access, KernelFault, Launch, Program

__all__ = ["KernelFault", "Watch", "fold_reductions", "watched"]


@dataclass
class Watch:
    """``launches``: the names of the kernels launched so far, in order, of each language."""

    launches: list[str] = field(default_factory=list)
    fault: KernelFault | None = None


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch the kernels launched inside, those of Triton and those of CUDA C++ in `kernels.cuda`.

    Compiled kernels are recorded, and so are those of CUDA C++, without template arguments.
    Those that a worker says it launched are recorded too.
    Interpreted ones are recorded and checked. A kernel may touch the elements of its tensor
    arguments (of the views, not of their storage) and nothing else.
    Two programs of one launch may not write one element, nor one write what another reads, unless
    both accesses are atomic; that a program waits for another through an atomic is not understood.
    Accesses are told apart by element: programs that share one element's bytes race. Lanes that
    are masked off are not looked at.

    A fault ends its launch before the access happens. Raises KernelFault on leaving, whatever
    became of the error inside: a caller who swallows it cannot hide it.
    """
    watch = Watch()
    with ExitStack() as observers:
        observers.enter_context(_cuda_launches(watch))
        observers.enter_context(patch.object(operations, "launched", watch.launches.extend))
        try:
            interpreter = import_module("triton.runtime.interpreter")
            knobs = import_module("triton.knobs")
        except ImportError:
            pass
        else:
            observers.enter_context(_compiled_launches(watch, knobs.runtime))
            observers.enter_context(_interpreted_launches(watch, interpreter))
        try:
            yield watch
        except Exception:  # the interpreter wraps what a kernel raises
            if watch.fault is not None:
                raise watch.fault from None
            raise
        if watch.fault is not None:
            raise watch.fault


@contextmanager
def _cuda_launches(watch: Watch) -> Iterator[None]:
    launch = Kernel.launch

    def note_and_launch(kernel: Kernel, *arguments: Any, **named: Any) -> None:
        watch.launches.append(kernel.name.partition("<")[0])
        launch(kernel, *arguments, **named)

    with patch.object(Kernel, "launch", note_and_launch):
        yield


@contextmanager
def _compiled_launches(watch: Watch, runtime: Any) -> Iterator[None]:
    hook = runtime.launch_enter_hook

    def note(launch: Any) -> None:
        watch.launches.append(launch.get()["name"])

    def note_and_pass_on(launch: Any) -> None:
        note(launch)
        if hook is not None:
            hook(launch)

    if hasattr(hook, "add"):  # a chain of hooks; 3.4 has a plain attribute
        hook.add(note)
        try:
            yield
        finally:
            hook.remove(note)
    else:
        with patch.object(runtime, "launch_enter_hook", note_and_pass_on):
            yield


@contextmanager
def _interpreted_launches(watch: Watch, interpreter: Any) -> Iterator[None]:
    executor = interpreter.GridExecutor
    builder = interpreter.interpreter_builder
    guard = _Guard(interpreter, watch)
    host_arguments = executor._init_args_hst

    def launch(self: Any, arguments: Any, named: Any) -> Any:
        on_host, named_on_host = host_arguments(self, arguments, named)
        arguments = {**dict(zip(self.arg_names, on_host, strict=False)), **named_on_host}
        watch.launches.append(self.fn.__name__)
        guard.launch = Launch(self.fn.__name__, arguments)
        return on_host, named_on_host

    with ExitStack() as patches:
        patches.enter_context(patch.object(interpreter, "_interpreter", guard))
        patches.enter_context(patch.object(executor, "_init_args_hst", launch))
        # Newer versions have these, and carry them out as plain loads and stores.
        for name in ("create_atomic_load", "create_atomic_store", "create_atomic_poll"):
            if hasattr(builder, name):
                atomic = guard.as_atomic(getattr(builder, name))
                patches.enter_context(patch.object(builder, name, atomic))
        yield


class _Guard:
    """Stands in for the interpreter's C++ module: checks an access, then has it carried out."""

    def __init__(self, interpreter: Any, watch: Watch) -> None:
        self.launch = Launch("no kernel", {})
        self._real = interpreter._interpreter
        self._builder = interpreter.interpreter_builder
        self._watch = watch
        self._atomic = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check("load", pointers, mask, np.dtype(dtype).itemsize)
        return self._real.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        self._check("store", pointers, mask, values.itemsize)
        return self._real.store(pointers, values, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        self._check("atomic", pointers, mask, values.itemsize)
        return self._real.atomic_rmw(operation, pointers, values, mask, order)

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        self._check("atomic", pointers, True, values.itemsize)
        return self._real.atomic_cas(pointers, expected, values, order)

    def as_atomic(self, create: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(create)
        def atomically(*arguments: Any, **named: Any) -> Any:
            self._atomic = True
            try:
                return create(*arguments, **named)
            finally:
                self._atomic = False

        return atomically

    def _check(self, access: Access, pointers: Any, mask: Any, width: int) -> None:
        addresses = np.asarray(pointers, np.uint64).view(np.int64)
        active = np.asarray(mask, np.bool_)
        if not active.all():
            addresses = addresses[np.broadcast_to(active, addresses.shape)]
        if not addresses.size:
            return
        program = Program(self._builder.grid_idx, self._builder.grid_dim)
        try:
            self.launch.check(
                "atomic" if self._atomic else access, addresses.ravel(), width, program
            )
        except KernelFault as fault:
            self._watch.fault = self._watch.fault or fault
            raise


# --- reductions ----------------------------------------------------------------------------------


def fold_reductions() -> None:
    """Make the interpreter reduce with a user's combine function by vectors, not by elements.

    ``tl.reduce`` then combines adjacent pairs, in order, until one is left: only associativity
    is assumed, as on a device. May be called any number of times; without Triton, does nothing.
    """
    try:
        interpreter = import_module("triton.runtime.interpreter")
    except ImportError:
        return
    by_elements = interpreter.ReduceOps.generic_reduce
    if hasattr(by_elements, "__wrapped__"):
        return

    @wraps(by_elements)
    def generic_reduce(self: Any, operands: tuple[Any, ...]) -> list[Any]:
        try:
            with patch.object(
                interpreter.tl.core.tensor, "__bool__", _refuse_to_branch, create=True
            ):
                return _fold(interpreter, self, operands)
        except Exception:  # a combine function that branches, or fails, which it then does again
            reduced: list[Any] = by_elements(self, operands)
            return reduced

    interpreter.ReduceOps.generic_reduce = generic_reduce


def _refuse_to_branch(tensor: Any) -> bool:
    # The interpreter takes any vector for true; its elements may differ.
    if tensor.handle.data.size != 1:
        raise ValueError("a vector has no single truth value")
    return bool(tensor.handle.data)


def _fold(interpreter: Any, reduction: Any, operands: tuple[Any, ...]) -> list[Any]:
    whole = reduction.axis is None
    axis = 0 if whole else reduction.axis
    tensor, handle = interpreter.tl.core.tensor, interpreter.TensorHandle

    def vectors(columns: list[NDArray[Any]]) -> list[Any]:
        # A scalar type, as an element has, asks nothing of the shape: halves may be odd.
        return [
            tensor(handle(np.ascontiguousarray(column), operand.dtype), operand.dtype)
            for column, operand in zip(columns, operands, strict=True)
        ]

    data = [operand.handle.data for operand in operands]
    columns = [np.moveaxis(x.reshape(-1) if whole else x, axis, 0) for x in data]
    while (length := len(columns[0])) > 1:
        even = length - length % 2
        left = [column[0:even:2] for column in columns]
        right = [column[1:even:2] for column in columns]
        combined = reduction.combine_fn.fn(*vectors(left), *vectors(right))
        if not isinstance(combined, tuple):
            combined = (combined,)
        for i, result in enumerate(combined):
            values = result.handle.data if isinstance(result, tensor) else result
            values = np.broadcast_to(values, left[i].shape).astype(columns[i].dtype)
            columns[i] = np.concatenate([values, columns[i][even:]])

    reduced = [column[0] for column in columns]
    if reduction.keep_dims:
        ranks = [x.ndim for x in data]
        reduced = [
            np.reshape(x, (1,) * rank) if whole else np.expand_dims(x, axis)
            for x, rank in zip(reduced, ranks, strict=True)
        ]
    return [reduction.to_tensor(x, y.dtype) for x, y in zip(reduced, operands, strict=True)]
