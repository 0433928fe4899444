"""The whole stack as a user starts it: `penstock up` in a process of its own, on free ports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from services.launcher.state import credentials_file
from shared.bus import Bus
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.permissions import OPERATOR
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.messages import AuditReport, AuditRequest, Held
from tests.support.data import REPOSITORY
from tests.support.wait import until

START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 90
ASK_TIMEOUT_S = 5.0
METRICS_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 90.0
LOG_TAIL_LINES = 60
RERANKING = {"PENSTOCK_RETRIEVER_RERANKER": "late-interaction"}
"""The settings that rerank also where the encoder's kernels do not run."""


@dataclass(frozen=True, slots=True)
class Instance:
    role: str
    id: str
    pid: int
    metrics: str
    grpc: str = ""
    http: str = ""
    inner: str = ""

    @property
    def all_of_process(self) -> list[Instance]:
        """Return it, and the detokenizer that is in its process."""
        inner = [Instance("detokenizer", self.inner, self.pid, "")] if self.inner else []
        return [self, *inner]


class Stack:
    """`with Stack("--decode", "3") as stack:` is a running stack; leaving stops it."""

    def __init__(
        self,
        *options: str,
        environ: dict[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        root: Path = REPOSITORY,
    ) -> None:
        self.options = options
        self.root = root
        """The code that is started."""
        self.start_timeout_s = start_timeout_s
        # Drills and benchmarks start it too, without what tests/conftest.py says.
        small = {"OMP_NUM_THREADS": "1", "PENSTOCK_DEFAULT_MODEL": "none"}
        self.environ = {**os.environ, **small, **(environ or {})}
        self.state_dir = Path(tempfile.mkdtemp(prefix="penstock-test-"))
        self.log: list[str] = []
        self.was_ready = False
        self.ready = threading.Event()
        """Its first words, or its end."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "services.cli", "up", "--grpc-port", "0", "--http-port", "0"]
        command += ["--state-dir", str(self.state_dir), *self.options]
        self.process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, name="stack-log")
        self.reader.start()
        if not self.ready.wait(self.start_timeout_s):
            self.stop()
            raise AssertionError("the stack did not become ready:\n" + self.tail())
        if not self.was_ready:
            self.stop()
            raise AssertionError("the stack ended before it was ready:\n" + self.tail())
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))
            if line.startswith("ready grpc="):
                self.was_ready = True
                self.ready.set()
        self.ready.set()

    def tail(self) -> str:
        return "\n".join(self.log[-LOG_TAIL_LINES:])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.reader.join(STOP_TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    @property
    def description(self) -> dict[str, Any]:
        try:
            described: dict[str, Any] = json.loads((self.state_dir / "stack.json").read_text())
        except FileNotFoundError as error:
            raise AssertionError(f"the stack has ended ({self.process.poll()}):\n{self.tail()}") from error
        return described

    @property
    def grpc(self) -> str:
        return str(self.description["grpc"])

    @property
    def http(self) -> str:
        return str(self.description["http"])

    @property
    def nats(self) -> str:
        return str(self.description["nats"])

    def credentials(self, user: str = OPERATOR) -> Credentials:
        """Of the operator or of an instance."""
        file = self.description["nats_credentials"] if user == OPERATOR else None
        credentials = load_credentials(file or str(credentials_file(self.state_dir, user)))
        assert credentials is not None
        return credentials

    async def connect(self, name: str, user: str = OPERATOR) -> Bus:
        """To the stack's bus; where that is a server of our own anybody may come in."""
        closed = self.description["nats_credentials"] is not None
        credentials = self.credentials(user) if closed else None
        return await Bus.connect(self.nats, name=name, credentials=credentials)

    def instances(self, role: str | None = None) -> list[Instance]:
        found = [Instance(**row) for row in self.description["instances"]]
        return [instance for instance in found if role in (None, instance.role)]

    def everybody(self) -> list[Instance]:
        """Return also those in the processes of others."""
        return [each for instance in self.instances() for each in instance.all_of_process]

    async def holdings(self) -> dict[str, list[Held]]:
        """What every instance holds; an instance that does not answer is an entry of its own."""
        bus = await self.connect("test-audit")
        try:
            return await audit(bus, self.everybody())
        finally:
            await bus.close()

    async def until_idle(self, timeout_s: float = IDLE_TIMEOUT_S) -> None:
        """Wait until audit counts zero everywhere; fails with what is still held."""
        bus = await self.connect("test-audit")
        held: dict[str, list[Held]] = {}

        async def idle() -> bool:
            nonlocal held
            held = await audit(bus, self.everybody())
            return not held

        try:
            await until(idle, timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"still held: {held}\n{self.tail()}") from error
        finally:
            await bus.close()


def metrics_of(instance: Instance) -> str:
    """What the instance's Prometheus endpoint says now."""
    with urllib.request.urlopen(f"http://{instance.metrics}/metrics", timeout=METRICS_TIMEOUT_S) as response:
        return str(response.read().decode())


def value_of(instance: Instance, metric: str) -> float:
    """The value of a metric without labels; 0 when the instance does not show it."""
    lines = [line.split() for line in metrics_of(instance).splitlines()]
    return sum(float(line[1]) for line in lines if line[0] == metric)


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def audit(bus: Bus, instances: list[Instance]) -> dict[str, list[Held]]:
    """What every instance holds; an instance that does not answer is an entry of its own."""
    answers = await asyncio.gather(*(_ask(bus, instance) for instance in instances))
    return {instance.id: held for instance, held in zip(instances, answers, strict=True) if held}


async def _ask(bus: Bus, instance: Instance) -> list[Held]:
    deadline = Deadline.after(ASK_TIMEOUT_S)
    try:
        subject = inbox(instance.role, instance.id)
        report = await bus.ask(subject, AuditRequest(), bus.envelope(deadline=deadline), deadline)
    except PenstockError as error:
        return [Held("", f"no answer: {error}", 1, "")]
    assert isinstance(report, AuditReport)
    return list(report.held)
