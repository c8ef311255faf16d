"""The one way a case meets an implementation: called under watch, twice, over different poisons."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NoReturn

import hypothesis
import pytest
import torch

from golden.model import Operation, Tensor, Value, Vector
from kernels.catalog import Implementation, signatures
from kernels.cuda import LaunchFault, ToolchainMissing, scheduled
from kernels.worker.operations import Refused
from kernels.worker.process import WorkerFault
from kernels.worker.serve import one_line
from kernels.worker.supervision import GivenUp
from suites.capabilities import lacking, refusable_sizes
from suites.cases import (
    SPECIFICATIONS,
    Bounds,
    Case,
    Results,
    number,
    real,
    to_golden,
    to_torch,
    undisclosed,
)
from suites.comparison import difference, error_ratio, same_bits
from suites.deviating import Deviating
from suites.verdicts import Nonconformance
from suites.watch.interpreter import KernelFault, Watch, watched
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

FAULTS: Final = 5  # of a worker, in one test: making the case smaller costs a worker each time


class Runner:
    """Calls one implementation's operations on one device, and counts the cases it has judged.

    ``deviating``: what is declared of it in the test. Where a call fails as declared, a test of
    hypothesis is done with the example (`suites.deviating.setting_aside`), and any other test goes
    on, with the oracle's results in the place of the implementation's.
    """

    def __init__(
        self,
        implementation: Implementation,
        device: torch.device,
        deviating: Deviating | None = None,
    ) -> None:
        self.implementation = implementation
        self.device = device
        self.deviating = deviating or Deviating()
        self.cases = 0
        self.error_ratio: float | None = None  # the largest |error| / bound so far
        self.unsupported = False  # whether a call was asked for that it does not support
        self.launched: set[str] = set()
        self.lost_worker: Nonconformance | None = None  # the last call that did
        self._faults: dict[str, WorkerFault] = {}  # by the digest of the case

    @property
    def interpreted(self) -> bool:
        """Whether its kernels so far ran in software, which can take a millisecond a row."""
        return self.device.type == "cpu" and bool(self.launched)

    @property
    def name(self) -> str:
        return self.implementation.name

    def judge(self, case: Case, expected: Results | None = None) -> Results:
        """Call, and compare with the oracle's results, or with ``expected`` where they are given.

        Floats may be off by the bounds of the case, whoever worked out what is expected.
        """
        actual = self.call(case)
        if expected is None:
            expected = case.expected()
        return self.require_close(case, expected, actual, case.bounds(self.implementation.dot))

    def require_close(
        self,
        case: Case,
        expected: Results,
        actual: Results,
        bounds: Bounds,
        statement: str = "",
    ) -> Results:
        """Require results of calls, as ``case`` has them, to be within ``bounds`` of others.

        Returns those to go on with.
        """
        found = difference(case.specification.results, expected, actual, bounds)
        if found is not None:
            failure = Nonconformance(
                f"{statement}: {found.statement}" if statement else found.statement,
                case,
                expected=expected,
                actual=actual,
                bounds=bounds,
                row=found.row,
            )
            self._fail(failure)
            return expected
        ratios = [self.error_ratio, error_ratio(expected, actual, bounds)]
        self.error_ratio = max((ratio for ratio in ratios if ratio is not None), default=None)
        return actual

    def call(self, case: Case) -> Results:
        """The results, on the CPU: what the call returned, or its in-place buffer afterwards.

        Raises Nonconformance when the call fails or refuses, when it writes to an input or outside
        a tensor's view, reads or leaves behind what it must not, or runs another kernel than it
        declares; and when its result is that of an earlier call, or not yet complete. Leaves the
        test or the example when the call is not supported.
        """
        try:
            results = self._call_twice(case)
        except Nonconformance as failure:
            self._fail(failure)
            return case.expected()
        self.deviating.judged(case)
        self.cases += 1
        return results

    def _call_twice(self, case: Case) -> Results:
        held, low = self._call_once(case, Poison.LOW)
        held_too, high = self._call_once(case, Poison.HIGH)
        if _storages(held) & _storages(held_too):
            raise Nonconformance("two calls returned the same memory", case)
        if not same_bits(low, _copies(held)):
            raise Nonconformance(
                "the result of a call was written to after the call had returned",
                case,
                expected=low,
                actual=_copies(held),
            )
        if not same_bits(low, high):
            found = difference(case.specification.results, low, high)
            raise Nonconformance(
                "the result depends on memory that the call did not write or must not read "
                "(expected: over one poison, actual: over another)",
                case,
                expected=low,
                actual=high,
                row=found.row if found else None,
            )
        return low

    def judge_again(self, case: Case, other: Case) -> None:
        """Call ``case``, and then ``other`` over the same memory: the second result is judged.

        ``other`` has tensors of the same shapes, types and layouts, and the same numbers.
        """
        call = self.place(case)
        call()
        for name, tensor in self.place(other).tensors.items():
            overwrite(call.tensors[name], tensor)
        actual = _copies(call())
        bounds = other.bounds(self.implementation.dot)
        self.require_close(other, other.expected(), actual, bounds, "over memory used before")
        self.cases += 1

    def peak(self, case: Case) -> int:
        """How many bytes a call holds at its peak, beside its inputs: what it returns included.

        The call is one more, undisturbed by poison, after one that is watched and judged. Leaves
        the test where it is made in a worker, whose memory nobody counts.
        """
        if self.implementation.worker is not None:
            pytest.skip(f"{self.name} runs in a worker: what a call holds there is not seen")
        self.call(case)
        call = self.place(case)
        with peak_allocation(self.device) as peak:
            call.function(*call.arguments)
        return peak.bytes

    def require(self, case: Case, holds: bool, statement: str, actual: Results) -> None:
        """Raises Nonconformance, showing the results, unless the statement about them holds."""
        if not holds:
            self._fail(Nonconformance(statement, case, actual=actual))

    def require_same(self, case: Case, expected: Results, actual: Results, statement: str) -> None:
        """Require two results of this implementation, the second that of ``case``, to be equal."""
        found = difference(case.specification.results, expected, actual)
        if found is not None:
            failure = Nonconformance(
                f"{statement}: {found.statement}",
                case,
                expected=expected,
                actual=actual,
                row=found.row,
            )
            self._fail(failure)

    def judge_vector(self, case: Case, vector: Vector) -> None:
        """Require the vector's expected value, or that the call is refused."""
        if vector.refusal is not None:
            self.refuse(case, case.at_fault(vector.refusal.argument))
        elif isinstance(vector.expected, tuple):
            self.judge(case, tuple(map(to_torch, vector.expected)))
        elif isinstance(vector.expected, Tensor):
            self.judge(case, (to_torch(vector.expected),))
        else:
            self.judge(case, case.results(vector.expected))

    def refuse(self, case: Case, naming: str | tuple[str, ...] = ()) -> None:
        """Require ValueError, and that nothing was written (R-W4).

        ``naming``: the argument at fault, which the message must name, or one of several.
        """
        try:
            self._require_refusal(case, naming)
        except Nonconformance as failure:
            self._fail(failure)

    def _require_refusal(self, case: Case, naming: str | tuple[str, ...]) -> None:
        refusal = self._refusal(case)
        if refusal is None:
            raise Nonconformance("the call must be refused with ValueError; it was accepted", case)
        names = (naming,) if isinstance(naming, str) else naming
        if names and not any(re.search(rf"\b{name}\b", str(refusal)) for name in names):
            raise Nonconformance(
                f"the refusal must name {' or '.join(names)}; it says {_one_line(refusal)}", case
            )

    def accepts(self, case: Case) -> bool:
        """Whether the call is let through. One that is refused is judged, and must write nothing.

        Raises Nonconformance when it is refused by another exception than ValueError.
        """
        try:
            return self._refusal(case) is None
        except Nonconformance as failure:
            self._fail(failure)
            return False

    def _fail(self, failure: Nonconformance) -> None:
        """Raise it, unless it is declared and nobody else sets it aside."""
        if hypothesis.currently_in_test_context() or not self.deviating.cover(failure):
            raise failure

    def _refusal(self, case: Case) -> ValueError | None:
        call = self.place(case)
        try:
            with scheduled(int(case.digest, 16)), watched():
                call.function(*call.arguments)
        except ToolchainMissing as missing:
            pytest.skip(str(missing))
        except (WorkerFault, GivenUp) as fault:
            self._leave_worker(case, fault)
        except ValueError as refusal:
            self._require_unwritten(case, call.placed)
            if lack := lacking(self.implementation, case, call.tensors):
                self._leave(f"{self.name} lacks {lack}, and refuses {case.operation}: {refusal}")
            self.deviating.judged(case)
            self.cases += 1
            return refusal
        except (Exception, SystemExit) as error:
            raise Nonconformance(
                f"the call must be refused with ValueError; it raised {_one_line(error)}", case
            ) from error
        return None

    def _call_once(self, case: Case, poison: Poison) -> tuple[Results, Results]:
        """What the call returned, where it lies, and a copy of it on the CPU."""
        call = self.place(case, poison)
        with self._attempt(call) as watch:
            with poisoned_allocations(poison), inside_views(call.placed):
                returned = call.function(*call.arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        in_place = case.specification.in_place
        for name, tensor in call.placed.items():
            if name != in_place and tensor.changed():
                raise Nonconformance(f"the call changed its input {name}", case)
            if damage := tensor.damage():
                raise Nonconformance(f"the call wrote outside {name}: {damage}", case)
        results = self._results(call, returned)
        self._require_kernel(case, watch.launches, results)
        return results, _copies(results)

    @contextmanager
    def _attempt(self, call: "Call") -> Iterator[Watch]:
        """What goes wrong inside is a verdict on the case, or a reason to leave it."""
        case = call.case
        try:
            with (
                undisclosed(self.implementation is not ORACLE),
                scheduled(int(case.digest, 16)),
                watched() as watch,
            ):
                yield watch
        except ToolchainMissing as missing:
            pytest.skip(str(missing))
        except torch.OutOfMemoryError as short:
            pytest.skip(f"{self.device} has too little memory: {' '.join(str(short).split())}")
        except (KernelFault, LaunchFault, OutsideView) as fault:
            raise Nonconformance(str(fault), case) from fault
        except (WorkerFault, GivenUp) as fault:
            self._leave_worker(case, fault)
        except ValueError as error:
            refusable = (*case.refusable, *refusable_sizes(self.implementation, case))
            lack = lacking(self.implementation, case, call.tensors)
            if lack or any(name in str(error) for name in refusable):
                self._require_unwritten(case, call.placed)
                self._leave(f"{self.name} refuses {case.operation}: {error}")
            raise Nonconformance(f"a legal call was refused: {_one_line(error)}", case) from error
        except (Exception, SystemExit) as error:
            raise Nonconformance(
                f"the call raised {_one_line(error)}", case, status="crashed"
            ) from error
        self.launched.update(watch.launches)
        if lack := lacking(self.implementation, case, call.tensors):
            raise Nonconformance(
                f"it says it lacks {lack} and has it: the call was not refused", case
            )

    def _results(self, call: "Call", returned: object) -> Results:
        """What a call returned, in base e, or its in-place buffer."""
        case, in_place = call.case, call.case.specification.in_place
        if in_place is not None:
            return (call.tensors[in_place],)
        kind = type(returned).__name__
        names = case.specification.results
        each = returned if len(names) > 1 and isinstance(returned, Sequence) else (returned,)
        if not case.specification.plain and not all(isinstance(x, torch.Tensor) for x in each):
            raise Nonconformance(f"the call returned {kind}, no tensor", case)
        for x in each:
            if isinstance(x, torch.Tensor) and type(x) is not torch.Tensor:
                raise Nonconformance(
                    f"the call returned {type(x).__name__}, a subclass of torch.Tensor, which may "
                    "be computed when it is looked at; return a plain one",
                    case,
                )
        try:
            results = case.results(returned)
        except (TypeError, ValueError, RuntimeError) as error:
            raise Nonconformance(f"the call returned {kind}, which is no result", case) from error
        for result, tensor in product(results, call.tensors.values()):
            if not case.specification.plain and result.device != tensor.device:
                raise Nonconformance(f"the result is on {result.device}, not {tensor.device}", case)
        return tuple(
            self._times(result, self._unit) if name == "m" else result
            for name, result in zip(names, results, strict=True)
        )

    def place(
        self,
        case: Case,
        poison: Poison = Poison.LOW,
        large: Mapping[str, torch.Tensor] | None = None,
    ) -> "Call":
        """The case's tensors in memory that is watched, everything else as it is.

        ``large``: tensors by name that are too large for a case and take the place of the case's,
        m in the base of the interface. Leaves the test or the example when there is no such
        operation, and the test when there is not enough memory.
        """
        function = self.implementation.operations.get(case.operation)
        if function is None:
            self._leave(f"{self.name} has no {case.operation}")
        if case.digest in self._faults:
            self._leave_worker(case, self._faults[case.digest])
        if len(self._faults) >= FAULTS and hypothesis.currently_in_test_context():
            hypothesis.reject()
        tensors: dict[str, torch.Tensor] = dict(large or {})
        placed: dict[str, Placed] = {}

        def put(name: str, value: Value) -> Any:
            if isinstance(value, tuple):
                return [put(f"{name}[{i}]", each) for i, each in enumerate(value)]
            plain = number(value)
            if name == "out_dtype":
                return getattr(torch, plain)
            if name == "scale":
                return plain / self._unit
            if not isinstance(plain, Tensor):
                return plain
            if name not in tensors:
                values = to_torch(plain)
                if name == "m_global" or name.startswith("m_chunks"):
                    values = self._times(values, 1 / self._unit)
                placed[name] = place(values, plain.layout, poison, self.device)
                tensors[name] = placed[name].view
            return tensors[name]

        try:
            arguments = [
                put(name, case.inputs[name]) if name in case.inputs else parameter.default
                for name, parameter in signatures()[case.operation].parameters.items()
            ]
        except torch.OutOfMemoryError as short:
            pytest.skip(f"{self.device} has too little memory: {' '.join(str(short).split())}")
        return Call(self, case, function, placed, tensors, arguments)

    @property
    def _unit(self) -> float:
        """One unit of the interface's x and m, in natural units: ln 2 in base 2 (R-X2)."""
        return math.log(self.implementation.exponent_base)

    def _times(self, m: torch.Tensor, factor: float) -> torch.Tensor:
        return m if factor == 1 else (m.double() * factor).to(m.dtype)

    def _leave(self, reason: str) -> NoReturn:
        """Go on with the next example, or without any with the next test."""
        self.unsupported = True
        if hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(reason)

    def _leave_worker(self, case: Case, fault: WorkerFault | GivenUp) -> NoReturn:
        """What a worker did is a verdict on the case. Where none is called any more, go on without.

        A case that has cost a worker is not called again, so that where the search for a smaller
        one stops, it ends with the smallest that was.
        """
        if isinstance(fault, WorkerFault):
            self._faults[case.digest] = fault
            try:
                raise fault  # anew, for hypothesis tells failures apart by where they came from
            except WorkerFault:
                self.lost_worker = Nonconformance(str(fault), case, status=fault.status)
                raise self.lost_worker from fault
        if self._faults and hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(str(fault))

    def _require_unwritten(self, case: Case, placed: Mapping[str, Placed]) -> None:
        for name, tensor in placed.items():
            if tensor.changed() or tensor.damage():
                raise Nonconformance(f"the refused call wrote to {name}", case)

    def _require_kernel(self, case: Case, launches: list[str], results: Results) -> None:
        """Which kernel ran is asserted: a silent fall-back to something else is a failure."""
        kernel = self.implementation.kernels.get(case.operation)
        if kernel is None:
            return
        idle = case.passes_through or not any(result.numel() for result in results)
        others = [launch for launch in launches if launch != kernel]
        if others or (not launches and not idle):
            ran = ", ".join(launches) or "no kernel"
            raise Nonconformance(f"{ran} ran, not {kernel}", case)


@dataclass(frozen=True)
class Call:
    """A case in its place on a device: called as often, and on what stream, its user likes.

    ``tensors``: those of the arguments, by name; ``placed``: of those the ones that are watched.
    """

    runner: Runner
    case: Case
    function: Callable[..., Any]
    placed: Mapping[str, Placed]
    tensors: Mapping[str, torch.Tensor]
    arguments: Sequence[Any]

    def __call__(self) -> Results:
        """What the call returns, or its in-place buffer: on the device, where it may not be ready.

        Nothing is poisoned, waited for or compared. Raises Nonconformance as ``Runner.call`` does
        when the call fails, refuses, or runs another kernel than it declares.
        """
        with self.runner._attempt(self) as watch:
            returned = self.function(*self.arguments)
        results = self.runner._results(self, returned)
        self.runner._require_kernel(self.case, watch.launches, results)
        return results


def _storages(results: Results) -> set[int]:
    """Where the memory of results begins, those without elements left out."""
    return {result.untyped_storage().data_ptr() for result in results if result.numel()}


def _copies(results: Results) -> Results:
    return tuple(result.clone().cpu() for result in results)


def _one_line(error: BaseException) -> str:
    """The exception, and where in the implementation it came from, if it came from this process."""
    if isinstance(error, Refused):
        return f"ValueError: {' '.join(str(error).split())}"
    return one_line(error)


def _oracle(operation: Operation) -> Callable[..., Any]:
    """The oracle of an operation, called with tensors as an implementation is."""
    names = list(signatures()[operation].parameters)

    def call(*arguments: Any) -> Any:
        inputs = {
            name: _value(argument)
            for name, argument in zip(names, arguments, strict=True)
            if argument is not None
        }
        case = Case(operation, inputs)
        results = case.expected()
        in_place = case.specification.in_place
        if in_place is None:
            return results if len(results) > 1 else results[0]
        arguments[names.index(in_place)].copy_(results[0])
        return None

    return call


def _value(argument: Any) -> Any:
    """An argument of a call, as data."""
    if isinstance(argument, torch.Tensor):
        return to_golden(argument)
    if isinstance(argument, list):
        return tuple(map(to_golden, argument))
    if isinstance(argument, torch.dtype):
        return str(argument).removeprefix("torch.")
    return real(argument) if isinstance(argument, float) else argument


ORACLE: Final = Implementation(
    "oracle", {operation: _oracle(operation) for operation in SPECIFICATIONS}
)
