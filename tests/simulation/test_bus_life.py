"""How connections come, break and end, on a real nats-server and in memory."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, Delivery, connection
from shared.bus.bulk import BulkConnection
from shared.bus.connection import PENDING_BYTES, Connection
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import Unavailable
from shared.messages import AuditReport, AuditRequest, Cancel, Envelope
from tests.simulation.bus import ServerSettings
from tests.simulation.buses import EitherBus
from tests.simulation.clients import ANSWER_S, raw, told
from tests.simulation.conftest import StartBus
from tests.support.wait import until

DECODE = inbox("decode", "decode-0")
REPORT = AuditReport("decode", "decode-0", 1, ())
BIG_BYTES = 800_000
BIG = Cancel("x" * BIG_BYTES)


# ---- first connections --------------------------------------------------------------------------------


async def test_a_connection_to_nobody_fails_within_its_bound(
    bus: EitherBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_CONNECT_S", 0.2)
    await bus.stop()
    with pytest.raises(Unavailable, match="no NATS server usable"):
        await Connection.open(bus.url, name="early")


async def test_a_first_connection_waits_for_a_server_that_starts(bus: EitherBus) -> None:
    await bus.stop()
    opening = asyncio.create_task(Connection.open(bus.url, name="early"))
    await asyncio.sleep(0.01)
    await bus.start()
    ours = await opening
    assert ours.connected
    await ours.close()


# ---- restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_everybody_reconnects_after_a_restart_and_hears_what_it_heard(bus: EitherBus, end: str) -> None:
    async with told(bus.url) as one, told(bus.url) as other:
        alone, grouped = await one.hear("a.*"), await one.hear("a.*", queue="g")
        await getattr(bus, end)()
        await until(lambda: not (one.client.is_connected or other.client.is_connected))
        await bus.start()
        await until(lambda: one.events == other.events == ["disconnected", "reconnected"])
        await other.say("a.b", b"after")
        assert await alone.has(1) == await grouped.has(1) == [b"after"]


async def test_what_is_said_while_the_server_is_gone_waits_at_its_sender(bus: EitherBus) -> None:
    async with told(bus.url) as one, told(bus.url) as other:
        ear = await other.hear("a")
        await bus.kill()
        await until(lambda: not (one.client.is_connected or other.client.is_connected))
        await other.client.publish("a", b"early")
        await bus.start()
        await until(lambda: other.client.is_connected)
        await other.settle()
        assert ear.data == [b"early"]  # subscriptions are replayed before what has waited
        await one.say("a", b"late")
        assert await ear.has(2) == [b"early", b"late"]


async def test_what_is_said_while_a_receiver_is_gone_is_lost_to_it(bus: EitherBus) -> None:
    async with (
        told(bus.url) as here,
        bus.url_from("away") as url,
        told(url, connect_timeout=0.5) as away,
    ):
        ear, witness = await away.hear("a"), await here.hear("a")
        await here.say("a", b"before")
        await ear.has(1)
        bus.partition("away")
        await away.finds_out()
        await here.say("a", b"meanwhile")
        bus.heal("away")
        await until(lambda: away.events == ["disconnected", "reconnected"])
        await here.say("a", b"after")
        assert await ear.has(2) == [b"before", b"after"]
        assert witness.data == [b"before", b"meanwhile", b"after"]


async def test_a_limit_is_kept_over_a_reconnection(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ear = await client.hear("a", max_msgs=3)
        await ear.subscription.unsubscribe(limit=3)
        await client.say("a", b"1")
        await bus.kill()
        await until(lambda: not client.client.is_connected)
        await bus.start()
        await until(lambda: client.events == ["disconnected", "reconnected"])
        await client.say("a", b"2", b"3", b"4")
        assert ear.data == [b"1", b"2", b"3"]


async def test_too_much_that_waits_for_a_server_is_refused(bus: EitherBus) -> None:
    ours = await Bus.connect(bus.url, name="ours")
    try:
        await bus.kill()
        await until(lambda: not ours.connected)
        for _ in range(PENDING_BYTES // BIG_BYTES):
            await ours.publish(DECODE, BIG)
        with pytest.raises(Unavailable, match="retry later"):
            await ours.publish(DECODE, BIG)
        await bus.start()
        await until(lambda: ours.connected)
        await ours.publish(DECODE, Cancel("again"))
        await ours.flush()
    finally:
        await ours.close()


async def test_an_open_ask_is_asked_again_after_a_restart(bus: EitherBus) -> None:
    asker, asked = await Bus.connect(bus.url, name="asker"), await Bus.connect(bus.url, name="asked")
    taken: list[Delivery] = []
    try:
        await asked.serve(DECODE, taken.append)
        ask = asyncio.create_task(asker.ask(DECODE, AuditRequest(), Envelope(), Deadline.after(ANSWER_S)))
        await until(lambda: taken)
        await bus.kill()
        await until(lambda: not (asker.connected or asked.connected))
        await bus.start()
        await until(lambda: asker.reconnects == asked.reconnects == 1)
        await asked.reply(taken[0].envelope, REPORT)
        assert await ask == REPORT
        assert len(taken) == 1
    finally:
        await asker.close()
        await asked.close()


async def test_the_connection_for_kv_comes_back_too(bus: EitherBus) -> None:
    bulk = await BulkConnection.connect(bus.url, name="decode/decode-0/kv")
    back = asyncio.Event()
    bulk.on_reconnect(back.set)
    try:
        await bus.kill()
        await until(lambda: not bulk.connected)
        with pytest.raises(Unavailable):
            await bulk.send("penstock.kv.decode-0.7", b"head", [memoryview(b"x")])
        await bus.start()
        async with asyncio.timeout(ANSWER_S):
            await back.wait()
        assert bulk.connected
    finally:
        await bulk.close()


# ---- silence ------------------------------------------------------------------------------------------


async def test_who_hears_no_pong_takes_its_connection_for_stale(bus: EitherBus) -> None:
    async with bus.url_from("away") as url, told(url, connect_timeout=0.5) as away:
        bus.partition("away")
        await away.finds_out()
        assert not away.client.is_connected
        bus.heal("away")
        await until(lambda: away.events == ["disconnected", "reconnected"])


async def test_a_short_silence_costs_time_alone(bus: EitherBus) -> None:
    async with told(bus.url) as here, bus.url_from("away") as url, told(url) as away:
        ear, back = await away.hear("a"), await here.hear("b")
        bus.partition("away")
        await here.say("a", b"1", b"2")
        await away.client.publish("b", b"3")
        await asyncio.sleep(0.05)
        assert ear.data == back.data == []
        bus.heal("away")
        assert await ear.has(2) == [b"1", b"2"]
        assert await back.has(1) == [b"3"]
        assert away.events == []


async def test_who_was_cut_off_stays_a_member_of_its_group_until_the_server_hears_of_its_end(
    bus: EitherBus,
) -> None:
    """What goes to a connection that its client has given up is lost, though somebody else could have it."""
    async with (
        told(bus.url) as here,
        bus.url_from("away") as url,
        told(url, connect_timeout=0.5) as away,
    ):
        gone, stays = await away.hear("a", queue="g"), await here.hear("a", queue="g")
        bus.partition("away")
        await away.finds_out()
        await here.say("a", *[b"x"] * 64)
        assert 0 < len(stays.data) < 64
        bus.heal("away")
        await until(lambda: away.events == ["disconnected", "reconnected"])
        assert gone.data == []


async def test_who_does_not_answer_the_servers_pings_is_closed_as_stale(start_bus: StartBus) -> None:
    bus = await start_bus(ServerSettings(ping_interval_s=0.05, ping_max=2))
    async with raw(bus.url, name="mute") as mute:
        assert await mute.rest() == [b"-ERR 'Stale Connection'"]


# ---- ends ---------------------------------------------------------------------------------------------


async def test_a_drain_hears_and_says_what_is_under_way_and_then_ends(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as other:
        heard: list[bytes] = []
        out = await other.hear("out")

        async def slow(message: Msg) -> None:
            await asyncio.sleep(0)
            heard.append(message.data)
            await client.client.publish("out", message.data)

        await client.client.subscribe("a", cb=slow)
        await client.settle()
        numbers = [b"%d" % number for number in range(50)]
        await other.say("a", *numbers)
        await client.settle()
        await client.client.drain()
        assert heard == numbers
        assert await out.has(50) == numbers
        assert client.client.is_closed
        assert client.events == ["disconnected", "closed"]
        with pytest.raises(nats.errors.ConnectionClosedError):
            await client.client.publish("a", b"x")


async def test_who_drains_takes_no_new_subscription_and_may_still_publish(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url) as other:
        ear, go_on = await other.hear("out"), asyncio.Event()

        async def held(message: Msg) -> None:
            await go_on.wait()

        await client.client.subscribe("a", cb=held)
        await client.say("a", b"x")
        drain = asyncio.create_task(client.client.drain())
        await until(lambda: client.client.is_draining)
        with pytest.raises(nats.errors.ConnectionDrainingError):
            await client.client.subscribe("b")
        await client.client.publish("out", b"last words")
        go_on.set()
        await drain
        assert await ear.has(1) == [b"last words"]


async def test_closing_ours_hands_over_what_is_queued_and_refuses_the_rest(bus: EitherBus) -> None:
    ours = await Bus.connect(bus.url, name="ours")
    async with told(bus.url) as other:
        ear = await other.hear("penstock.>")
        for number in range(20):
            await ours.publish(DECODE, Cancel(str(number)))
        await ours.close()
        await ear.has(20)
        with pytest.raises(Unavailable, match="closed"):
            await ours.publish(DECODE, Cancel("late"))
        await ours.close()


async def test_a_lame_duck_says_so_takes_nobody_and_lets_go_of_everybody(start_bus: StartBus) -> None:
    bus = await start_bus(ServerSettings(lame_duck_grace_s=0.1))
    async with told(bus.url, connect_timeout=0.5) as client:
        ear = await client.hear("a")
        await bus.lame_duck()
        await until(lambda: "lame duck" in client.events)
        with pytest.raises(ConnectionRefusedError):
            async with raw(bus.url):
                pass
        if not client.client.is_reconnecting:
            await client.client.publish("a", b"still")
        await until(lambda: client.events == ["lame duck", "disconnected"])
        assert ear.data in ([], [b"still"])
        assert not client.client.is_closed
