"""One service instance: its process, its restarts, its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals

from services.launcher.processes.backoff import Backoff
from services.launcher.processes.child import Child, RunningProcess, ending, send, spawn
from services.launcher.processes.forker import Forker, NotForked
from services.launcher.processes.log_lines import LineSink, pump
from shared.errors import InvalidRequest, Unavailable
from shared.process.memory_room import memory_kills
from shared.roles import ENGINE_ROLES, inner_instance
from shared.telemetry.log_text import log_as_text, log_object

CONFIGURATION_EXIT = 2
"""A service that ends with this code before it was ever ready would end so again: it is not restarted."""

MAX_EARLY_EXITS = 4
"""An instance may end so often before it was ready for the first time; then the start has failed."""

LESS_MEMORY = dict.fromkeys(ENGINE_ROLES, ", or lower its kv_memory_mb") | {
    "retriever": ", or a smaller corpus"
}
"""Advice for a role that was killed for want of memory."""
LAST_LINES = 20
LAST_OUTPUT_TIMEOUT_S = 1.0
"""The longest wait for the rest of a dead child's output (a grandchild may hold the pipe)."""


class ConfigurationRefused(InvalidRequest):
    """A service refused its configuration."""


class StartFailed(Unavailable):
    """The stack could not be started."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """The process to run. `instance` is `<role>-<n>`; `environ` is the child's whole environment.

    Lines that contain one of `hide` are not shown. `reports` False: it says nothing of itself and counts as
    ready as soon as it runs. `module`, where `command` is a Python module, can be forked from a process that
    has imported all of `preload`. `inner_role` is that of the service in its process, "" of none.
    """

    role: str
    instance: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    hide: tuple[bytes, ...] = ()
    reports: bool = True
    module: str = ""
    preload: tuple[str, ...] = ()
    inner_role: str = ""

    @property
    def inner(self) -> str:
        """Return the name of the instance in its process, "" where there is none."""
        return inner_instance(self.inner_role, self.instance) if self.inner_role else ""


class Instance:
    """Keeps one process running until it is told to stop.

    `run` is its life: it returns after `stop`, and raises, before the first readiness alone,
    ConfigurationRefused (exit 2) or StartFailed (too many ends).
    """

    def __init__(
        self,
        spec: InstanceSpec,
        writer: LineSink,
        *,
        forker: Forker | None = None,
        make_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self.spec = spec
        self.process: RunningProcess | None = None
        self.started_s = 0.0
        self.restarts = 0
        self.ready_pid = 0  # the process that was ready last
        self._ready_s: float | None = None  # since when the running one is
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._writer = writer
        self._forker = forker
        self._backoff = make_backoff()
        self._stopping = asyncio.Event()
        self._end_signal = SIGTERM
        self._killed_pid = 0  # the process that we have killed
        self._memory_kills: int | None = None  # as it was when the process began

    @property
    def pid(self) -> int:
        """The running process, between two runs the last one; 0 before the first."""
        return 0 if self.process is None else self.process.pid

    @property
    def was_ready(self) -> bool:
        return self.ready_pid != 0

    def mark_ready(self) -> None:
        """The process that runs has said that it is ready."""
        self.ready_pid, self._ready_s = self.pid, time.monotonic()

    @property
    def last_words(self) -> str:
        """The sentence with which a service ends, else the last line it printed."""
        for line in reversed(self.last_lines):
            if line.startswith(f"penstock {self.spec.role}:"):
                return line
        if not self.last_lines:
            return "it printed nothing"
        event = log_object(self.last_lines[-1].encode(errors="replace"))
        return self.last_lines[-1] if event is None else log_as_text(event).splitlines()[0]

    async def run(self) -> None:
        while not self._stopping.is_set():
            served_s, ended = await self._run_once()
            if self._stopping.is_set():
                return
            delay_s = self._backoff.delay_s(served_s)
            level = "info" if ended == ending(0) else "warning"
            self._say(f"{ended}; starting it again in {delay_s * 1000:.0f} ms", level)
            self.restarts += 1
            await self._stopped_within(delay_s)

    def kill_hung(self, trouble: str) -> None:
        """End a process that cannot end itself; it is started again."""
        if self.process is not None:
            self._say(f"hangs ({trouble}); killing it", "warning")
            self._killed_pid = self.pid
            send(self.process, SIGKILL)

    def let_end(self) -> None:
        """Do not start it again when it ends; it is told to elsewhere."""
        self._stopping.set()

    def terminate(self) -> None:
        """Ask it to end; `run` returns when it has."""
        self._end(SIGTERM)

    def kill(self) -> None:
        self._end(SIGKILL)

    def _end(self, signum: Signals) -> None:
        self._stopping.set()
        self._end_signal = signum
        if self.process is not None:
            send(self.process, signum)

    async def _run_once(self) -> tuple[float, str]:
        """Start it and wait for its end: for how long it was ready, and how it ended.

        Raises what a stack that starts ends over; one that serves goes on without the instance meanwhile.
        """
        self.started_s = time.monotonic()
        self._memory_kills = memory_kills()
        self._ready_s = None if self.spec.reports else self.started_s
        try:
            child = await self._start()
        except OSError as error:
            if not self.was_ready:
                raise StartFailed(f"{self.spec.instance} could not be started: {error}") from error
            return 0.0, f"could not be started ({error})"
        self.process = process = child.process
        if self._stopping.is_set():  # told to stop while it was being started
            send(process, self._end_signal)
        output = asyncio.create_task(pump(child.output, self._on_line))
        try:
            returncode = await process.wait()
            await asyncio.wait((output,), timeout=LAST_OUTPUT_TIMEOUT_S)
            if output.done():
                output.result()
        finally:
            send(process, SIGKILL)  # does something only when this task was cancelled
            output.cancel()
            child.pipe.close()
        served_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
        if not self.was_ready and not self._stopping.is_set():
            self._judge(returncode)
        return served_s, self._ending(returncode)

    async def _start(self) -> Child:
        if self._forker is not None and self.spec.module:
            with contextlib.suppress(NotForked):
                return await self._forker.fork(self.spec.module, self.spec.environ)
        return await spawn(self.spec.command, self.spec.environ)

    def _on_line(self, line: bytes) -> None:
        if line.strip():
            self.last_lines.append(line.decode(errors="replace").strip())
        if not any(part in line for part in self.spec.hide):
            self._writer.write(self.spec.instance, line)

    def _judge(self, returncode: int) -> None:
        """Raise what its end before it was ever ready means for the start of the stack."""
        name = self.spec.instance
        if returncode == CONFIGURATION_EXIT:
            raise ConfigurationRefused(f"{name} refused its configuration: {self.last_words}")
        if self.restarts + 1 >= MAX_EARLY_EXITS:
            tries = self.restarts + 1
            raise StartFailed(
                f"{name} {self._ending(returncode)} in {tries} tries and was never ready: {self.last_words}"
            )

    def _ending(self, returncode: int) -> str:
        """Return how the process has ended, in words; a SIGKILL that is not ours is often the kernel's."""
        if returncode != -SIGKILL or self._killed_pid == self.pid:
            return ending(returncode)
        kills = memory_kills()
        if kills is not None and kills == self._memory_kills:
            return f"{ending(returncode)} (not by the launcher)"
        advice = f"give it more{LESS_MEMORY.get(self.spec.role, '')}"
        return f"{ending(returncode)} (most likely by the kernel, for want of memory: {advice})"

    async def _stopped_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _say(self, sentence: str, level: str = "info") -> None:
        self._writer.write("penstock", f"{self.spec.instance} {sentence}".encode(), level)
