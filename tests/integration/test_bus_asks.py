"""Asks over a real nats-server that loses messages: each is answered, and done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.cli.fleet.secrets import CONFIG_NAME, CREDENTIALS_NAME, LISTEN, SERVER, write_fleet_secrets
from services.launcher.network.ports import free_ports
from shared.bus import Bus, Delivery
from shared.bus.credentials import load_credentials
from shared.bus.fleet import FleetView
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.nats_server import NatsServer
from shared.bus.repeated_asks import MAX_ANSWER_BYTES
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import NoAnswer, NoListener
from shared.messages import Envelope, LivenessCheck, Message, Snapshot, SnapshotRequest
from tests.support import metric
from tests.support.heartbeats import make_heartbeat
from tests.support.lost_messages import lost_with, sent
from tests.support.wait import until

DECODE = inbox("decode", "decode-a")
LONG_S = 60.0
"""Far longer than any of it takes: who is not asked again runs into it."""
SOON_S = 1.0
"""The time in which a question is sent, also on a busy machine, before its first deadline."""
SMALL = Snapshot(1, b"held")
LARGE = Snapshot(1, bytes(4 * MAX_ANSWER_BYTES))


class Peer:
    """Notes what it is asked; its answers are given by the test."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.got: list[Delivery] = []

    async def listen(self) -> None:
        await self.bus.serve(DECODE, self.got.append)

    async def answer(self, answer: Message = SMALL) -> None:
        await self.bus.reply(self.got[-1].envelope, answer)


@pytest.fixture
async def asker(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="asker")
    yield bus
    await bus.close()


@pytest.fixture
async def peer(nats_url: str) -> AsyncIterator[Peer]:
    peer = Peer(await Bus.connect(nats_url, name="peer"))
    await peer.listen()
    yield peer
    await peer.bus.close()


def asked(bus: Bus) -> asyncio.Task[Message]:
    return asyncio.create_task(bus.ask(DECODE, SnapshotRequest(), Envelope("r", 1), Deadline.after(LONG_S)))


async def test_an_ask_that_was_lost_with_the_server_is_asked_again(
    nats_server: NatsServer, asker: Bus, peer: Peer
) -> None:
    async with lost_with(nats_server):
        asking = asked(asker)
        await until(lambda: len(asker._connection.asks) == 1)
        await sent(asker)
    await until(lambda: peer.got)
    await peer.answer()
    assert await asking == SMALL
    assert len(asker._connection.asks) == 0


@pytest.mark.thorough(but="worked out anew")
@pytest.mark.parametrize("answer", [SMALL, LARGE], ids=["kept", "worked out anew"])
async def test_an_answer_that_was_lost_with_the_server_is_given_again(
    nats_server: NatsServer, asker: Bus, peer: Peer, answer: Snapshot
) -> None:
    asking = asked(asker)
    await until(lambda: peer.got)
    async with lost_with(nats_server):
        await peer.answer(answer)
        await sent(peer.bus)
    if answer is LARGE:
        await until(lambda: len(peer.got) == 2)
        await peer.answer(answer)
    assert await asking == answer
    assert len(peer.got) == (2 if answer is LARGE else 1)


async def test_who_works_on_an_ask_already_is_not_asked_twice(
    nats_server: NatsServer, asker: Bus, peer: Peer
) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="asked_again")
    asking = asked(asker)
    await until(lambda: peer.got)
    await nats_server.kill()
    await nats_server.start()
    await until(lambda: metric.value("penstock_dropped_messages_total", reason="asked_again") > before)
    await peer.answer()
    assert await asking == SMALL
    assert len(peer.got) == 1


async def test_a_peer_that_comes_back_later_than_the_asker_is_waited_for(
    nats_server: NatsServer, asker: Bus
) -> None:
    back: list[None] = []
    asker.on_reconnect(lambda: back.append(None))
    await nats_server.kill()
    await nats_server.start()
    await until(lambda: back)
    asking = asked(asker)
    await until(lambda: any(ask._sent > 1 for ask in asker._connection.asks._open.values()) or asking.done())
    peer = Peer(await Bus.connect(nats_server.url, name="late"))
    try:
        await peer.listen()
        await until(lambda: peer.got)
        await peer.answer()
        assert await asking == SMALL
    finally:
        await peer.bus.close()


async def test_nobody_who_is_not_coming_back_is_told_of_at_once_and_after_a_while(
    nats_server: NatsServer, asker: Bus
) -> None:
    with pytest.raises(NoListener):
        await asked(asker)
    await nats_server.kill()
    await until(lambda: not asker.connected)
    await nats_server.start()
    with pytest.raises(NoListener):
        await asked(asker)


async def test_a_deadline_that_is_moved_on_asks_again(asker: Bus, peer: Peer) -> None:
    before = metric.value("penstock_dropped_messages_total", reason="asked_again")
    with pytest.raises(NoAnswer):  # a later one that has passed is none
        await asker.ask(
            DECODE, LivenessCheck(), Envelope(), Deadline.after(SOON_S), go_on=lambda: Deadline.after(0.0)
        )

    async def ask() -> Message:  # its time begins with it, however late a busy machine begins a task
        return await asker.ask(
            DECODE,
            SnapshotRequest(),
            Envelope(),
            Deadline.after(SOON_S),
            go_on=lambda: Deadline.after(LONG_S),
        )

    asking = asyncio.create_task(ask())
    await until(lambda: asking.done() or any(ask._sent == 2 for ask in asker._connection.asks._open.values()))
    assert not asking.done(), await asking
    await until(lambda: metric.value("penstock_dropped_messages_total", reason="asked_again") > before)
    await peer.answer()
    assert await asking == SMALL


async def test_on_a_closed_bus_an_answer_is_let_through_by_a_server_that_did_not_pass_on_the_question(
    tmp_path: Path,
) -> None:
    write_fleet_secrets(tmp_path)
    server = NatsServer(extra_config=(tmp_path / SERVER / CONFIG_NAME).read_text().removeprefix(LISTEN))
    await server.start()
    gateway = await connect(tmp_path, "gateway", server)
    peer = Peer(await connect(tmp_path, "decode", server))
    try:
        await peer.listen()
        asking = asked(gateway)
        await until(lambda: peer.got)
        async with lost_with(server):
            pass
        await until(lambda: peer.bus.connected)
        await peer.answer()
        assert await asking == SMALL
        assert len(peer.got) == 1
    finally:
        await gateway.close()
        await peer.bus.close()
        await server.stop()


async def connect(secrets: Path, role: str, server: NatsServer) -> Bus:
    credentials = load_credentials(str(secrets / role / CREDENTIALS_NAME))
    return await Bus.connect(server.url, name=role, credentials=credentials, sender=f"{role}-a")


async def test_what_one_s_peer_has_missed_while_its_own_connection_was_lost_is_asked_again() -> None:
    """Two servers: the asker never loses its own."""
    ports = free_ports("127.0.0.1", 2)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    near, far = (
        NatsServer(
            extra_config=f'server_name: server-{port}\ncluster {{ name: fleet, listen: "127.0.0.1:{port}", '
            f"routes: [{routes}], no_advertise: true }}"
        )
        for port in ports
    )
    await near.start()
    await far.start()
    asker, peer = await Bus.connect(near.url, name="asker"), Peer(await Bus.connect(far.url, name="peer"))
    fleet = FleetView()
    beats = HeartbeatPublisher(peer.bus, "decode", "decode-a", lambda: make_heartbeat("decode", "decode-a"))
    try:
        await peer.listen()
        await fleet.start(asker)
        beats.start()
        await until(lambda: fleet.get("decode", "decode-a"))
        async with lost_with(far):
            asking = asked(asker)
            await until(lambda: len(asker._connection.asks) == 1)
            await asker.flush()
        await until(lambda: peer.got)
        await peer.answer()
        assert await asking == SMALL
        assert asker.reconnects == 0
    finally:
        await beats.stop()
        await fleet.stop()
        await asker.close()
        await peer.bus.close()
        await near.stop()
        await far.stop()
