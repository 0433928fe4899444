"""The process of an instance of a stack here: whether it has ended, and its end where it hangs."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.files.stack_register import launcher_of


class StackProcess:
    """A child of the launcher. It stays this one, whoever gets its number later."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    @property
    def has_ended(self) -> bool:
        ready, _, _ = select.select([self._pidfd], [], [], 0)
        return bool(ready)

    def kill(self) -> None:
        """SIGKILL, also for one that is stopped; one that has just ended is fine. Raises PermissionError."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return


@contextmanager
def stack_process(state_dir: Path | None, pid: int) -> Iterator[StackProcess | None]:
    """Hold on to the process with that number; None where it is not one of the stack of that directory."""
    pidfd = _opened(pid) if state_dir is not None else None
    if state_dir is None or pidfd is None:
        yield None
        return
    try:
        launcher = launcher_of(state_dir)
        is_ours = launcher is not None and _parent_of(pid) == launcher
        yield StackProcess(pid, pidfd) if is_ours else None
    finally:
        os.close(pidfd)


def _opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):  # it has ended
        return None


def _parent_of(pid: int) -> int:
    """Return the parent's number, 0 for a process that is not there any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[1])
