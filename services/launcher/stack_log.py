"""Tell the lines of a stack to the terminal, and to the log in its state directory."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from services.launcher.processes.log_lines import LineWriter
from shared.files.rotated_log import RotatedLog

MAX_EARLY_LINES = 100
"""Lines that wait for the file while models are looked at; of more the oldest are left out of it."""


class StackLog:
    """A line goes to the terminal until that is left, and to the file once there is one.

    Neither waits for the other: each has a queue and a thread of its own.
    """

    def __init__(self, terminal: LineWriter) -> None:
        self._terminal: LineWriter | None = terminal
        self._kept: LineWriter | None = None
        self._file: RotatedLog | None = None
        self._early: deque[tuple[str, bytes, str]] = deque(maxlen=MAX_EARLY_LINES)

    def keep_in(self, state_dir: Path) -> None:
        """Write all that comes to the log of this directory too, which is nobody else's now."""
        self._file = RotatedLog(state_dir)
        self._kept = LineWriter(self._file, as_json=True, on_unwritten=self._tell_unwritten)
        while self._early:
            self._kept.write(*self._early.popleft())

    def write(self, name: str, line: bytes, level: str = "info") -> None:
        if self._terminal is not None:
            self._terminal.write(name, line, level)
        self.keep(name, line, level)

    def keep(self, name: str, line: bytes, level: str = "info") -> None:
        """Write it to the file alone, once there is one."""
        if self._kept is not None:
            self._kept.write(name, line, level)
        else:
            self._early.append((name, line, level))

    def leave_terminal(self) -> None:
        """Write what the terminal still gets, within a bound, and nothing to it from now on."""
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None

    def close_file(self) -> None:
        """Write what is left of the log, within a bound."""
        if self._kept is not None and self._file is not None:
            self._kept.close()
            self._file.close()
            self._kept = self._file = None

    def _tell_unwritten(self, error: OSError) -> None:
        if self._terminal is not None and self._file is not None:
            sentence = (
                f"the log {self._file.path} cannot be written ({error.strerror or error}): lines are missing "
                "there until it can"
            )
            self._terminal.write("penstock", sentence.encode(), "warning")
