"""One child process: started so that it cannot outlive the launcher, stopped within a bound."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

PR_SET_PDEATHSIG = 1
KILLED_BECAUSE_ORPHANED = 137


def die_with(parent_pid: int) -> Callable[[], None]:
    """Run in a child between fork and exec: SIGKILL for it when the launcher's thread is gone.

    The function is looked up here, before the fork: after it only the call itself is safe.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before the call above
            os._exit(KILLED_BECAUSE_ORPHANED)

    return in_child


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_spawning: set[object] = set()
"""Children that may be between fork and exec."""


@contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C reaches a child too that has not left our process group yet, and there it is still Python that
    handles it: it would write to the pipe that wakes our loop, and we would count it twice."""
    ours = object()
    _spawning.add(ours)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        _spawning.remove(ours)
        if not _spawning:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def _drop_held_signals() -> None:
    """Drop signals that are held in a child, in its own group: they were meant for us."""
    for signum in ENDING_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    for signum in ENDING_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


class RunningProcess(Protocol):
    """The parts of asyncio's Process that are used; `returncode` is None until it has ended."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Child:
    """A running process and the pipe that carries its stdout and stderr; `pipe` is closed by its owner."""

    process: RunningProcess
    output: asyncio.StreamReader
    pipe: asyncio.ReadTransport


@asynccontextmanager
async def output_pipe() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.ReadTransport, int]]:
    """Make a pipe for a child that is started meanwhile: its output, our end, and its own, closed here then.
    Ours is too when the child could not be started.

    A pipe of ours instead of asyncio's: that one stays open as long as a grandchild holds it.
    """
    output = asyncio.StreamReader()
    read_fd, write_fd = os.pipe()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_fd, "rb", buffering=0)
    )
    try:
        yield output, pipe, write_fd
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(write_fd)


async def spawn(
    command: Sequence[str], environ: Mapping[str, str], *, stdin: int = asyncio.subprocess.DEVNULL
) -> Child:
    """Start `command` in a process group of its own. Raises OSError when it cannot be run.

    Its own group, because Ctrl-C in a terminal must reach the launcher alone: it stops the services
    in their order.
    """
    # Linux only: elsewhere a SIGKILL of the launcher leaves its services behind.
    orphan_guard = die_with(os.getpid()) if sys.platform == "linux" else _nothing

    def in_child() -> None:
        orphan_guard()
        _drop_held_signals()

    async with output_pipe() as (output, pipe, write_fd):
        with _signals_held():
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environ),
                stdin=stdin,
                stdout=write_fd,
                stderr=asyncio.subprocess.STDOUT,
                process_group=0,
                preexec_fn=in_child,
            )
        return Child(process, output, pipe)


def _nothing() -> None: ...


def send(process: RunningProcess, signum: signal.Signals) -> None:
    """Signal a child; one that has just ended is fine."""
    if process.returncode is None:
        try:
            process.send_signal(signum)
        except ProcessLookupError:
            return


def ending(returncode: int) -> str:
    """Return how a process ended, in words."""
    if returncode < 0:
        try:
            return f"was killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"was killed by signal {-returncode}"
    return f"exited with code {returncode}"
