"""Services that start where their imports end, as those of `penstock up` do: forked from one process.

What a worker imports takes it 1.5 s, and tests start many.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.launcher.processes.child import Child, output_pipe
from services.launcher.processes.fork_server import READY
from services.launcher.processes.forker import MAX_ANSWER_BYTES, AdoptedProcess, adopting
from tests.support.data import REPOSITORY

LOAD_TIMEOUT_S = 120.0
FORK_TIMEOUT_S = 30.0
ROLES = ("prefill", "decode", "speculator", "tokenizer", "detokenizer", "retriever")
"""The roles whose imports are done before. Those of gateways are light, and tests of theirs run elsewhere."""


class ForkedProcess:
    """What tests use of Popen, of a process that became our child after its start; `log` is what it says."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._looking = threading.Lock()

    def poll(self) -> int | None:
        with self._looking:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    os.close(self._pidfd)
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.poll() is None:
            select.select([self._pidfd], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def log_at_end(self, timeout: float) -> str:
        self.wait(timeout)
        return self._log.read_text("utf-8")

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The launcher's fork server, without a launcher."""

    def __init__(self, roles: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The launcher sets the same: OpenBLAS would start threads when it is loaded.
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        preload = [f"services.{role}.__main__" for role in roles]
        command = [sys.executable, "-P", "-m", "services.launcher.processes.fork_server", *preload]
        with theirs:
            self._process = subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdin=theirs.fileno())
        atexit.register(self._end)
        self._socket.settimeout(LOAD_TIMEOUT_S)
        assert self._socket.recv(MAX_ANSWER_BYTES) == READY
        self._socket.settimeout(FORK_TIMEOUT_S)

    def fork(self, module: str, environ: Mapping[str, str], output: int) -> int:
        """The pid of our new child, which runs `module` and says all to the file descriptor `output`."""
        go, leave = os.pipe()
        try:
            with adopting():
                request = json.dumps({"module": module, "environ": dict(environ)}).encode()
                socket.send_fds(self._socket, [request], [output, go])
                pid = int(self._socket.recv(MAX_ANSWER_BYTES))
            os.write(leave, b"\n")
        finally:
            os.close(go)
            os.close(leave)
        return pid

    def _end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


@functools.cache
def fork_server(*roles: str) -> ForkServer:
    """One for all tests of this process, started when it is first needed."""
    return ForkServer(roles or ROLES)


def start_forked(module: str, environ: Mapping[str, str], log: Path) -> ForkedProcess:
    """What it says goes to `log`."""
    with log.open("wb") as output:
        return ForkedProcess(fork_server().fork(module, environ, output.fileno()), log)


class SharedForker:
    """What an `Instance` of the launcher needs of a `Forker`, whichever event loop it is in."""

    def __init__(self, *roles: str) -> None:
        self._server = fork_server(*roles)

    async def fork(self, module: str, environ: Mapping[str, str]) -> Child:
        async with output_pipe() as (output, pipe, write_fd):
            return Child(AdoptedProcess(self._server.fork(module, environ, write_fd)), output, pipe)
