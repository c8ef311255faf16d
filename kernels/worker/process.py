"""A worker's process: frames to it and from it before a deadline, and its end, whatever it is."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Literal

from kernels.worker.protocol import BUFFER_LIMIT, HEADER_LIMIT, MAGIC, PREFIX

Status = Literal["crashed", "timed-out", "failed"]
Buffer = memoryview | bytes | bytearray

PREFIX_OF_IT: Final = "a frame's prefix"
AT_ONCE: Final = 1024  # buffers that one system call writes
LAST_LINES: Final = 3  # of the log, in a message
GRACE: Final = 2.0  # seconds between the end of stdin or stdout and that of the process


class WorkerFault(Exception):  # noqa: N818 - a verdict on the worker
    """What a worker did instead of answering a call. One line; ``status``: of the verdict."""

    def __init__(self, statement: str, status: Status) -> None:
        super().__init__(statement)
        self.status: Status = status


class Process:
    """One process. Raises OSError when it cannot be started.

    ``log``: where its stderr goes. After a fault it is dead, and so are its children.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: IO[bytes]
    ) -> None:
        self._log, self._log_start = log, os.fstat(log.fileno()).st_size
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env=environment,
            bufsize=0,
            start_new_session=True,  # a group of its own: to be ended whole, and not by Ctrl-C
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._stdin, select.POLLOUT)
        self._readable.register(self._stdout, select.POLLIN)

    def exchange(
        self, header: bytes, buffers: Sequence[Buffer], seconds: float
    ) -> tuple[bytearray, bytearray]:
        """Send one frame and wait for another: its JSON and its buffers. Raises WorkerFault."""
        self._limit, self._deadline = seconds, time.monotonic() + seconds
        try:
            prefix = PREFIX.pack(MAGIC, len(header), sum(map(len, buffers)))
            self._write([prefix + header, *buffers])
            magic, header_size, size = PREFIX.unpack(self._read(PREFIX.size, PREFIX_OF_IT))
            if magic != MAGIC:
                raise self.fault(
                    f"it wrote {magic!r} to stdout where a frame begins with {MAGIC!r}"
                )
            if header_size > HEADER_LIMIT or size > BUFFER_LIMIT:
                raise self.fault(
                    f"its reply announces {header_size} bytes of JSON and {size} of buffers; "
                    f"at most {HEADER_LIMIT} and {BUFFER_LIMIT} are taken"
                )
            return self._read(header_size, "a message"), self._read(size, "its buffers")
        except BaseException:  # of whoever waits too: a reply that comes later would be misread
            self.kill()
            raise

    def fault(self, statement: str, status: Status = "failed") -> WorkerFault:
        """What the process did wrong, with the end of its log."""
        return WorkerFault(f"the worker failed: {statement}{self._end_of_log()}", status)

    def close(self) -> None:
        """End of input, at which a worker ends; after a while, its death."""
        self._close_pipes()
        self._ends_by_itself()
        self.kill()

    def kill(self) -> None:
        """The death of the process and of its children, if they still live."""
        if self._process.returncode is None:  # not waited for, so the number is still its own
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close_pipes()

    def _ends_by_itself(self) -> bool:
        """Whether it does within a while; its exit code is still to be waited for."""
        until = time.monotonic() + GRACE
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._process.pid, options) is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, buffers: Sequence[Buffer]) -> None:
        left = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while left:
            try:
                written = os.writev(self._stdin, left[:AT_ONCE])
            except BlockingIOError:
                self._wait(self._writable, "it took its request")
                continue
            except BrokenPipeError:
                raise self._ended("it read the request") from None
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def _read(self, size: int, what: str) -> bytearray:
        read = bytearray(size)
        view, count = memoryview(read), 0
        while count < size:
            missing = "it answered"
            if count or what != PREFIX_OF_IT:
                missing = f"the last {size - count} of the {size} bytes of {what} came"
            self._wait(self._readable, missing)
            got = os.readv(self._stdout, [view[count:]])
            if not got:
                raise self._ended(missing)
            count += got
        return read

    def _wait(self, ready: select.poll, what: str) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise WorkerFault(
                f"the worker was stopped after {self._limit:g} seconds, before {what}"
                f"{self._end_of_log()}",
                "timed-out",
            )

    def _ended(self, before: str) -> WorkerFault:
        """Why nothing comes any more."""
        by_itself = self._ends_by_itself()
        self.kill()
        code = self._process.returncode
        if not by_itself:
            how = "closed its stdout"
        else:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            )
        return WorkerFault(f"the worker {how} before {before}{self._end_of_log()}", "crashed")

    def _end_of_log(self) -> str:
        """The last lines that the process added to the log."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(size - 4096, self._log_start)
        tail = os.pread(self._log.fileno(), 4096, start).decode(errors="replace")
        lines = [" ".join(line.split()) for line in tail.splitlines() if line.strip()]
        return (
            f"; its log ends: {' | '.join(lines[-LAST_LINES:])}" if lines else "; its log is empty"
        )
