"""The one way a case meets an implementation: called under watch, twice, over different poisons."""

import traceback
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

from golden.model import Operation, Tensor, Vector
from kernels.catalog import Implementation, signatures
from suites.cases import ROWS, SPECIFICATIONS, Case, to_golden, to_torch
from suites.comparison import difference, same_bits
from suites.verdicts import Nonconformance
from suites.watch.interpreter import KernelFault, watched
from suites.watch.memory import Placed, Poison, place, poisoned_allocations


class Runner:
    """Calls one implementation's operations on one device, and counts the cases it has judged."""

    def __init__(self, implementation: Implementation, device: torch.device) -> None:
        self.implementation = implementation
        self.device = device
        self.cases = 0
        self.unsupported = False  # whether an operation was asked for that it lacks
        self.launched: set[str] = set()

    @property
    def interpreted(self) -> bool:
        """Whether its calls so far ran in Triton's interpreter, which takes a millisecond a row."""
        return self.device.type == "cpu" and bool(self.launched)

    @property
    def name(self) -> str:
        return self.implementation.name

    def judge(self, case: Case, expected: torch.Tensor | None = None) -> torch.Tensor:
        """Call, and compare with the oracle's result, or with ``expected`` where one is given."""
        actual = self.call(case)
        if expected is None:
            expected = case.expected()
        found = difference(expected, actual, case.bound())
        if found is not None:
            raise Nonconformance(
                found.statement, case, expected=expected, actual=actual, row=found.row
            )
        return actual

    def call(self, case: Case) -> torch.Tensor:
        """The result, on the CPU: what the call returned, or its in-place buffer afterwards.

        Raises Nonconformance when the call fails or refuses, when it writes to an input or outside
        a tensor's view, reads or leaves behind what it must not, or runs another kernel than it
        declares. Skips the test when there is no such operation.
        """
        low = self._call_once(case, Poison.LOW)
        high = self._call_once(case, Poison.HIGH)
        if not same_bits(low, high):
            found = difference(low, high)
            raise Nonconformance(
                "the result depends on memory that the call did not write or must not read "
                "(expected: over one poison, actual: over another)",
                case,
                expected=low,
                actual=high,
                row=found.row if found else None,
            )
        self.cases += 1
        return low

    def require(self, case: Case, holds: bool, statement: str, actual: torch.Tensor) -> None:
        """Raises Nonconformance, showing the result, unless the statement about it holds."""
        if not holds:
            raise Nonconformance(statement, case, actual=actual)

    def require_same(
        self, case: Case, expected: torch.Tensor, actual: torch.Tensor, statement: str
    ) -> None:
        """Require two results of this implementation, the second that of ``case``, to be equal."""
        found = difference(expected, actual)
        if found is not None:
            raise Nonconformance(
                f"{statement}: {found.statement}",
                case,
                expected=expected,
                actual=actual,
                row=found.row,
            )

    def judge_vector(self, case: Case, vector: Vector) -> None:
        """Require the vector's expected value, or that the call is refused."""
        if vector.refusal is not None:
            self.refuse(case)
        elif isinstance(vector.expected, Tensor):
            self.judge(case, to_torch(vector.expected))
        else:
            self.judge(case, case.result(vector.expected))

    def refuse(self, case: Case) -> None:
        """Require ValueError, and that nothing was written (R-W4)."""
        function, placed, arguments = self._prepare(case, Poison.LOW)
        try:
            with watched():
                returned = function(*arguments)
        except ValueError:
            pass
        except (Exception, SystemExit) as error:
            raise Nonconformance(
                f"the call must be refused with ValueError; it raised {_one_line(error)}", case
            ) from error
        else:
            actual = returned.cpu() if isinstance(returned, torch.Tensor) else None
            raise Nonconformance(
                "the call must be refused with ValueError; it was accepted", case, actual=actual
            )
        for name, tensor in placed.items():
            if tensor.changed() or tensor.damage():
                raise Nonconformance(f"the refused call wrote to {name}", case)
        self.cases += 1

    def _call_once(self, case: Case, poison: Poison) -> torch.Tensor:
        function, placed, arguments = self._prepare(case, poison)
        in_place = case.specification.in_place
        try:
            with poisoned_allocations(poison), watched() as watch:
                returned = function(*arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except KernelFault as fault:
            raise Nonconformance(str(fault), case) from fault
        except ValueError as error:
            raise Nonconformance(f"a legal call was refused: {_one_line(error)}", case) from error
        except (Exception, SystemExit) as error:
            raise Nonconformance(
                f"the call raised {_one_line(error)}", case, status="crashed"
            ) from error
        for name, tensor in placed.items():
            if name != in_place and tensor.changed():
                raise Nonconformance(f"the call changed its input {name}", case)
            if damage := tensor.damage():
                raise Nonconformance(f"the call wrote outside {name}: {damage}", case)
        self.launched.update(watch.launches)
        self._require_kernel(case, watch.launches)
        if in_place is not None:
            return placed[in_place].view.cpu().clone()
        if case.operation in ROWS and not isinstance(returned, torch.Tensor):
            raise Nonconformance(f"the call returned {type(returned).__name__}, no tensor", case)
        result = self._result(case, returned)
        if case.operation in ROWS and result.device.type != self.device.type:
            raise Nonconformance(f"the result is on {result.device}, not {self.device}", case)
        return result.cpu()

    def _result(self, case: Case, returned: object) -> torch.Tensor:
        """What a call returned, as a tensor."""
        try:
            return case.result(returned)
        except (TypeError, ValueError, RuntimeError) as error:
            kind = type(returned).__name__
            raise Nonconformance(f"the call returned {kind}, which is no result", case) from error

    def _prepare(
        self, case: Case, poison: Poison
    ) -> tuple[Callable[..., Any], dict[str, Placed], list[Any]]:
        function = self.implementation.operations.get(case.operation)
        if function is None:
            self.unsupported = True
            pytest.skip(f"{self.name} has no {case.operation}")
        placed = {
            name: place(to_torch(value), value.layout, poison, self.device)
            for name, value in case.inputs.items()
            if isinstance(value, Tensor)
        }
        arguments = [
            placed[name].view if name in placed else case.number(name)
            for name in signatures()[case.operation].parameters
        ]
        return function, placed, arguments

    def _require_kernel(self, case: Case, launches: list[str]) -> None:
        """Which kernel ran is asserted: a silent fall-back to something else is a failure."""
        kernel = self.implementation.kernels.get(case.operation)
        if kernel is None:
            return
        others = [launch for launch in launches if launch != kernel]
        if others or (not launches and not case.passes_through):
            ran = ", ".join(launches) or "no Triton kernel"
            raise Nonconformance(f"{ran} ran, not {kernel}", case)


def _one_line(error: BaseException) -> str:
    """The exception, and where in the implementation it came from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({frame.filename}:{frame.lineno})"


def _oracle(operation: Operation) -> Callable[..., Any]:
    """The oracle of an operation, called with tensors as an implementation is."""
    names = list(signatures()[operation].parameters)

    def call(*arguments: Any) -> torch.Tensor | None:
        inputs = {
            name: to_golden(value) if isinstance(value, torch.Tensor) else value
            for name, value in zip(names, arguments, strict=True)
        }
        case = Case(operation, inputs)
        result = case.expected()
        in_place = case.specification.in_place
        if in_place is None:
            return result
        arguments[names.index(in_place)].copy_(result)
        return None

    return call


ORACLE: Final = Implementation(
    "oracle", {operation: _oracle(operation) for operation in SPECIFICATIONS}
)
