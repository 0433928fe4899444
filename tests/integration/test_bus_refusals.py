"""A real nats-server whose passwords change while connections are open."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from shared.bus import Bus, Delivery, refusals
from shared.bus.bulk import BulkConnection
from shared.bus.client import BusClient
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import inbox
from shared.messages import Cancel
from tests.support.wait import until

PREFILL = inbox("prefill", "prefill-0")


def users(password: str, user: str = "u") -> str:
    return f"authorization {{ user: {user}, password: {password} }}"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.toml"
    Credentials("u", "before").write(file)
    return file


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    server = NatsServer(extra_config=users("before"))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def renewed(server: NatsServer) -> AsyncIterator[NatsServer]:
    """The same server with another password, not started yet."""
    renewed = NatsServer(port=server.port, extra_config=users("after"))
    yield renewed
    await renewed.stop()


@pytest.fixture
async def bus(server: NatsServer, own: Path) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, name="control", credentials=load_credentials(str(own)))
    yield bus
    await bus.close()


@pytest.fixture
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as logs:
        yield logs


def told(logs: list[structlog.typing.EventDict]) -> list[str]:
    """Above debug, about refusals."""
    return [
        entry["connection"]
        for entry in logs
        if entry["log_level"] != "debug" and "efuse" in entry.get("error", "") + entry["event"]
    ]


async def three_more_attempts(client: BusClient) -> None:
    (server,) = client._server_pool
    before = server.reconnects
    await until(lambda: server.reconnects >= before + 3)


async def test_who_is_refused_reads_its_file_again_and_comes_back(
    server: NatsServer, renewed: NatsServer, bus: Bus, own: Path, logs: list[structlog.typing.EventDict]
) -> None:
    got: list[Delivery] = []
    await bus.serve(PREFILL, got.append)
    bulk = await BulkConnection.connect(server.url, name="bulk", credentials=load_credentials(str(own)))
    try:
        await server.kill()
        await renewed.start()
        await until(lambda: set(told(logs)) == {"control", "bulk"})
        for client in (bus._connection.client, bulk._client):
            await three_more_attempts(client)
        assert sorted(told(logs)) == ["bulk", "control"]  # once each, however often they try
        Credentials("u", "after").write(own)
        await until(lambda: bus.connected and bulk.connected)
        await bus.publish(PREFILL, Cancel("again"))
        await until(lambda: got)
        assert not bus.lost.is_set()
        assert bus._connection.client.options["reconnect_time_wait"] < refusals.REFUSED_WAIT_S
    finally:
        await bulk.close()


async def test_a_server_that_reads_new_passwords_keeps_its_clients_as_soon_as_their_files_have_them(
    server: NatsServer, bus: Bus, own: Path
) -> None:
    assert server._folder is not None
    config = Path(server._folder.name) / "nats.conf"
    config.write_text(config.read_text().replace("before", "after"))
    os.kill(server.pid, signal.SIGHUP)
    await until(lambda: not bus.connected)
    Credentials("u", "after").write(own)
    await until(lambda: bus.connected)
    assert not bus.lost.is_set()


async def test_a_refusal_that_stays_is_final_and_says_so(
    server: NatsServer, renewed: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSED_FOR_S", 0.1)
    await server.kill()
    await renewed.start()
    async with asyncio.timeout(60):
        await bus.lost.wait()
    assert "refuses the user u" in bus.why_lost
    assert "check PENSTOCK_NATS_CREDENTIALS; it has done so for 0.1 s" in bus.why_lost


async def test_a_file_with_another_user_is_for_a_new_process(
    server: NatsServer, renewed: NatsServer, bus: Bus, own: Path
) -> None:
    Credentials("somebody", "after").write(own)
    await server.kill()
    await renewed.start()
    async with asyncio.timeout(60):
        await bus.lost.wait()
    assert "names the user 'somebody' now, and this process is 'u' to the bus" in bus.why_lost


async def test_a_server_that_is_away_between_two_refusals_refuses_nobody_meanwhile(bus: Bus) -> None:
    clock_s = 1000.0

    class Clock:
        def monotonic_s(self) -> float:
            return clock_s

    refused = bus._connection.refusals
    refused._clock = Clock()  # type: ignore[assignment]  # all of it that is asked
    assert refused.take(Exception("Authorization Violation"))
    clock_s += refusals.REFUSED_FOR_S
    assert not refused.take(ConnectionRefusedError())
    assert refused.take(Exception("Authorization Violation"))
    assert refused.final == ""
    clock_s += refusals.REFUSED_FOR_S
    assert refused.take(Exception("Authorization Violation"))
    assert refused.final
