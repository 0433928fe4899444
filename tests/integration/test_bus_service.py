"""A service as a real process: exit codes, signals, readiness, its place in the fleet."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.launcher.processes.child import Child
from shared.bus import Bus
from shared.bus.credentials import Credentials
from shared.bus.fleet import FleetView, InstanceView
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.health.watchdog import END_FACTOR
from shared.messages import Accepted, AuditReport, AuditRequest, Drain, Envelope, Message, Retrieve
from tests.support.closed_bus import closed_bus
from tests.support.forked import SharedForker
from tests.support.heartbeats import make_heartbeat
from tests.support.wait import until

INBOX = inbox("retriever", "retriever-0")
START_S = 60
"""Importing everything on a busy machine takes a while."""


class Process:
    """The echo service as a child; what it says is collected."""

    def __init__(self, child: Child) -> None:
        self.child = child.process
        self.stderr = ""
        self._pipe = child.pipe
        self._reader = asyncio.create_task(self._read(child.output))

    async def _read(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            self.stderr += line.decode()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]

    def event(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events() if event["event"] == name), None)

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(START_S):
            code = await self.child.wait()
            await self._reader
        return code

    async def end(self) -> None:
        if self.child.returncode is None:
            self.child.send_signal(signal.SIGKILL)
        await self.child.wait()
        await self._reader
        self._pipe.close()


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(nats_url: str) -> AsyncIterator[Start]:
    processes: list[Process] = []

    async def start(mode: str = "", **variables: str) -> Process:
        environ = {
            **os.environ,
            "PENSTOCK_NATS_URL": nats_url,
            "PENSTOCK_INSTANCE": "retriever-0",
            "ECHO_MODE": mode,
            **variables,
        }
        processes.append(Process(await SharedForker().fork("tests.support.echo_service", environ)))
        return processes[-1]

    yield start
    for process in processes:
        await process.end()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="test")
    yield bus
    await bus.close()


@pytest.fixture
async def fleet(bus: Bus) -> AsyncIterator[FleetView]:
    fleet = FleetView()
    await fleet.start(bus)
    yield fleet
    await fleet.stop()


async def seen(fleet: FleetView, state: str) -> InstanceView:
    def view() -> InstanceView | None:
        view = fleet.get("retriever", "retriever-0")
        return view if view is not None and view.heartbeat.state == state else None

    found = await until(view, START_S)
    assert isinstance(found, InstanceView)
    return found


async def status(address: str, path: str) -> int:
    return int((await page(address, path)).split(" ", 2)[1])


async def page(address: str, path: str) -> str:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def ask(bus: Bus, message: Any) -> Any:
    return await bus.ask(INBOX, message, Envelope(), Deadline.after(10))


async def test_a_service_serves_shows_itself_and_ends_with_0_on_sigterm(
    start: Start, bus: Bus, fleet: FleetView
) -> None:
    process = await start()
    view = await seen(fleet, "ready")
    beat = view.heartbeat
    assert beat.pid == process.child.pid
    assert await status(beat.metrics, "/ready") == 200
    (tasks,) = re.findall(r"^penstock_tasks (\d+)", await page(beat.metrics, "/metrics"), re.MULTILINE)
    assert int(tasks) > 1
    assert await ask(bus, Retrieve("x", 5, False)) == Accepted(5)
    assert await ask(bus, AuditRequest()) == AuditReport("retriever", "retriever-0", beat.incarnation, ())
    process.signal(signal.SIGTERM)
    assert await process.exit_code() == 0
    await until(lambda: fleet.get("retriever", "retriever-0") is None)
    ready = process.event("ready")
    assert ready is not None
    assert (ready["metrics"], ready["role"], ready["instance"]) == (beat.metrics, "retriever", "retriever-0")


async def test_a_drain_message_ends_the_service_with_0(start: Start, bus: Bus, fleet: FleetView) -> None:
    process = await start()
    await seen(fleet, "ready")
    assert await ask(bus, Drain()) == Accepted()
    assert await process.exit_code() == 0


async def test_without_an_instance_id_the_service_makes_one(start: Start, fleet: FleetView) -> None:
    await start(PENSTOCK_INSTANCE="")
    await until(lambda: fleet.instances("retriever"), START_S)
    name = fleet.instances("retriever")[0].heartbeat.instance
    assert name.startswith("retriever-")
    assert len(name) == len("retriever-") + 6


async def test_while_it_loads_it_is_alive_in_the_fleet_and_not_ready(start: Start, fleet: FleetView) -> None:
    process = await start("slow_load")
    view = await seen(fleet, "loading")
    assert await status(view.heartbeat.metrics, "/live") == 200
    assert await status(view.heartbeat.metrics, "/ready") == 503
    assert fleet.instances("retriever") == []
    process.signal(signal.SIGINT)
    assert await process.exit_code() == 0


async def test_without_the_bus_it_is_not_ready_until_it_is_back(
    start: Start, nats_server: NatsServer, fleet: FleetView
) -> None:
    await start()
    address = (await seen(fleet, "ready")).heartbeat.metrics

    async def answers(code: int) -> bool:
        return await status(address, "/ready") == code

    await nats_server.kill()
    await until(lambda: answers(503))
    assert await status(address, "/live") == 200
    await nats_server.start()
    await until(lambda: answers(200))


async def test_a_drain_that_takes_too_long_is_cut_off(start: Start, fleet: FleetView) -> None:
    process = await start("slow_drain", PENSTOCK_DRAIN_TIMEOUT_S="0.2")
    await seen(fleet, "ready")
    process.signal(signal.SIGTERM)
    assert await process.exit_code() == 0
    assert process.event("drain_incomplete") is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_second_signal_ends_the_drain_at_once(
    number: signal.Signals, code: int, start: Start, fleet: FleetView
) -> None:
    process = await start("slow_drain", PENSTOCK_DRAIN_TIMEOUT_S="60")
    await seen(fleet, "ready")
    process.signal(number)
    await seen(fleet, "draining")
    process.signal(number)
    assert await process.exit_code() == code


async def test_a_wrong_value_exits_2_with_a_sentence_that_names_it(start: Start) -> None:
    process = await start(PENSTOCK_RETRIEVER_METRICS_PORT="http")
    assert await process.exit_code() == 2
    assert process.stderr.startswith(
        "penstock retriever: PENSTOCK_RETRIEVER_METRICS_PORT is 'http'; it must be a whole number"
    )
    assert "Traceback" not in process.stderr


async def test_without_a_nats_server_it_exits_1_and_says_where_it_looked(start: Start) -> None:
    process = await start("impatient", PENSTOCK_NATS_URL="nats://127.0.0.1:1")
    assert await process.exit_code() == 1
    assert "no NATS server usable at nats://127.0.0.1:1 " in process.stderr
    assert "Traceback" not in process.stderr


async def test_credentials_from_a_file_are_used(start: Start, tmp_path: Path) -> None:
    async with closed_bus() as closed:
        closed.credentials("retriever-0").write(tmp_path / "own.toml")
        await start(PENSTOCK_NATS_URL=closed.url, PENSTOCK_NATS_CREDENTIALS=str(tmp_path / "own.toml"))
        async with closed.bus("gateway-0") as gateway:
            view = FleetView()
            await view.start(gateway)
            assert (await seen(view, "ready")).heartbeat.instance == "retriever-0"
            await view.stop()


async def test_a_wrong_password_exits_1_at_once_with_a_sentence(start: Start, tmp_path: Path) -> None:
    Credentials("retriever-0", "guessed").write(tmp_path / "wrong.toml")
    async with closed_bus() as closed:
        process = await start(
            PENSTOCK_NATS_URL=closed.url, PENSTOCK_NATS_CREDENTIALS=str(tmp_path / "wrong.toml")
        )
        assert await process.exit_code() == 1
    sentence = f"penstock retriever: the NATS server at {closed.url} refuses the user retriever-0 "
    assert sentence in process.stderr
    assert "guessed" not in process.stderr
    assert "Traceback" not in process.stderr


async def test_credentials_of_another_instance_exit_1_with_a_sentence(start: Start, tmp_path: Path) -> None:
    async with closed_bus() as closed:
        closed.credentials("decode-0").write(tmp_path / "other.toml")
        process = await start(
            PENSTOCK_NATS_URL=closed.url, PENSTOCK_NATS_CREDENTIALS=str(tmp_path / "other.toml")
        )
        assert await process.exit_code() == 1
    assert "does not let this user read penstock.heartbeat_request.retriever.retriever-0" in process.stderr


async def test_credentials_that_cannot_be_read_exit_2_with_a_sentence(start: Start) -> None:
    process = await start(PENSTOCK_NATS_CREDENTIALS="/nowhere.toml")
    assert await process.exit_code() == 2
    assert "penstock retriever: the NATS credentials /nowhere.toml cannot be read" in process.stderr
    assert "Traceback" not in process.stderr


async def test_a_model_that_is_not_there_exits_1_with_its_sentence(start: Start) -> None:
    process = await start("missing_model")
    assert await process.exit_code() == 1
    assert "penstock retriever: the model directory /nowhere does not exist" in process.stderr


async def test_a_taken_metrics_port_exits_1(start: Start, fleet: FleetView) -> None:
    await start()
    port = (await seen(fleet, "ready")).heartbeat.metrics.rpartition(":")[2]
    rival = await start(PENSTOCK_METRICS_PORT=port, PENSTOCK_INSTANCE="retriever-1")
    assert await rival.exit_code() == 1
    assert "address already in use" in rival.stderr


async def test_an_actor_that_crashes_for_ever_ends_the_service_with_1(start: Start) -> None:
    process = await start("crash")
    assert await process.exit_code() == 1
    assert "echo crashed 6 times in 10 s, last with ValueError" in process.stderr


@pytest.mark.parametrize(("mode", "what"), [("block", "the event loop"), ("wait", "the actor echo")])
async def test_what_hangs_is_told_at_live_and_ends_the_service_with_1(
    mode: str, what: str, start: Start, bus: Bus, fleet: FleetView
) -> None:
    process = await start(mode, PENSTOCK_WATCHDOG_S="1")
    address = (await seen(fleet, "ready")).heartbeat.metrics
    assert await status(address, "/live") == 200
    await bus.publish(INBOX, Retrieve("x", 5, False))

    async def red() -> bool:
        return await status(address, "/live") == 503 == await status(address, "/ready")

    await until(red, START_S)
    assert await process.exit_code() == 1
    hung = process.event("hung")
    assert hung is not None
    assert hung["what"] == what
    assert f"penstock retriever: {what} has not moved for " in process.stderr


async def test_a_service_that_was_stopped_for_longer_than_anything_may_hang_goes_on(
    start: Start, bus: Bus, fleet: FleetView
) -> None:
    process = await start(PENSTOCK_WATCHDOG_S="0.5")
    address = (await seen(fleet, "ready")).heartbeat.metrics
    process.signal(signal.SIGSTOP)
    await until(lambda: not fleet.instances("retriever"))  # a suspect is a stopped one by now
    stopped_s = time.monotonic()
    await until(lambda: time.monotonic() - stopped_s > 2 * END_FACTOR * 0.5)
    process.signal(signal.SIGCONT)
    assert await ask(bus, Retrieve("x", 5, False)) == Accepted(5)
    assert await status(address, "/live") == 200
    assert process.event("stalled") is None
    process.signal(signal.SIGTERM)
    assert await process.exit_code() == 0


async def test_a_time_of_day_that_is_set_costs_no_request(
    start: Start, bus: Bus, fleet: FleetView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the service, and at the gateway that stamps the deadlines: at once, before any heartbeat tells."""
    await start("clock")
    await seen(fleet, "ready")
    beats = HeartbeatPublisher(bus, "gateway", "gateway-0", lambda: make_heartbeat("gateway", "gateway-0"))
    beats.start()

    async def ask(set_there_on_s: int) -> Message:
        deadline = Deadline.after(START_S)
        envelope = bus.envelope("gateway-0.1", 1, deadline, "gateway-0")
        return await bus.ask(INBOX, Retrieve(str(set_there_on_s), 3, may_degrade=True), envelope, deadline)

    try:
        for step_s in (120, -7, -120, 0):
            assert await ask(step_s) == Accepted(3)
        real = time.time_ns
        for step_s in (120, -7, -120):
            monkeypatch.setattr(time, "time_ns", lambda step_s=step_s: real() + step_s * 1_000_000_000)
            assert await ask(0) == Accepted(3)
    finally:
        await beats.stop()


async def test_a_service_that_is_refused_for_too_long_ends_with_a_sentence(
    start: Start, tmp_path: Path
) -> None:
    """A restart lets it read all anew."""
    own = tmp_path / "own.toml"
    Credentials("retriever-0", "before").write(own)
    server = NatsServer(extra_config="authorization { user: retriever-0, password: before }")
    await server.start()
    renewed = NatsServer(
        port=server.port, extra_config="authorization { user: retriever-0, password: after }"
    )
    try:
        process = await start("impatient", PENSTOCK_NATS_URL=server.url, PENSTOCK_NATS_CREDENTIALS=str(own))
        await until(lambda: process.event("ready"), timeout_s=START_S)
        await server.kill()
        await renewed.start()
        assert await process.exit_code() == 1
    finally:
        await server.stop()
        await renewed.stop()
    assert "refuses the user retriever-0" in process.stderr
    assert "it has done so for 0.1 s" in process.stderr
