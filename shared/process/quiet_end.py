"""End a program that somebody runs in a terminal: Ctrl-C and a closed pipe are no errors of ours, so
neither leaves a traceback.

Plain Python that is imported at once: what is to be quiet from its first moment begins with this.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Result = TypeVar("Result")

EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141
"""The codes that a shell has for programs that SIGINT and SIGPIPE end."""
HOOK_POLL_S = 0.001


_exit_code: int | None = None
"""The code of a program that has ended; None while it runs."""


@atexit.register  # before anything else is imported: what is registered first is called last
def _leave_the_rest_to_the_kernel() -> None:
    """End the process without taking its modules apart: torch's alone take 0.8 s of a core."""
    if _exit_code is not None:
        os._exit(_exit_code)


def _end_without_a_word(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End by the exit code alone after a Ctrl-C between the imports and what catches it."""
    if issubclass(kind, KeyboardInterrupt):
        raise SystemExit(EXIT_INTERRUPTED)
    sys.__excepthook__(kind, error, trace)


def _press_again(unraisable: sys.UnraisableHookArgs) -> None:
    """A Ctrl-C in a callback that nothing can come out of comes once more, when that has ended."""
    if unraisable.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_press_behind, (_thread.get_ident(),))  # here it would be lost again
    else:
        sys.__unraisablehook__(unraisable)


def _press_behind(thread: int) -> None:
    """Send SIGINT once `thread` is out of the hook: inside of it a KeyboardInterrupt would be lost too."""
    while _is_in_hook(thread):
        time.sleep(HOOK_POLL_S)
    os.kill(os.getpid(), signal.SIGINT)


def _is_in_hook(thread: int) -> bool:
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented, for looks like this one
    while frame is not None and frame.f_code is not _press_again.__code__:
        frame = frame.f_back
    return frame is not None


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _end_without_a_word
if sys.unraisablehook is sys.__unraisablehook__:
    sys.unraisablehook = _press_again


def end_quietly(run: Callable[[], int]) -> int:
    """The exit code of the program `run`, which may also end by SystemExit; its last output is written.

    The process is to end now: a Ctrl-C that comes later ends it without a word.
    """
    _open_missing_streams()
    try:
        code = _run_to_end(run)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_CLOSED_PIPE
    finally:
        if _interrupts_raise():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        _flush_or_discard(stream)
    global _exit_code  # noqa: PLW0603 - a process ends once
    _exit_code = code
    return code


@contextmanager
def interrupts_end_at_once() -> Iterator[None]:
    """While modules load there is nothing to clean up, and a KeyboardInterrupt inside of an extension module
    may come out as anything."""
    if not _interrupts_raise():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupt:
    """A Ctrl-C that is told to what it interrupts, and is raised later."""

    def __init__(self) -> None:
        self.came = False
        self._stop: Callable[[], object] | None = None

    def stops(self, stop: Callable[[], object]) -> None:
        """`stop` is called when it comes, or now if it has come."""
        self._stop = stop
        if self.came:
            stop()

    def take(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._stop is not None:
            self._stop()


@contextmanager
def interrupt_at_end() -> Iterator[Interrupt]:
    """The first Ctrl-C is raised when the block has ended, which it can be told to do; a second one at once.

    For blocks in a library that a KeyboardInterrupt between any two of its lines leaves with a lock taken:
    nothing more comes out of gRPC's channel then.
    """
    interrupt = Interrupt()
    if not _interrupts_raise():
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.take)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupt.came:
        raise KeyboardInterrupt


def run_loop(
    body: Coroutine[Any, Any, Result], make_loop: Callable[[], AbstractEventLoop] | None = None
) -> Result:
    """`asyncio.run`, where a Ctrl-C before there is a whole loop ends at once: half of one is not closed
    without a word. Without `make_loop` it is asyncio's own loop."""
    import asyncio  # noqa: PLC0415 - this module comes first, and is not to load it before Ctrl-C is quiet

    runner = asyncio.Runner(loop_factory=make_loop)
    with interrupts_end_at_once():
        runner.get_loop()
    with runner:
        return runner.run(body)


def discard_stream(stream: TextIO) -> None:
    """Its reader went away: what is still written goes nowhere, also what Python flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _run_to_end(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _interrupts_raise() -> bool:
    """Whether Ctrl-C raises: not where it is ignored, as for what a shell runs in the background."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


def _flush_or_discard(stream: TextIO) -> None:
    try:
        stream.flush()
    except BrokenPipeError:
        discard_stream(stream)


def _open_missing_streams() -> None:
    """A program that was started without them (`>&-`) has None in their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process's life
