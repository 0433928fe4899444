"""The launcher's probes: who misses too many in a row is killed, and nobody else."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from services.launcher.processes.instance import Instance, InstanceSpec
from services.launcher.watch import prober
from services.launcher.watch.prober import HUNG_AFTER_PROBES, LATE_S, Prober, trouble_of
from shared.telemetry.http import TelemetryServer
from tests.support.clock import FakeClock
from tests.unit.services.launcher.processes.test_instance import Log

BACKLOG = 4 * HUNG_AFTER_PROBES
"""Connections that nobody takes."""


class Probed(Instance):
    """An instance without a process, which notes why it was killed."""

    def __init__(self) -> None:
        super().__init__(InstanceSpec("decode", "decode-0", (), {}), Log().writer)
        self.killed: list[str] = []
        self.life = 1

    @property
    def pid(self) -> int:
        return self.life

    def kill_hung(self, trouble: str) -> None:
        self.killed.append(trouble)


class Health:
    """What a process says at /live."""

    def __init__(self) -> None:
        self.why = ""


@asynccontextmanager
async def serving(health: Health) -> AsyncIterator[str]:
    server = TelemetryServer("decode", lambda: True, lambda: health.why)
    await server.start("127.0.0.1", 0)
    try:
        yield server.address
    finally:
        await server.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a process that is stopped: the kernel takes connections for it, and nobody answers."""
    monkeypatch.setattr(prober, "PROBE_TIMEOUT_S", 0.02)
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


def prober_of(*targets: tuple[Instance, str]) -> Prober:
    """By its clock no round takes any time, however busy the machine is."""
    return Prober(lambda: targets, FakeClock())


async def rounds(probing: Prober, count: int) -> None:
    for _ in range(count):
        await probing.probe_all()


async def test_a_process_that_says_that_it_is_stalled_is_killed_at_the_limit_and_once() -> None:
    health, one = Health(), Probed()
    health.why = "the engine has not moved for 7.0 s though it has work"
    async with serving(health) as address:
        probing = prober_of((one, address))
        await rounds(probing, HUNG_AFTER_PROBES - 1)
        assert one.killed == []
        await rounds(probing, 2)
    assert one.killed == [health.why]


async def test_a_process_that_does_not_answer_is_killed_and_its_neighbour_is_not(silent: str) -> None:
    hung, well = Probed(), Probed()
    well.life = 2
    async with serving(Health()) as address:
        await rounds(prober_of((hung, silent), (well, address)), HUNG_AFTER_PROBES)
    assert (hung.killed, well.killed) == (["/live does not answer"], [])


async def test_one_good_answer_starts_the_count_again() -> None:
    health, one = Health(), Probed()
    async with serving(health) as address:
        probing = prober_of((one, address))
        for _ in range(3):
            health.why = "the event loop has not moved for 6.0 s though it has work"
            await rounds(probing, HUNG_AFTER_PROBES - 1)
            health.why = ""
            await rounds(probing, 1)
    assert one.killed == []


async def test_rounds_in_which_the_launcher_was_late_itself_do_not_count(silent: str) -> None:
    one, clock = Probed(), FakeClock()
    late_s = LATE_S + 0.1

    def targets() -> list[tuple[Instance, str]]:
        clock.advance(late_s)
        return [(one, silent)]

    probing = Prober(targets, clock)
    await rounds(probing, 2 * HUNG_AFTER_PROBES)
    assert one.killed == []
    late_s = LATE_S - 0.1
    await rounds(probing, HUNG_AFTER_PROBES)
    assert one.killed == ["/live does not answer"]


async def test_a_new_process_starts_without_the_misses_of_the_one_before(silent: str) -> None:
    one = Probed()
    probing = prober_of((one, silent))
    await rounds(probing, HUNG_AFTER_PROBES - 1)
    one.life = 2
    await rounds(probing, HUNG_AFTER_PROBES - 1)
    assert one.killed == []


async def test_nobody_listens_is_a_trouble_too() -> None:
    async with serving(Health()) as address:
        assert await trouble_of(address) == ""
    assert await trouble_of(address) == "/live does not answer"


async def test_a_process_that_was_killed_as_hung_is_started_again() -> None:
    log = Log()
    spec = InstanceSpec("decode", "decode-0", ("/bin/sh", "-c", "kill -STOP $$"), dict(os.environ))
    child = Instance(spec, log.writer)
    child.ready_pid = 1
    task = asyncio.create_task(child.run())
    async with asyncio.timeout(60):
        while not child.restarts:
            child.kill_hung("it is stopped")
            await asyncio.sleep(0.01)
        child.kill()
        await task
    assert "decode-0 hangs (it is stopped); killing it" in log.text()
