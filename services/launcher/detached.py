"""`penstock up -d`: the stack gets a session of its own, and whoever starts it goes on when it is ready."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from services.launcher.state import DEFAULT_STATE_DIR, STACK_NAME
from shared.files.rotated_log import LOG_NAME
from shared.files.stack_register import launcher_of
from shared.process.quiet_end import discard_stream

STOP_TIMEOUT_S = 60.0
"""The longest wait for a stack that is taken down before it was ready: longer than it takes by itself."""
POLL_S = 0.05
MOST_DESCRIPTORS = 1 << 16
"""Descriptors below this are closed, which a shell may have left open for what it starts."""
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM came to the process that waits."""


def run_detached(state_dir: Path, run: Callable[[], int]) -> int:
    """Start `run` in a process of its own, which tells on its stdout when it is ready, and wait for that.

    Returns twice: here with 0 when it is ready, or with why it is not; and in that process at its end.
    """
    if (launcher := launcher_of(state_dir)) is not None:
        return _told_of_running(state_dir, launcher)
    said_before = _log_size(state_dir)
    told, tell = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()  # there is one thread yet
    if pid == 0:
        os.setsid()
        os.close(told)
        _stdin_from_nothing()
        os.dup2(tell, sys.stdout.fileno())
        # Whoever waits for a lock or a pipe of the shell's waits no longer.
        os.closerange(3, MOST_DESCRIPTORS)
        return run()
    os.close(tell)
    with _termination_raises():
        return _wait(pid, told, state_dir, said_before)


def leave_streams() -> None:
    """Let go of the terminal, and of whoever waited for us to be ready."""
    for stream in (sys.stdout, sys.stderr):
        discard_stream(stream)


def _wait(pid: int, told: int, state_dir: Path, said_before: int) -> int:
    """The exit code. The wait ends by itself: a start that stands still is given up by the stack."""
    try:
        with os.fdopen(told) as words:
            ready, console = words.readline(), words.readline()
        if ready:
            print(ready, console, sep="", end="")
            logs, down = _command("logs -f", state_dir), _command("down", state_dir)
            print(f"logs: {logs}    stop: {down}", flush=True)
            return 0
        _, status = os.waitpid(pid, 0)
    except KeyboardInterrupt:
        _take_down(pid)
        return EXIT_INTERRUPTED
    except Terminated:
        _take_down(pid)
        return EXIT_TERMINATED
    sys.stdout.flush()
    logs = f"; {_command('logs', state_dir)} shows what it said"
    is_kept = _log_size(state_dir) != said_before
    print(f"penstock up: the stack is not up, and nothing of it runs{logs * is_kept}", file=sys.stderr)
    code = os.waitstatus_to_exitcode(status)
    return code if code > 0 else EXIT_FAILED


def _take_down(pid: int) -> None:
    """End what has been started; it says on the terminal how far that is. Once more ends it at once."""
    os.kill(pid, signal.SIGTERM)
    until_s = time.monotonic() + STOP_TIMEOUT_S
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                break
            if time.monotonic() >= until_s:
                os.kill(pid, signal.SIGKILL)  # all that it started dies with it
            time.sleep(POLL_S)
        except (KeyboardInterrupt, Terminated):
            os.kill(pid, signal.SIGTERM)
    print("penstock up: taken down before it was ready; nothing of it runs", file=sys.stderr)


def _told_of_running(state_dir: Path, launcher: int) -> int:
    """0 where the stack that is there already is ready."""
    if (state_dir / STACK_NAME).exists():
        print(
            f"the stack of {state_dir} runs already (process {launcher}); to start it otherwise stop it "
            f"first: {_command('down', state_dir)}"
        )
        return 0
    print(
        f"penstock up: the stack of {state_dir} is being started or stopped already (process {launcher}): "
        f"{_command('logs -f', state_dir)} shows how far that is",
        file=sys.stderr,
    )
    return EXIT_FAILED


def _log_size(state_dir: Path) -> int:
    try:
        return (state_dir / LOG_NAME).stat().st_size
    except OSError:
        return 0


def _command(command: str, state_dir: Path) -> str:
    """Return what to type here to reach this stack, whichever others there are."""
    is_found = state_dir == DEFAULT_STATE_DIR.resolve()
    return f"`penstock {command}`" if is_found else f"`penstock {command} --state-dir {state_dir}`"


def _stdin_from_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


@contextmanager
def _termination_raises() -> Iterator[None]:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
