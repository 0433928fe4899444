"""The bus over restarts of a real nats-server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from shared.bus import Bus, Delivery, connection, nats_server
from shared.bus.connection import PENDING_BYTES
from shared.bus.nats_server import NatsServer, nats_server_binary
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import DeadlineExpired, Unavailable
from shared.messages import Cancel, Envelope, Snapshot
from tests.support.wait import until

PREFILL = inbox("prefill", "prefill-0")


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="survivor")
    yield bus
    await bus.close()


async def test_the_bus_comes_back_after_a_crash_of_the_server_and_says_so(
    nats_server: NatsServer, bus: Bus
) -> None:
    got: list[Delivery] = []
    reconnected: list[bool] = []
    bus.on_reconnect(lambda: reconnected.append(bus.connected))
    await bus.serve(PREFILL, got.append)
    await nats_server.kill()
    await until(lambda: not bus.connected)
    await nats_server.start()
    await until(lambda: reconnected)
    assert reconnected == [True]
    await bus.publish(PREFILL, Cancel("stop"))
    await until(lambda: got)


async def test_the_bus_comes_back_after_an_orderly_stop_of_the_server(
    nats_server: NatsServer, bus: Bus
) -> None:
    await nats_server.stop()
    await until(lambda: not bus.connected)
    await nats_server.start()
    await until(lambda: bus.connected)
    assert not bus.lost.is_set()


async def test_a_failing_reconnect_callback_does_not_keep_the_next_from_running(
    nats_server: NatsServer, bus: Bus
) -> None:
    called: list[str] = []

    def broken() -> None:
        raise ValueError("callback")

    bus.on_reconnect(broken)
    bus.on_reconnect(lambda: called.append("next"))
    await nats_server.kill()
    await until(lambda: not bus.connected)
    await nats_server.start()
    await until(lambda: called)


@pytest.mark.thorough(but="cancel")
@pytest.mark.parametrize("ends", ["timeout", "cancel"])
async def test_a_flush_that_was_given_up_does_not_make_the_bus_deaf(
    nats_server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its answer comes when nobody waits for it; so it is for who was stopped for seconds himself."""
    os.kill(nats_server.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, nats_server.pid, os.WSTOPPED | os.WNOWAIT)  # noqa: ASYNC222 - at once, all of its threads
    try:
        if ends == "timeout":
            monkeypatch.setattr(connection, "FLUSH_TIMEOUT_S", 0.05)
            with pytest.raises(Unavailable):
                await bus.flush()
            monkeypatch.undo()
        else:
            flushing = asyncio.create_task(bus.flush())
            await until(lambda: bus._connection.client._pongs)
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    await bus.flush()


async def test_what_is_published_meanwhile_is_sent_after_the_reconnection(
    nats_server: NatsServer, bus: Bus
) -> None:
    got: list[Delivery] = []
    await bus.serve(PREFILL, got.append)
    await nats_server.kill()
    await until(lambda: not bus.connected)
    await bus.publish(PREFILL, Cancel("meanwhile"))
    await nats_server.start()
    await until(lambda: got)
    assert got[0].message == Cancel("meanwhile")


async def test_too_much_waiting_for_a_lost_server_is_refused(nats_server: NatsServer, bus: Bus) -> None:
    await nats_server.kill()
    await until(lambda: not bus.connected)
    large = Snapshot(0, bytes(bus.max_payload - 100))
    for _ in range(PENDING_BYTES // bus.max_payload):
        await bus.publish(PREFILL, large)
    with pytest.raises(Unavailable, match="bytes already wait"):
        await bus.publish(PREFILL, large)


async def test_a_server_that_takes_nothing_is_refused_and_then_reconnected(
    nats_server: NatsServer, bus: Bus
) -> None:
    large = Snapshot(0, bytes(bus.max_payload - 100))

    async def refused() -> bool:
        try:
            await bus.publish(PREFILL, large)
        except Unavailable:
            return True
        return False

    os.kill(nats_server.pid, signal.SIGSTOP)
    await until(refused)
    os.kill(nats_server.pid, signal.SIGCONT)
    got: list[Delivery] = []
    await bus.serve(PREFILL, got.append)
    await bus.publish(PREFILL, Cancel("again"))
    await until(lambda: got and got[-1].message == Cancel("again"))


async def test_an_ask_without_a_server_expires_at_its_deadline(nats_server: NatsServer, bus: Bus) -> None:
    await nats_server.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(DeadlineExpired):
        await bus.ask(PREFILL, Cancel("stop"), Envelope(), Deadline.after(0.1))


async def test_closing_without_a_server_is_bounded(nats_server: NatsServer, nats_url: str) -> None:
    bus = await Bus.connect(nats_url, name="leaver")
    await nats_server.kill()
    await until(lambda: not bus.connected)
    async with asyncio.timeout(60):
        await bus.close()


# ---- the server itself ----------------------------------------------------------------------------


def test_the_binary_of_the_package_is_found() -> None:
    assert nats_server_binary().is_file()


async def test_a_free_port_is_kept_over_a_restart(nats_server: NatsServer) -> None:
    port = nats_server.port
    assert port > 0
    await nats_server.kill()
    assert nats_server.pid == 0
    await nats_server.start()
    assert nats_server.port == port


PARENT = """
import asyncio
from shared.bus.nats_server import NatsServer
async def main():
    server = NatsServer()
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
async def test_the_server_dies_with_a_parent_that_was_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.communicate()
    await until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_port_that_is_taken_is_a_clear_error(nats_server: NatsServer) -> None:
    rival = NatsServer(port=nats_server.port)
    with pytest.raises(Unavailable, match="address already in use"):
        await rival.start()
    assert rival.pid == 0


async def test_a_server_that_ends_before_it_has_a_log_is_told_of_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text("#!/bin/sh\necho no more threads >&2\nexit 3\n")
    binary.chmod(0o700)
    monkeypatch.setattr(nats_server, "nats_server_binary", lambda: binary)
    with pytest.raises(Unavailable, match="exited with code 3: no more threads"):
        await NatsServer().start()


async def test_a_lost_server_is_told_and_a_connection_that_was_closed_is_not(nats_server: NatsServer) -> None:
    def lost() -> list[str]:
        return [entry["connection"] for entry in logs if entry["event"] == "bus_disconnected"]

    with structlog.testing.capture_logs() as logs:
        closed = await Bus.connect(nats_server.url, name="closed")
        await closed.close()
        survivor = await Bus.connect(nats_server.url, name="survivor")
        await nats_server.kill()
        await until(lost)  # the client is disconnected before it calls back
        await survivor.close()
    assert lost() == ["survivor"]
