"""The launcher's end of the fork server: services that start without importing anything."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from services.launcher.processes.backoff import Backoff
from services.launcher.processes.child import Child, RunningProcess, ending, output_pipe, send, spawn
from services.launcher.processes.early_server import EarlyServer
from services.launcher.processes.fork_server import MAX_REQUEST_BYTES, READY
from services.launcher.processes.log_lines import LineSink, pump
from shared.tasks import cancel_until_done

NAME = "fork-server"
LOAD_TIMEOUT_S = 60.0
"""The longest time for the imports: of a cold disk, with everything else that starts."""
FORK_TIMEOUT_S = 5.0
END_TIMEOUT_S = 10.0
"""The longest time in which a server whose imports failed ends and says its last words: on a busy machine."""
MAX_ANSWER_BYTES = 64
PR_SET_CHILD_SUBREAPER = 36


class AdoptedProcess:
    """A process that became our child after its start: what is used of asyncio's Process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        signal.pidfd_send_signal(self._pidfd, signum)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()


class NotForked(OSError):
    """There is no server now that could fork it: start it as a program."""


class Forker:
    """Keeps the server running. `run` is its life, until `close`.

    While a server that ended starts again `fork` has none to offer: services are then started as programs.
    One that was never ready would not be the next time either, and is not started again.
    """

    def __init__(
        self,
        preload: Sequence[str],
        environ: Mapping[str, str],
        writer: LineSink,
        *,
        early: EarlyServer | None = None,
    ) -> None:
        """`early`: the first server, where it has been forked already; it is ours from here on."""
        self._environ = server_environ(environ)
        self._early = early
        self._command = (sys.executable, "-P", "-m", "services.launcher.processes.fork_server", *preload)
        self._writer = writer
        self._backoff = Backoff()
        self._first_decided = asyncio.Event()
        """The first server is ready, or there will be none."""
        self._closed = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held for a request to the server, and to take it away."""
        self._server: socket.socket | None = None
        self._process: RunningProcess | None = None

    @property
    def pid(self) -> int:
        """The pid of the server that runs, or ran last; 0 before the first."""
        return 0 if self._process is None else self._process.pid

    async def run(self) -> None:
        try:
            while not self._closed.is_set():
                served_s = await self._run_once()
                if served_s is None or self._closed.is_set():
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.delay_s(served_s)):
                        await self._closed.wait()
        finally:
            self._first_decided.set()

    async def fork(self, module: str, environ: Mapping[str, str]) -> Child:
        """A service that runs `module`. The first ones wait for the server's imports. Raises NotForked."""
        await self._first_decided.wait()
        request = json.dumps({"module": module, "environ": dict(environ)}).encode()
        async with output_pipe() as (output, pipe, write_fd):
            async with self._turn:
                pid = await self._ask_server(request, write_fd)
            return Child(AdoptedProcess(pid), output, pipe)

    def renew(self, python: str, environ: Mapping[str, str]) -> None:
        """Import anew, by this program and under this environment: the code may be another one by now."""
        self._command = (python, *self._command[1:])
        self._environ = server_environ(environ)
        self._server = None  # what it forks from now on would be the code before
        if self._process is not None:
            send(self._process, signal.SIGKILL)

    def close(self) -> None:
        """End the server, which has nothing to finish; what it forked goes on."""
        self._closed.set()
        if self._process is not None:
            send(self._process, signal.SIGKILL)

    async def _ask_server(self, request: bytes, output: int) -> int:
        """The new process, which is our child."""
        server = self._server
        if server is None or len(request) > MAX_REQUEST_BYTES:
            raise NotForked
        answer = b""
        go, leave = os.pipe()
        try:
            with adopting():
                socket.send_fds(server, [request], [output, go])
                async with asyncio.timeout(FORK_TIMEOUT_S):
                    answer = await asyncio.get_running_loop().sock_recv(server, MAX_ANSWER_BYTES)
            if answer:
                os.write(leave, b"\n")  # we are its parent now, and know it
        except OSError as error:  # it is silent, or has ended and we have not heard of that yet
            raise NotForked from error
        finally:
            os.close(go)
            os.close(leave)
            if not answer:
                self._server = None
                assert self._process is not None
                send(self._process, signal.SIGKILL)  # an answer that comes later is nobody's
        if not answer:
            raise NotForked
        return int(answer)

    async def _run_once(self) -> float | None:
        """One server from its start to its end: for how long it served, None when it was never ready."""
        try:
            child, ours = await self._start()
        except OSError as error:
            self._say(f"could not be started: {error}")
            return None
        self._process = child.process
        if self._closed.is_set():  # while it was being started
            send(child.process, signal.SIGKILL)
        output = asyncio.create_task(pump(child.output, self._on_line))
        ready_s: float | None = None
        late = ""
        try:
            if await self._is_ready(ours):
                ready_s, self._server = time.monotonic(), ours
                self._first_decided.set()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_TIMEOUT_S):
                        await child.process.wait()
                if child.process.returncode is None:
                    late = f"was not ready after {LOAD_TIMEOUT_S + END_TIMEOUT_S:.0f} s"
                send(child.process, signal.SIGKILL)
            returncode = await child.process.wait()
            await asyncio.wait((output,), timeout=END_TIMEOUT_S)
        finally:
            send(child.process, signal.SIGKILL)  # does something only when this task was cancelled
            self._server = None
            async with self._turn:  # nobody waits for an answer on it
                ours.close()
            await cancel_until_done(output)
            child.pipe.close()
        if not self._closed.is_set():
            how = late or ending(returncode)
            self._say(f"{how}; services start as programs of their own without it")
        return None if ready_s is None else time.monotonic() - ready_s

    async def _start(self) -> tuple[Child, socket.socket]:
        """A server, and our end of its socket. Raises OSError where it cannot be run."""
        if self._early is not None:
            early, self._early = self._early, None
            # Where somebody has ended it while it waited there is another one.
            with contextlib.suppress(OSError):
                return await _let_go_on(early)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                return await spawn(self._command, self._environ, stdin=theirs.fileno()), ours
        except OSError:
            ours.close()
            raise

    async def _is_ready(self, server: socket.socket) -> bool:
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                return await asyncio.get_running_loop().sock_recv(server, MAX_ANSWER_BYTES) == READY
        except (TimeoutError, OSError):
            return False

    def _on_line(self, line: bytes) -> None:
        self._writer.write(NAME, line)

    def _say(self, sentence: str) -> None:
        self._writer.write("penstock", f"{NAME} {sentence}".encode())


async def _let_go_on(early: EarlyServer) -> tuple[Child, socket.socket]:
    """Raises OSError for one that has ended."""
    process = AdoptedProcess(early.pid)
    early.asked.setblocking(False)
    output = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(early.output_fd, "rb", buffering=0)
    )
    try:
        early.go_on()
    except OSError:
        pipe.close()
        early.asked.close()
        raise
    return Child(process, output, pipe), early.asked


def server_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server, of what it is to be for services."""
    # numpy's OpenBLAS starts its threads when it is loaded, and they would not survive a fork.
    return {**environ, "OPENBLAS_NUM_THREADS": "1"}


def forking_works() -> bool:
    """Return whether this system lets us adopt processes: Linux since 5.3."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


@contextmanager
def adopting() -> Iterator[None]:
    """Meanwhile we adopt what our children leave behind; else the system does, and reaps it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
