"""Run jobs that strangers gave the input for: each in a fork of this small process, with limits, killable.

The process reads jobs from its standard input and writes their ends to its standard output, both as
`[length, 4 bytes, big-endian][msgpack]`: `[number, payload]`, or None for the payload of a job that is to be
killed, and `[number, end, bytes]`. It ends with its input. Only what it imports before the first job is in
every fork, so that it imports little and starts no thread.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import msgpack

from shared.process.niceness import give_way, make_stand_back

DONE, FAILED, TOO_LONG, TOO_MUCH, KILLED = "done", "failed", "too long", "too much memory", "killed"
"""The ends of a job: what it returned, what it raised, or why it was stopped."""
TOO_LATE = "too late"
"""Its time is over, and it had next to no CPU time: others had the cores, or it slept."""
HEAD = struct.Struct(">I")
MAX_RESULT_BYTES = 64 << 20
"""The longest result of a job; one that returns more took too much memory."""
MAX_FRAME_BYTES = MAX_RESULT_BYTES + (1 << 10)
"""The longest job, and the longest end of one."""
MAX_ERROR_BYTES = 1 << 12
"""The part of an error's text that is told."""
READ_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
QUICK_S = 0.1
"""A job that has taken more CPU time leaves the cores to all others, as far as these want them."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The CPU time and the time of one job, and the memory that it may take beside what this process has."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    results: int
    stands_back_s: float
    ends_s: float
    read: bytearray
    stopped: str = ""

    @property
    def next_s(self) -> float:
        """Return when there is something to do about it."""
        return math.inf if self.stopped else min(self.stands_back_s, self.ends_s)


class JobRunner:
    """`run` returns bytes for the payload of a job; an exception's text is how it failed."""

    def __init__(self, run: Callable[[bytes], bytes], limits: JobLimits) -> None:
        self._run = run
        self._limits = limits
        self._children: dict[int, _Child] = {}
        """The children by the file descriptor that their result comes from."""
        self._input = bytearray()

    def serve(self, source: int, sink: IO[bytes]) -> None:
        """Run jobs until there is no more input; then all that still run are killed."""
        try:
            while True:
                ready = self._wait(source)
                if source in ready:
                    data = os.read(source, READ_BYTES)
                    if not data:
                        return
                    self._take(data, sink)
                for results in ready & self._children.keys():
                    self._read(self._children[results], sink)
                self._stop_late()
        finally:
            for child in self._children.values():
                os.kill(child.pid, signal.SIGKILL)

    def _wait(self, source: int) -> set[int]:
        next_s = min((child.next_s for child in self._children.values()), default=math.inf)
        left_s = None if next_s == math.inf else max(0.0, next_s - time.monotonic())
        return set(select.select([source, *self._children], [], [], left_s)[0])

    def _take(self, data: bytes, sink: IO[bytes]) -> None:
        self._input += data
        for frame in take_frames(self._input):
            number, payload = frame
            if payload is not None:
                self._start(number, payload, sink)
            else:
                for child in self._children.values():
                    if child.number == number:
                        self._stop(child, KILLED)

    def _start(self, number: int, payload: bytes, sink: IO[bytes]) -> None:
        results, writes = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(results)
            os.close(writes)
            write_frame(sink, [number, FAILED, (error.strerror or str(error)).encode()])
            return
        if pid == 0:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(sink.fileno())  # who reads it is to see when this process ends, whoever outlives it
            self._be_child(payload, writes)
        os.close(writes)
        began_s = time.monotonic()
        self._children[results] = _Child(
            number, pid, results, began_s + QUICK_S, began_s + self._limits.wall_s, bytearray()
        )

    def _be_child(self, payload: bytes, writes: int) -> NoReturn:
        """Run the job and write its end and its result."""
        end, result = FAILED, b""
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):  # what a stranger's input makes a library say is for no log
                os.dup2(nowhere, number)
            give_way()
            _limit(self._limits)
            end, result = DONE, self._run(payload)
            if len(result) > MAX_RESULT_BYTES:
                end, result = TOO_MUCH, b""
        except MemoryError:
            end = TOO_MUCH
        except BaseException as error:  # noqa: BLE001 - it is told to who gave the job
            result = str(error).encode(errors="replace")[:MAX_ERROR_BYTES]
        finally:
            with open(writes, "wb") as file:
                file.write(msgpack.packb([end, result]))
                file.flush()
                os._exit(0)

    def _read(self, child: _Child, sink: IO[bytes]) -> None:
        data = os.read(child.results, READ_BYTES)
        child.read += data
        if data and len(child.read) <= MAX_FRAME_BYTES:
            return
        _, status, used = os.wait4(child.pid, 0)
        if child.stopped == TOO_LATE and used.ru_utime + used.ru_stime >= QUICK_S:
            child.stopped = TOO_LONG  # it had cores, and more of their time than anything quick takes
        os.close(child.results)
        del self._children[child.results]
        write_frame(sink, [child.number, *_end_of(child, status)])

    def _stop_late(self) -> None:
        now_s = time.monotonic()
        for child in self._children.values():
            if child.ends_s <= now_s and not child.stopped:
                self._stop(child, TOO_LATE)
            elif child.stands_back_s <= now_s and not child.stopped:
                left_s = QUICK_S - _cpu_s(child.pid)
                child.stands_back_s = now_s + left_s if left_s > 0 else math.inf
                if left_s <= 0:
                    make_stand_back(child.pid)

    def _stop(self, child: _Child, why: str) -> None:
        child.stopped = why
        os.kill(child.pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a child which has not been waited for has taken, to a tick of the kernel."""
    stat = open(f"/proc/{pid}/stat").read()  # noqa: SIM115
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _limit(limits: JobLimits) -> None:
    """Limit this process: a second more than asked for is where the kernel is sure to kill."""
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)  # its signal ends whoever does not catch it
    seconds = int(limits.cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    size_bytes = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")  # noqa: SIM115
    most_bytes = size_bytes + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_of(child: _Child, status: int) -> tuple[str, bytes]:
    if child.stopped:
        return child.stopped, b""
    if os.WIFSIGNALED(status):
        by_clock = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU)
        return (TOO_LONG if by_clock else TOO_MUCH), b""  # an allocation that fails in a library aborts
    try:
        end, result = msgpack.unpackb(bytes(child.read))
    except (ValueError, msgpack.UnpackException):
        return FAILED, b"it ended without a result"
    return end, result


def take_frames(data: bytearray) -> list[list[Any]]:
    """Return the whole frames at the beginning of `data`, and leave the rest. Raises ValueError."""
    frames = []
    while len(data) >= HEAD.size:
        (length,) = HEAD.unpack_from(data)
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
        if len(data) < HEAD.size + length:
            break
        frames.append(msgpack.unpackb(bytes(data[HEAD.size : HEAD.size + length])))
        del data[: HEAD.size + length]
    return frames


def write_frame(file: IO[bytes], frame: list[Any]) -> None:
    packed = msgpack.packb(frame)
    file.write(HEAD.pack(len(packed)) + packed)
    file.flush()


def serve_jobs(run: Callable[[bytes], bytes], limits: JobLimits) -> None:
    """Be a process of jobs: standard output is for their ends alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for who started it
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the rest of the process's life
    JobRunner(run, limits).serve(0, sink)
