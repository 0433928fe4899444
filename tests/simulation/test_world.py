"""Nodes of a world: clocks of their own, a pause, a crash after which nothing of them runs, the next life."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from shared.deadline import MAX_SKEW_US, ClockOffsets, ClockReading, Deadline
from shared.seams.chance import CHANCE
from shared.seams.clock import SYSTEM_CLOCK
from tests.simulation.node import Node
from tests.simulation.world import World


async def ended(*tasks: asyncio.Task[Any]) -> list[Any]:
    return [await task for task in tasks]


async def clocks(seconds: float) -> tuple[ClockReading, ClockReading, float]:
    before, before_s = ClockReading.now(), SYSTEM_CLOCK.monotonic_s()
    await asyncio.sleep(seconds)
    return before, ClockReading.now(), SYSTEM_CLOCK.monotonic_s() - before_s


def test_clocks_of_nodes_differ_in_what_they_show_and_in_their_speed() -> None:
    with World(1) as world:
        right, fast = world.add_node("right"), world.add_node("fast", skew_s=2.0, drift_ppb=1_000_000)
        (one, _, took_s), (other, _, fast_took_s) = world.run(
            ended(*(world.start(node, clocks(1000.0), "clocks") for node in (right, fast)))
        )
        assert other.unix_us - one.unix_us == pytest.approx(2_000_000, abs=10)
        assert took_s == fast_took_s == pytest.approx(1000.0)
        assert world.now_s == pytest.approx(1000.0)  # the fast one was done a second before
        assert right.monotonic_ns(0) != fast.monotonic_ns(0)
        ahead_ns = fast.monotonic_ns(world.loop.now_ns) - fast.monotonic_ns(0) - world.loop.now_ns
        assert ahead_ns == pytest.approx(1e9, rel=0.001)


def test_a_time_of_day_that_is_set_moves_no_other_clock() -> None:
    with World(1) as world:
        node = world.add_node("a")
        world.call_in(node, 0.5, node.set_time_of_day, -60.0)
        ((before, after, took_s),) = world.run(ended(world.start(node, clocks(1.0), "clocks")))
        assert after.unix_us - before.unix_us == pytest.approx(-59_000_000, abs=10)
        assert after.steady_us - before.steady_us == pytest.approx(1_000_000, abs=10)
        assert took_s == pytest.approx(1.0)


@pytest.mark.parametrize("skew_s", [0.0, 0.04, -0.06, 7.0])
def test_a_skewed_node_is_seen_by_its_heartbeats_and_its_deadlines_hold(skew_s: float) -> None:
    """The code that measures clocks, between two nodes whose clocks are really apart."""
    seen: list[tuple[float, int, tuple[str, ...]]] = []

    async def gateway(world: World, worker: Node) -> None:
        offsets = ClockOffsets()
        for _ in range(20):
            world.call_in(worker, 0.001 + world.random.random() / 100, heard, offsets, ClockReading.now())
            await asyncio.sleep(0.25)
        stamp_us = Deadline.after(10.0).to_steady_us()
        world.call_in(worker, 0.0, decide, offsets, stamp_us)

    def heard(offsets: ClockOffsets, sent: ClockReading) -> None:
        offsets.observe("gateway-0", sent, ClockReading.now())

    def decide(offsets: ClockOffsets, stamp_us: int) -> None:
        deadline = Deadline.from_steady_us(stamp_us, offsets.offset_us("gateway-0"))
        seen.append((deadline.remaining_s(), offsets.skew_us("gateway-0"), offsets.skewed()))

    with World(3) as world:
        worker = world.add_node("decode-0", skew_s=skew_s)
        world.run(ended(world.start(world.add_node("gateway-0"), gateway(world, worker), "beat")))
        world.run(asyncio.sleep(1.0))
    ((left_s, skew_us, skewed),) = seen
    assert left_s == pytest.approx(10.0, abs=0.01)
    assert skew_us == pytest.approx(skew_s * 1e6, abs=10_000)
    assert bool(skewed) == (abs(skew_s) * 1e6 > MAX_SKEW_US)


def test_a_paused_node_gets_to_nothing_and_then_is_late() -> None:
    seen: list[float] = []

    async def tick() -> None:
        began_s = SYSTEM_CLOCK.monotonic_s()
        for _ in range(4):
            await asyncio.sleep(1.0)
            seen.append(SYSTEM_CLOCK.monotonic_s() - began_s)

    async def disturb(node: Node) -> None:
        await asyncio.sleep(1.5)
        node.pause()
        await asyncio.sleep(10.0)
        assert len(seen) == 1
        node.resume()

    with World(1) as world:
        node = world.add_node("a")
        ticking = world.start(node, tick(), "tick")
        world.run(disturb(node))
        world.run(ended(ticking))
    assert seen == [pytest.approx(at) for at in (1.0, 11.5, 12.5, 13.5)]


def test_nothing_of_a_crashed_node_runs_any_more_and_its_next_life_draws_anew() -> None:
    seen: list[str] = []

    async def live(life: int) -> None:
        seen.append(f"{life} began with {CHANCE.hex_digits(4)}")
        try:
            await asyncio.sleep(10.0)
        finally:
            seen.append(f"{life} cleaned up")

    async def disturb(world: World) -> None:
        world.start(world.add_node("a"), live(1), "live")
        await asyncio.sleep(1.0)
        world.call_in(world.nodes["a"], 1.0, seen.append, "a message that came too late")
        with pytest.raises(ValueError, match="has not crashed"):
            world.add_node("a")
        world.nodes["a"].crash()
        await asyncio.sleep(20.0)
        world.start(world.add_node("a"), live(2), "live")
        await asyncio.sleep(20.0)

    with World(1) as world:
        world.run(disturb(world))
        first, second, last = list(seen)
    assert (first[:12], second[:12], last) == ("1 began with", "2 began with", "2 cleaned up")
    assert first[12:] != second[12:]


def test_a_crash_in_a_job_leaves_its_end_unheard() -> None:
    seen: list[str] = []

    async def live(world: World) -> None:
        await asyncio.to_thread(world.spend_us, 5e6)
        seen.append("ended")

    async def disturb(world: World) -> None:
        node = world.add_node("a")
        world.start(node, live(world), "live")
        await asyncio.sleep(1.0)
        node.crash()
        await asyncio.sleep(20.0)

    with World(1) as world:
        world.run(disturb(world))
    assert seen == []


def test_what_is_left_at_the_end_of_a_world_is_cancelled_in_order() -> None:
    seen: list[str] = []

    async def live() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.0)
            seen.append("cleaned up")

    with World(1) as world:
        node = world.add_node("a")
        world.start(node, live(), "live")
        world.run(asyncio.sleep(1.0))
        node.pause()
    assert seen == ["cleaned up"]


def test_a_clock_that_would_stand_still_is_refused() -> None:
    with World(1) as world, pytest.raises(ValueError, match="would stand still"):
        world.add_node("a", drift_ppb=-1_000_000_000)


def test_the_slowest_clock_that_there_can_be_goes_on() -> None:
    with World(1) as world:
        node = world.add_node("a", drift_ppb=-999_999_999)
        ((_, _, took_s),) = world.run(ended(world.start(node, clocks(1e-6), "clocks")))
        assert took_s == pytest.approx(1e-6, rel=0.01)
        assert world.now_s == pytest.approx(1000.0, rel=0.01)


def test_what_a_crash_has_left_is_ended_in_the_loop() -> None:
    """What a task does at its end may ask which task it is."""
    told: list[str] = []

    async def tell() -> None:
        told.append("told")

    async def guarded(call: Coroutine[Any, Any, None]) -> None:
        asyncio.current_task()
        await call

    async def work() -> None:
        try:
            while True:  # noqa: ASYNC110 - what it is in the middle of is to be ready
                await asyncio.sleep(0)
        finally:
            await guarded(tell())

    async def crash(node: Node) -> None:
        for _ in range(9):
            await asyncio.sleep(0)
        node.crash()

    with World(1) as world:
        node = world.add_node("a")
        world.start(node, work(), "work")
        world.run(crash(node))
        assert told == []
    assert told == ["told"]
