"""A worker that is started again whenever it is lost, until one operation has lost it too often."""

import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from kernels.worker.process import Buffer, Process, WorkerFault
from kernels.worker.protocol import VERSION, Call, Error, Hello, Introduction, Refusal, Returned

PATIENCE: Final = 3  # faults in a row on one operation
START_LIMIT: Final = 120.0  # seconds until the first answer: an import of torch, on a slow disk

Message = TypeVar("Message")
ANSWERS: Final = msgspec.json.Decoder(Returned | Refusal | Error)
INTRODUCTIONS: Final = msgspec.json.Decoder(Introduction | Error)


class WorkerUnusable(Exception):  # noqa: N818 - one line for whoever asked for it
    """A worker that cannot be started, or does not introduce itself."""


class GivenUp(Exception):  # noqa: N818 - a reason not to run a call
    """The operation has lost the worker several times in a row, and is not called any more."""


class Worker:
    """Carries out calls in a process.

    ``hello``: the first message to it. ``time_limit``: seconds a call. ``log``: the file that has
    what it writes to stderr; it is removed at the end if that is nothing.
    Raises WorkerUnusable when there is no way to begin.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        hello: Hello,
        time_limit: float,
        log: Path | None,
    ) -> None:
        self._command, self._environment, self._folder = command, environment, folder
        self._hello, self._time_limit = hello, time_limit
        self._log = _log(log)
        self._number = 0
        self._faults: Counter[str] = Counter()  # in a row, by operation
        self._process: list[Process] = []  # none or one
        self._finalizer = weakref.finalize(self, _close, self._process, self._log, log)
        try:
            self.introduction = self._start()
        except WorkerFault as fault:
            self.close()
            raise WorkerUnusable(str(fault)) from None
        except OSError as error:
            self.close()
            raise WorkerUnusable(f"{error.filename} cannot be started: {error.strerror}") from None

    def close(self) -> None:
        """The end of the process; it comes by itself when the interpreter ends."""
        self._finalizer()

    def call(self, call: Call, buffers: Sequence[Buffer]) -> tuple[Returned | Refusal, bytearray]:
        """The reply to a call, which gets its number here, and the buffers of the reply.

        Raises WorkerFault when the call is not carried out, and GivenUp when it is not tried.
        """
        operation = call.operation
        if self._faults[operation] >= PATIENCE:
            raise GivenUp(
                f"{operation} has lost its worker {PATIENCE} times in a row and is not called again"
            )
        self._number += 1
        request = msgspec.structs.replace(call, number=self._number)
        try:
            process = self._running()
            answer = process.exchange(msgspec.json.encode(request), buffers, self._time_limit)
            reply = _decoded(process, answer[0], ANSWERS)
            if reply.number != self._number:
                raise self._lost(
                    process, f"it answered call {reply.number} when asked for call {self._number}"
                )
        except WorkerFault:
            self._process.clear()
            self._faults[operation] += 1
            raise
        except BaseException:
            self._process.clear()
            raise
        self._faults[operation] = 0
        if isinstance(reply, Error):
            raise WorkerFault(f"the call raised {reply.message}", "crashed")
        return reply, answer[1]

    def lose(self, operation: str, statement: str) -> WorkerFault:
        """The fault of a reply to the last call that says one thing and holds another."""
        self._faults[operation] += 1
        process = self._process.pop()
        return self._lost(process, statement)

    def _lost(self, process: Process, statement: str) -> WorkerFault:
        process.kill()
        return process.fault(statement)

    def _running(self) -> Process:
        if not self._process:
            try:
                self._start()
            except OSError as error:
                raise WorkerFault(
                    f"the worker cannot be started again: {error}", "crashed"
                ) from None
        return self._process[0]

    def _start(self) -> Introduction:
        process = Process(self._command, self._environment, self._folder, self._log)
        self._process.append(process)
        try:
            header, _ = process.exchange(msgspec.json.encode(self._hello), (), START_LIMIT)
            answer = _decoded(process, header, INTRODUCTIONS)
        except BaseException:
            self._process.clear()
            raise
        if isinstance(answer, Introduction) and answer.protocol == VERSION:
            return answer
        self._process.clear()
        process.kill()
        if isinstance(answer, Error):
            raise WorkerFault(answer.message, "crashed")
        raise WorkerFault(
            f"it speaks version {answer.protocol} of the protocol, not {VERSION}", "failed"
        )


def _decoded(
    process: Process, header: bytearray, decoder: msgspec.json.Decoder[Message]
) -> Message:
    try:
        return decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        process.kill()
        raise process.fault(f"its reply is no message, {error}") from None


def _log(path: Path | None) -> IO[bytes]:
    """A file to append to, empty now."""
    if path is None:
        return tempfile.TemporaryFile()
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    return os.fdopen(os.open(path, flags, 0o644), "r+b", buffering=0)


def _close(processes: list[Process], log: IO[bytes], path: Path | None) -> None:
    for process in processes:
        process.close()
    processes.clear()
    empty = os.fstat(log.fileno()).st_size == 0
    log.close()
    if path is not None and empty:
        path.unlink(missing_ok=True)
