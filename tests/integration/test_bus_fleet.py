"""The fleet over a real nats-server: joining, falling silent, coming back, leaving."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import blake2b

import pytest

from shared.bus import Bus, Delivery
from shared.bus.fleet import FleetView
from shared.bus.fleet_state import SUSPECT_AFTER_S
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import HEARTBEAT_REQUEST_ALL, heartbeat_request, inbox
from shared.bus.subjects import fleet as fleet_subject
from shared.deadline import ClockReading
from shared.engine.memory.block_pool import BlockEvent
from shared.messages import Heartbeat, HeartbeatRequest, Snapshot, SnapshotRequest
from shared.worker.prefix_mirror import PrefixMirror
from tests.support import metric
from tests.support.block_hashes import numbered_hashes, packed_hashes
from tests.support.heartbeats import heartbeat_with, make_heartbeat
from tests.support.wait import until


class Member:
    """One decode instance on a connection of its own, which a test can silence, stop or renew."""

    role = "decode"
    instance = "decode-0"
    rests = False

    def __init__(self, bus: Bus, incarnation: int = 1) -> None:
        self.bus = bus
        self.incarnation = incarnation
        self.hashes: list[int] = []
        self.event_id = 0
        self.added: list[int] = []
        self.live = 0
        self.buckets_asked: list[int] = []
        self.beats = 0
        self.publisher = HeartbeatPublisher(bus, self.role, self.instance, self.status, rests=self.rests)

    @classmethod
    async def join(cls, url: str, incarnation: int = 1) -> Member:
        member = cls(await Bus.connect(url, name=cls.instance), incarnation)
        await member.bus.serve(inbox(cls.role, cls.instance), member.answer_snapshot)
        member.publisher.start()
        return member

    def status(self) -> Heartbeat:
        added, self.added = self.added, []
        self.beats += 1
        return make_heartbeat(
            self.role,
            self.instance,
            incarnation=self.incarnation,
            host="host",
            pid=1,
            live=self.live,
            prefix_event_id=self.event_id,
            added=packed_hashes(*added),
        )

    def cache(self, block_hash: int, *, announced: bool = True) -> None:
        self.hashes.append(block_hash)
        self.event_id += 1
        if announced:
            self.added.append(block_hash)
        self.publisher.changed()

    def page(self, bucket: int) -> Snapshot:
        assert bucket == 0
        return Snapshot(self.event_id, packed_hashes(*self.hashes))

    def answer_snapshot(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, SnapshotRequest)
        self.buckets_asked.append(delivery.message.bucket)
        snapshot = self.page(delivery.message.bucket)
        self.replying = asyncio.create_task(self.bus.reply(delivery.envelope, snapshot))

    @property
    def snapshots_asked(self) -> int:
        """Pages that were asked for from the beginning."""
        return self.buckets_asked.count(0)

    async def leave(self) -> None:
        await self.publisher.stop()
        await self.bus.close()


class LargeMember(Member):
    """It has more blocks cached than fit into one message, and tells of them as a worker does."""

    num_blocks = 150_000

    def __init__(self, bus: Bus, incarnation: int = 1) -> None:
        super().__init__(bus, incarnation)
        self.mirror = PrefixMirror()
        self.names = [
            blake2b(number.to_bytes(4), digest_size=16).digest() for number in range(self.num_blocks)
        ]
        self.mirror.apply(BlockEvent("added", name) for name in self.names)
        while self.mirror.drain().added:
            pass

    def page(self, bucket: int) -> Snapshot:
        return self.mirror.snapshot(bucket)

    def status(self) -> Heartbeat:
        delta = self.mirror.drain()
        beat = super().status()
        return heartbeat_with(beat, prefix_event_id=delta.event_id, added=delta.added, removed=delta.removed)

    def remove(self, block: int) -> None:
        self.mirror.apply([BlockEvent("removed", self.names[block])])
        self.publisher.changed()


class Watch:
    """A FleetView and what its on_lost told."""

    def __init__(self, bus: Bus, view: FleetView) -> None:
        self.bus = bus
        self.view = view
        self.lost: list[tuple[str, str, str]] = []
        view.on_lost(lambda role, instance, why: self.lost.append((role, instance, why)))

    def there(self) -> bool:
        return bool(self.view.instances("decode"))

    def prefix(self) -> set[int]:
        view = self.view.get("decode", "decode-0")
        if view is None or view.prefix_stale:
            return set()
        return {int.from_bytes(name, "big") for name in view.prefix}


@pytest.fixture
async def watch(nats_url: str) -> AsyncIterator[Watch]:
    bus = await Bus.connect(nats_url, name="watch")
    watch = Watch(bus, FleetView(places=True))
    await watch.view.start(bus)
    yield watch
    await watch.view.stop()
    await bus.close()


@pytest.fixture
async def member(nats_url: str, watch: Watch) -> AsyncIterator[Member]:
    member = await Member.join(nats_url)
    await until(watch.there)
    yield member
    await member.leave()


@pytest.fixture
async def member_elsewhere(nats_url: str, watch: Watch) -> AsyncIterator[None]:
    """A member with a loop of its own: it beats whatever ours does."""
    ended = threading.Event()

    async def live() -> None:
        member = await Member.join(nats_url)
        await asyncio.to_thread(ended.wait)
        await member.leave()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        await until(watch.there)
        yield
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)


async def test_an_instance_that_leaves_in_order_is_gone_at_once(nats_url: str, watch: Watch) -> None:
    member = await Member.join(nats_url)
    await until(watch.there)
    await member.leave()
    await until(lambda: watch.lost)
    assert watch.lost == [("decode", "decode-0", "stopped")]
    assert watch.view.all() == []


async def test_three_missed_beats_are_a_loss(nats_url: str, watch: Watch) -> None:
    member = await Member.join(nats_url)
    await until(watch.there)
    await member.bus.close()  # as a crash: no last heartbeat
    await until(lambda: watch.lost)
    assert watch.lost == [("decode", "decode-0", "suspect")]
    assert not watch.there()
    await member.publisher.stop()


async def test_a_new_incarnation_is_a_loss_of_the_old_one(
    nats_url: str, watch: Watch, member: Member
) -> None:
    successor = await Member.join(nats_url, incarnation=2)
    await until(lambda: watch.lost)
    assert watch.lost == [("decode", "decode-0", "restarted")]
    await until(watch.there)
    await successor.leave()


async def test_a_change_is_heard_without_waiting_for_the_next_beat(watch: Watch, member: Member) -> None:
    member.live = 7
    member.publisher.changed()
    await until(lambda: watch.view.instances("decode")[0].heartbeat.live == 7)


async def test_prefix_events_are_followed(watch: Watch, member: Member) -> None:
    member.cache(11)
    member.cache(12)
    await until(lambda: watch.prefix() == {11, 12})
    assert watch.view.instances("decode")[0].overlap(numbered_hashes([11, 12, 13])) == 2


async def test_a_gap_in_the_prefix_events_is_healed_by_a_snapshot(watch: Watch, member: Member) -> None:
    member.cache(11)
    await until(lambda: watch.prefix() == {11})
    member.cache(12, announced=False)
    await until(lambda: watch.prefix() == {11, 12})


async def test_a_late_joiner_learns_the_whole_prefix_set(nats_url: str, member: Member) -> None:
    member.cache(11)
    member.cache(12)
    await until(lambda: not member.added)
    bus = await Bus.connect(nats_url, name="late")
    late = Watch(bus, FleetView(places=True))
    await late.view.start(bus)
    await until(lambda: late.prefix() == {11, 12})
    await late.view.stop()
    await bus.close()


async def test_a_prefix_set_larger_than_a_message_is_learned_page_by_page_and_once(
    nats_url: str, watch: Watch
) -> None:
    member = await LargeMember.join(nats_url)
    assert isinstance(member, LargeMember)
    try:
        await until(lambda: len(watch.prefix()) == member.num_blocks)
        asked = len(member.buckets_asked)
        assert asked > 1
        member.remove(7)
        await until(lambda: len(watch.prefix()) == member.num_blocks - 1)
        beats = member.beats
        await until(lambda: member.beats > beats + 2)
        assert len(member.buckets_asked) == asked
    finally:
        await member.leave()


async def test_who_places_nothing_asks_for_no_prefix_set(nats_url: str, watch: Watch, member: Member) -> None:
    member.cache(11, announced=False)
    bus = await Bus.connect(nats_url, name="onlooker")
    onlooker = Watch(bus, FleetView())
    await onlooker.view.start(bus)
    await until(lambda: watch.prefix() == {11})  # who places has heard of the gap and asked
    await until(onlooker.there)
    beats = member.beats
    await until(lambda: member.beats > beats + 2)
    assert member.snapshots_asked == 1
    assert onlooker.prefix() == set()
    await onlooker.view.stop()
    await bus.close()


async def test_a_restart_of_the_server_loses_nobody(
    nats_server: NatsServer, watch: Watch, member: Member
) -> None:
    await nats_server.kill()
    await until(lambda: not watch.bus.connected)
    await nats_server.start()
    member.live = 9
    await until(lambda: watch.there() and watch.view.instances("decode")[0].heartbeat.live == 9)
    assert [why for _, _, why in watch.lost if why != "suspect"] == []  # a busy machine is late with beats


async def passed(seconds: float) -> None:
    """Real time, in which a real server or a real loop does nothing."""
    end_s = time.monotonic() + seconds
    await until(lambda: time.monotonic() >= end_s, timeout_s=seconds + 5.0)


async def heard_again(watch: Watch) -> None:
    """A heartbeat that was sent after now has come."""
    now_us = time.time_ns() // 1000

    def heard() -> bool:
        view = watch.view.get("decode", "decode-0")
        return view is not None and view.heartbeat.sent_unix_us > now_us

    await until(heard)


async def test_a_second_without_a_connection_of_our_own_suspects_nobody(
    nats_server: NatsServer, watch: Watch, member: Member
) -> None:
    await nats_server.kill()
    await until(lambda: not watch.bus.connected)
    await passed(2 * SUSPECT_AFTER_S)
    await nats_server.start()
    await heard_again(watch)
    assert watch.lost == []


async def test_a_second_in_which_our_own_loop_stood_still_suspects_nobody(
    watch: Watch, member_elsewhere: None
) -> None:
    time.sleep(1.0)  # noqa: ASYNC251 - this is the lag
    await heard_again(watch)
    assert watch.lost == []


async def test_many_lags_of_our_own_loop_suspect_nobody(watch: Watch, member_elsewhere: None) -> None:
    for _ in range(4):
        time.sleep(0.5)  # noqa: ASYNC251 - this is the lag
        await asyncio.sleep(0)
    await heard_again(watch)
    assert watch.lost == []


async def test_a_server_that_stands_still_is_nobody_s_silence(
    nats_server: NatsServer, watch: Watch, member: Member
) -> None:
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        await passed(2 * SUSPECT_AFTER_S)
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    await heard_again(watch)
    assert watch.lost == []


async def test_who_dies_while_the_server_stands_still_is_found_afterwards(
    nats_server: NatsServer, nats_url: str, watch: Watch
) -> None:
    member = await Member.join(nats_url)
    await until(watch.there)
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        member.publisher.changed()
        assert member.publisher._task is not None
        member.publisher._task.cancel()
        await passed(2 * SUSPECT_AFTER_S)
        assert watch.lost == []
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    await until(lambda: watch.lost)
    assert watch.lost == [("decode", "decode-0", "suspect")]
    await member.bus.close()


async def test_a_gateway_s_heartbeat_measures_its_clock(watch: Watch, member: Member) -> None:
    hour_us = 3_600_000_000
    now = ClockReading.now()
    ahead = replace(
        member.status(),
        role="gateway",
        instance="gateway-0",
        sent_unix_us=now.unix_us + hour_us,
        sent_steady_us=now.steady_us + hour_us,
    )
    await member.bus.publish(fleet_subject("gateway", "gateway-0"), ahead)
    await until(lambda: watch.view.get("gateway", "gateway-0"))
    assert watch.view.skewed() == ("gateway-0",)
    assert watch.bus.offsets.offset_us("gateway-0") == pytest.approx(-hour_us, abs=5_000_000)


async def test_a_lying_heartbeat_is_garbage_and_nobody_dies(watch: Watch, member: Member) -> None:
    before = metric.value("penstock_protocol_errors_total", code="protocol")
    now_us = ClockReading.now().steady_us
    odd = heartbeat_with(member.status(), added=b"seven..", sent_steady_us=now_us)
    await member.bus.publish(fleet_subject("decode", "decode-0"), odd)
    await until(lambda: metric.value("penstock_protocol_errors_total", code="protocol") == before + 1)
    member.cache(5)
    await until(lambda: watch.prefix() == {5})


async def test_what_is_no_heartbeat_on_a_fleet_subject_is_ignored(watch: Watch, member: Member) -> None:
    await member.bus.publish(fleet_subject("decode", "decode-0"), Snapshot(0, b""))
    member.live = 3
    member.publisher.changed()
    await until(lambda: watch.view.instances("decode")[0].heartbeat.live == 3)


async def test_a_change_waits_a_moment_for_those_that_come_with_it(nats_url: str) -> None:
    member = await Member.join(nats_url)
    heard: list[int] = []
    bus = await Bus.connect(nats_url, name="heard")

    def hear(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Heartbeat)
        heard.append(delivery.message.live)

    await bus.serve(fleet_subject("decode", "decode-0"), hear)
    await until(lambda: heard)  # the next pause begins
    await until(lambda: member.publisher._changed.waits)  # and is over
    member.publisher.changed()
    member.live = 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    member.live = 2
    await until(lambda: heard[-1] != 0)
    assert 1 not in heard
    await member.publisher.stop()
    await bus.close()
    await member.bus.close()


class Resting(Member):
    """At rest from its first heartbeat on unless it is busy, and then silent for good."""

    rests = True

    @classmethod
    async def join(cls, url: str, incarnation: int = 1) -> Resting:
        member = cls(await Bus.connect(url, name=cls.instance), incarnation)
        await member.publisher.answer_heartbeat_requests()
        member.publisher.start()
        return member


@pytest.fixture
async def resting(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Resting]:
    monkeypatch.setattr("shared.bus.heartbeats.publisher.REST_AFTER_S", 0.0)
    monkeypatch.setattr("shared.bus.heartbeats.publisher.REST_HEARTBEAT_S", 1e6)
    member = await Resting.join(nats_url)
    yield member
    await member.publisher.stop()
    await member.bus.close()


@pytest.fixture
async def listener(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="listener")
    yield bus
    await bus.close()


async def test_who_rests_is_known_to_a_newcomer_who_asks(resting: Resting, listener: Bus) -> None:
    await until(lambda: resting.beats)
    watch = Watch(listener, FleetView())
    await watch.view.start(listener)
    await until(lambda: watch.view.instances("decode"))
    assert watch.view.instances("decode")[0].heartbeat.next_ms == 1_000_000_000
    await watch.view.stop()


async def test_a_heartbeat_request_for_other_roles_wakes_nobody(resting: Resting, listener: Bus) -> None:
    await until(lambda: resting.beats)
    await listener.publish(HEARTBEAT_REQUEST_ALL, HeartbeatRequest(("prefill",)))
    await listener.publish(heartbeat_request("decode", "decode-0"), HeartbeatRequest())
    await until(lambda: resting.beats == 2)
    await listener.flush()
    assert resting.beats == 2


async def test_who_has_work_tells_of_itself_as_often_as_ever(resting: Resting) -> None:
    resting.live = 1
    resting.publisher.changed()
    await until(lambda: resting.beats >= 4)
    last = resting.publisher._last
    assert last is not None
    assert last.next_ms == 250
