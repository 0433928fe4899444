"""A program in a terminal: what it shows, what is typed into it, Ctrl-C included."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.data import REPOSITORY

TIMEOUT_S = 60
CHUNK_BYTES = 4096
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A program takes the terminal so that Ctrl-C reaches it; not between fork and exec, where threads of gRPC
may hang."""
POLL_S = 0.005
WAITING = "S"
CTRL_C = "\x03"
CTRL_D = "\x04"


class Terminal:
    """`with Terminal(command) as terminal:` runs it; leaving ends what still runs."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        term: str = "dumb",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`environ` is laid over ours."""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", TAKE_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=REPOSITORY,
            env={**ours, "TERM": term, **(environ or {})},
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""
        self._seen = 0
        self._changed = threading.Condition()
        self._hung_up, self._hang_up = os.pipe()
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()

    def enter(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def hang_up(self) -> None:
        """Close our side, as a window that is closed does: the kernel tells those in it."""
        os.write(self._hang_up, b"x")
        self._reader.join(TIMEOUT_S)  # a read that waits would keep it open
        os.close(self._ours)
        self._ours = -1

    def interrupt(self) -> None:
        """Ctrl-C, once it waits: Python overlooks one between readline's prompt and its wait."""
        until_s = time.monotonic() + TIMEOUT_S
        pause = threading.Event()
        while self._state() != WAITING:
            assert time.monotonic() < until_s, "it never waits"
            pause.wait(POLL_S)
        self.enter(CTRL_C)

    def _state(self) -> str:
        """Of its main thread, as the kernel calls it."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def until(self, text: str) -> str:
        """What it showed since the last call, up to and with `text`."""
        with self._changed:
            found = self._changed.wait_for(lambda: text in self.shown[self._seen :], TIMEOUT_S)
            assert found, f"{text!r} does not come after {self.shown[self._seen :]!r} of {self.shown!r}"
            end = self.shown.index(text, self._seen) + len(text)
            said, self._seen = self.shown[self._seen : end], end
        return said

    def end(self) -> int:
        """The exit code, once it has ended by itself and all it showed is read."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nobody has the other side open any more
            while self._hung_up not in select.select((self._ours, self._hung_up), (), ())[0]:
                if not (chunk := os.read(self._ours, CHUNK_BYTES)):
                    return
                with self._changed:
                    self.shown += chunk.decode(errors="replace").replace("\r\n", "\n")
                    self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        for end in (self._ours, self._hung_up, self._hang_up):
            if end >= 0:
                os.close(end)
