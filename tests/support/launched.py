"""The launcher as a process, with a real nats-server and tiny services that send real heartbeats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from services.launcher.watch.prober import HUNG_AFTER_PROBES, PROBE_EVERY_S
from shared.bus.connection import FIRST_CONNECT_S
from shared.bus.refusals import REFUSED_FOR_S
from tests.support.data import REPOSITORY
from tests.support.wait import until

TIMEOUT_S = 100
CONSTANTS: dict[str, float] = {
    "first_connect_s": FIRST_CONNECT_S,
    "refused_for_s": REFUSED_FOR_S,
    "hung_after_probes": HUNG_AFTER_PROBES,
    "probe_s": PROBE_EVERY_S,
}
"""The constants of the code that a test may make shorter."""

SERVICE = '''
"""A service that does nothing but say how it is: ready until it drains; with "live" also over HTTP."""
import asyncio, os, signal, sys, time
from shared.import_without import import_without

import_without("rich", "structlog")  # as services do
from shared.bus import Bus
from shared.bus.credentials import load_credentials
from shared.bus.subjects import fleet, inbox
from shared.messages import Accepted, Drain, Heartbeat
from shared.telemetry import logging
import structlog

instance = os.environ["PENSTOCK_INSTANCE"]
role = instance.partition("-")[0]

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("hello from", instance, flush=True)
    structlog.get_logger().info("serving", words="two words")
    metrics = "127.0.0.1:9"
    if "live" in sys.argv:
        from shared.telemetry.http import TelemetryServer

        http = TelemetryServer(role, lambda: True)
        await http.start("127.0.0.1", 0)
        metrics = http.address
    credentials = load_credentials(os.environ.get("PENSTOCK_NATS_CREDENTIALS", ""))
    bus = await Bus.connect(os.environ["PENSTOCK_NATS_URL"], name=instance, credentials=credentials)
    def told(delivery):
        if isinstance(delivery.message, Drain):
            answers.append(asyncio.create_task(bus.answer(delivery.envelope, Accepted())))
            stop.set()

    answers = []
    await bus.serve(inbox(role, instance), told)
    now = time.time_ns() // 1000
    while not stop.is_set():
        beat = Heartbeat(role, instance, now, "ready", now, "host", os.getpid(), metrics)
        await bus.publish(fleet(role, instance), beat)
        try:
            async with asyncio.timeout(0.1):
                await stop.wait()
        except TimeoutError:
            pass
    print("goodbye from", instance, flush=True)
    await asyncio.gather(*answers)
    await bus.close()

logging.configure("info", role, instance, log_format=os.environ["PENSTOCK_LOG_FORMAT"])
asyncio.run(main())
'''

DRIVER_NAME = "launcher_driver.py"
DRIVER = """
import sys
from services.launcher.__main__ import main
from services.launcher.processes.instance import InstanceSpec
from services.launcher.watch import prober
from services.launcher.plan import plan_instances
from shared.bus import connection, refusals

connection.FIRST_CONNECT_S = {first_connect_s!r}
refusals.REFUSED_FOR_S = {refused_for_s!r}
prober.HUNG_AFTER_PROBES = {hung_after_probes!r}
prober.PROBE_EVERY_S = prober.PROBE_TIMEOUT_S = {probe_s!r}
COMMANDS = {commands!r}
FORKED = {{"module": "service", "preload": ("shared.bus",)}} if {forked!r} else {{}}

def plan(options, **addresses):
    for spec in plan_instances(options, **addresses):
        if spec.role in COMMANDS:
            yield InstanceSpec(spec.role, spec.instance, tuple(COMMANDS[spec.role]), spec.environ, **FORKED)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], plan=lambda *a, **k: list(plan(*a, **k))))
"""


def write_driver(
    folder: Path, commands: dict[str, list[str]], *, forked: bool = False, **constants: float
) -> Path:
    """The program that is a launcher of these services; other constants are those of the code."""
    (folder / "service.py").write_text(SERVICE)
    driver = folder / DRIVER_NAME
    driver.write_text(DRIVER.format(commands=commands, forked=forked, **(CONSTANTS | constants)))
    return driver


def service_commands(folder: Path) -> dict[str, list[str]]:
    """What runs a gateway and a decode worker that only say that they are ready."""
    return {role: [sys.executable, str(folder / "service.py"), role] for role in ("gateway", "decode")}


def launcher_environ(folder: Path) -> dict[str, str]:
    """What a driver needs beside what its terminal has."""
    return {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(folder))), "PYTHONUNBUFFERED": "1"}


class Up:
    """A launcher in a process of its own."""

    def __init__(
        self,
        folder: Path,
        commands: dict[str, list[str]],
        *argv: str,
        prefix: tuple[str, ...] = (),
        forked: bool = False,
        **constants: float,
    ) -> None:
        folder.mkdir(exist_ok=True)
        driver = write_driver(folder, commands, forked=forked, **constants)
        self.state_dir = folder / "state"
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self.process = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                str(driver),
                "--state-dir",
                str(self.state_dir),
                "--draft",
                "none",
                *argv,
            ],
            cwd=folder,
            env={**os.environ, **launcher_environ(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [
            threading.Thread(target=self._read, args=pair)
            for pair in ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        lines.extend(line.rstrip("\n") for line in iter(stream.readline, ""))

    async def until_ready(self) -> None:
        await until(lambda: self.stdout or self.process.poll() is not None, timeout_s=TIMEOUT_S)
        assert self.stdout, self.stderr

    def stack(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads((self.state_dir / "stack.json").read_text())
        return described

    def pids(self) -> list[int]:
        """The launcher's children, NATS among them."""
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [int(pid) for pid in children.split()]

    def wait(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return code

    def close(self) -> None:
        self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if running(pid)]


def running(pid: int) -> bool:
    """A zombie is not running: whoever adopted it has only not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def environ_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
