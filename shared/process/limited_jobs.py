"""Give jobs to a process of jobs (`job_runner`), from any thread, and wait for their ends."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shared.errors import Unavailable
from shared.process.job_runner import READ_BYTES, take_frames, write_frame

CLOSE_TIMEOUT_S = 2.0


def job_command(module: str) -> list[str]:
    """Return what starts the process of a module of jobs."""
    return [sys.executable, "-P", "-m", module]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job, in a word of `job_runner`; what it returned, or the text of its error."""

    end: str
    result: bytes


class LimitedJobs:
    """The process is that of `module`; it is started by the first job, and again when it has ended."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: _JobProcess | None = None
        self._closed = False

    def submit(self, payload: bytes) -> tuple[Future[JobEnd], Callable[[], None]]:
        """Begin a job; return its end, and what stops it when nobody waits for that any more.

        Raises Unavailable where there can be no process; the end may be that too.
        """
        with self._lock:
            if self._closed:
                raise Unavailable("this service ends; ask another one")
            if self._process is None or self._process.has_ended:
                self._process = _JobProcess(self._module)
            process = self._process
        number, future = process.submit(payload)
        return future, lambda: process.kill(number)

    def close(self) -> None:
        """End the process; jobs that run are killed."""
        with self._lock:
            self._closed, process = True, self._process
        if process is not None:
            process.close()


class _JobProcess:
    """One life of the process, and the jobs that it has."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._open: dict[int, Future[JobEnd]] = {}
        self._numbers = itertools.count(1)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of ours
                job_command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise Unavailable(f"no process of {module} can be started: {error}") from error
        name = module.rpartition(".")[2]
        threading.Thread(target=self._read_ends, name=name, daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def submit(self, payload: bytes) -> tuple[int, Future[JobEnd]]:
        future: Future[JobEnd] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = future
            try:
                self._write([number, payload])
            except (OSError, ValueError) as error:
                del self._open[number]
                raise self._gone() from error
        return number, future

    def kill(self, number: int) -> None:
        with self._lock, suppress(OSError, ValueError):
            if number in self._open:
                self._write([number, None])

    def close(self) -> None:
        assert self._process.stdin is not None
        with self._lock, suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, frame: list[Any]) -> None:
        assert self._process.stdin is not None
        write_frame(self._process.stdin, frame)

    def _read_ends(self) -> None:
        read, results = bytearray(), self._process.stdout
        assert results is not None
        with results:
            while data := os.read(results.fileno(), READ_BYTES):
                read += data
                for number, end, result in take_frames(read):
                    with self._lock:
                        future = self._open.pop(number)
                    future.set_result(JobEnd(end, result))
        with self._lock, suppress(OSError):
            left, self._open = self._open, {}
            assert self._process.stdin is not None
            self._process.stdin.close()
        for future in left.values():
            future.set_exception(self._gone())

    def _gone(self) -> Unavailable:
        return Unavailable(f"the process of {self._module} ended; try again")
