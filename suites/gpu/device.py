"""What the checks need of a device. The tests of the checks have another one, on the CPU.

Written from the documentation of torch, and not run on a GPU yet.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import torch

from suites.cases import Results

LONG: Final = 200_000_000  # clock cycles: a tenth of a second


class Stream(Protocol):
    """What is put on a stream is done in its order, and in no order with other streams."""

    def synchronize(self) -> None:
        """Wait until all that was put on the stream is done."""
        ...


class Device(Protocol):
    """``name``: the device that tensors are on; ``second``: another one, if there is any."""

    @property
    def name(self) -> torch.device: ...

    @property
    def second(self) -> torch.device | None: ...

    def free_bytes(self) -> int:
        """How much memory can be had."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was put on any stream is done."""
        ...

    def side_stream(self) -> Stream:
        """A stream that no other waits for."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """Inside, work is put on that stream."""
        ...

    def delay(self) -> None:
        """Keep the current stream busy for a while; returns at once."""
        ...

    def capture(self, call: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """What does the call's work again over the same memory, and the results it writes to.

        The call is made a few times before. Raises whatever it raises when it cannot be captured.
        """
        ...


class Cuda:
    """The device of that name, by way of torch."""

    def __init__(self, name: torch.device) -> None:
        self.name = torch.device("cuda", name.index or 0)

    @property
    def second(self) -> torch.device | None:
        others = (n for n in range(torch.cuda.device_count()) if n != self.name.index)
        return next((torch.device("cuda", n) for n in others), None)

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.name)
        return free

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.name)

    def side_stream(self) -> torch.cuda.Stream:
        """Torch's own streams do not wait for the default one."""
        return torch.cuda.Stream(self.name)  # type: ignore[no-untyped-call]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        assert isinstance(stream, torch.cuda.Stream)
        with torch.cuda.stream(stream):
            yield

    def delay(self) -> None:
        # What torch's own tests of streams use: there is no public one.
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]

    def capture(self, call: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        stream = self.side_stream()
        self.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):  # kernels are compiled, libraries loaded
                call()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            results = call()
        return graph.replay, results
