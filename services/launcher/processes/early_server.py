"""The first fork server, forked off a launcher that has no second thread and no event loop yet.

What the launcher has imported by then counts once for it and all services, and is not imported again. Until
it is told to go on the process has nothing of its own.
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
from collections.abc import Mapping, Sequence

from services.launcher.detached import MOST_DESCRIPTORS
from services.launcher.processes import fork_server
from services.launcher.processes.child import KILLED_BECAUSE_ORPHANED, die_with
from shared.process.heap import trim_heap
from shared.process.heap_holes import fill_heap_holes

GO_ON = b"go on"


class EarlyServer:
    """A server that waits to be told to go on: its process, our end of its socket, and what it says."""

    def __init__(self, pid: int, asked: socket.socket, output_fd: int) -> None:
        self.pid = pid
        self.asked = asked
        self.output_fd = output_fd
        self._waits = True

    def go_on(self) -> None:
        """Let it import what services need; process, socket and pipe are the caller's now."""
        self._waits = False
        self.asked.send(GO_ON)

    def end_if_waiting(self) -> None:
        """End it where nobody has let it go on."""
        if self._waits:
            self._waits = False
            self.asked.close()
            os.close(self.output_fd)
            os.waitpid(self.pid, 0)


def fork_early(preload: Sequence[str], environ: Mapping[str, str]) -> EarlyServer:
    """Fork it; to be called where nothing but imports has happened. Returns here alone: in the server, and in
    each service, SystemExit comes out of it."""
    trim_heap()
    fill_heap_holes()
    gc.freeze()  # a collection would write to all pages that are shared from here on
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read_fd, write_fd = os.pipe()
    dies_with_us = die_with(os.getpid())
    pid = os.fork()
    if pid == 0:
        dies_with_us()
        ours.detach()  # it is closed with all that nobody has closed here before
        _become_server(preload, environ, theirs, write_fd)
        sys.exit(0)
    theirs.close()
    os.close(write_fd)
    return EarlyServer(pid, ours, read_fd)


def _become_server(
    preload: Sequence[str], environ: Mapping[str, str], asked: socket.socket, output_fd: int
) -> None:
    """Be the program that `fork_server` is, with its input, output, group and environment."""
    os.setpgid(0, 0)
    os.dup2(asked.detach(), 0)
    for fd in (1, 2):
        os.dup2(output_fd, fd)
    os.closerange(3, MOST_DESCRIPTORS)
    with socket.socket(fileno=os.dup(0)) as told:
        if told.recv(len(GO_ON)) != GO_ON:
            os._exit(KILLED_BECAUSE_ORPHANED)
    os.environ.clear()
    os.environ.update(environ)
    # As a Python is that was told to buffer nothing.
    sys.stdout = _unbuffered(1, "strict")
    sys.stderr = _unbuffered(2, "backslashreplace")
    fork_server.show_command([sys.executable, "-P", "-m", fork_server.__name__, *preload])
    sys.argv[1:] = []
    fork_server.main(preload)


def _unbuffered(fd: int, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
