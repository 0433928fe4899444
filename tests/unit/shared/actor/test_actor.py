"""One actor: its lanes, its limits, its turns, and what it says before it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shared.actor import Actor, Ask
from shared.actor.actor import DATA_BATCH
from shared.deadline import Deadline
from shared.errors import DeadlineExpired, InternalError, InvalidRequest, Overloaded, Unavailable
from tests.support.wait import until


class Recorder(Actor):
    """Notes what happens; "boom" crashes it, an Ask is answered with its item doubled."""

    def __init__(self, **limits: int) -> None:
        super().__init__("recorder", **limits)
        self.events: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.work = 0

    async def on_start(self) -> None:
        self.events.append("start")

    async def handle(self, item: Any) -> None:
        await self.gate.wait()
        if item == "boom":
            raise ValueError("boom")
        if isinstance(item, Ask):
            if item.item == "silence":
                return
            if item.item == "bad":
                item.fail(InvalidRequest("no"))
            else:
                item.answer(item.item * 2)
            return
        self.events.append(item)

    async def turn(self) -> bool:
        if self.work:
            self.work -= 1
            self.events.append("work")
        return self.work > 0

    async def on_stop(self) -> None:
        self.events.append("stop")


@asynccontextmanager
async def running(actor: Actor) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(actor.run())
    try:
        yield task
    finally:
        actor.stop()
        await asyncio.gather(task, return_exceptions=True)


def soon() -> Deadline:
    return Deadline.after(5.0)


def length(actor: Recorder, count: int) -> Callable[[], bool]:
    return lambda: len(actor.events) >= count


async def test_messages_are_handled_in_order_between_start_and_stop() -> None:
    actor = Recorder()
    actor.tell(1)
    async with running(actor):
        actor.tell(2)
        await until(length(actor, 3))
    assert actor.events == ["start", 1, 2, "stop"]


async def test_control_messages_overtake_data_that_waits() -> None:
    actor = Recorder()
    for item in (1, 2):
        actor.tell(item)
    actor.tell_control("cancel")
    async with running(actor):
        await until(length(actor, 4))
    assert actor.events[:4] == ["start", "cancel", 1, 2]


async def test_a_control_message_overtakes_in_the_middle_of_a_batch() -> None:
    actor = Recorder()
    actor.gate.clear()
    async with running(actor):
        for item in range(3):
            actor.tell(item)
        await until(lambda: actor.queued == 2)
        actor.tell_control("cancel")
        actor.gate.set()
        await until(length(actor, 5))
    assert actor.events[:5] == ["start", 0, "cancel", 1, 2]


async def test_a_full_mailbox_refuses_and_leaves_the_control_lane_open() -> None:
    actor = Recorder(mailbox_limit=2, control_limit=1)
    actor.tell(1)
    actor.tell(2)
    with pytest.raises(Overloaded) as caught:
        actor.tell(3)
    assert caught.value.retry_after_ms > 0
    actor.tell_control("cancel")
    with pytest.raises(Overloaded):
        actor.tell_control("cancel too")


async def test_a_turn_follows_the_messages_and_repeats_while_there_is_work() -> None:
    actor = Recorder()
    async with running(actor):
        await until(length(actor, 1))
        actor.work = 3
        actor.tell(1)
        await until(length(actor, 5))
    assert actor.events == ["start", 1, "work", "work", "work", "stop"]


async def test_an_actor_with_endless_work_lets_others_run() -> None:
    actor = Recorder()
    actor.work = 10**9
    async with running(actor):
        actor.tell(1)
        await until(lambda: 1 in actor.events)


async def test_a_flood_of_data_does_not_keep_turns_away() -> None:
    actor = Recorder(mailbox_limit=2 * DATA_BATCH)
    actor.work = 1
    for item in range(2 * DATA_BATCH):
        actor.tell(item)
    async with running(actor):
        await until(length(actor, 2 * DATA_BATCH + 2))
    assert actor.events.index("work") == DATA_BATCH + 1


async def test_wake_gives_a_turn_without_a_message() -> None:
    actor = Recorder()
    async with running(actor):
        await until(length(actor, 1))
        actor.work = 1
        actor.wake()
        await until(length(actor, 2))
    assert actor.events == ["start", "work", "stop"]


async def test_ask_returns_the_answer() -> None:
    actor = Recorder()
    async with running(actor):
        assert await actor.ask(21, soon()) == 42


async def test_ask_raises_the_error_it_was_answered_with() -> None:
    actor = Recorder()
    async with running(actor):
        with pytest.raises(InvalidRequest):
            await actor.ask("bad", soon())


async def test_ask_without_an_answer_expires_and_names_the_actor() -> None:
    actor = Recorder()
    async with running(actor):
        with pytest.raises(DeadlineExpired) as caught:
            await actor.ask("silence", Deadline.after(0.02))
    assert caught.value.hop == "recorder"


async def test_ask_after_the_deadline_is_not_even_sent() -> None:
    actor = Recorder()
    with pytest.raises(DeadlineExpired):
        await actor.ask(1, Deadline.after(-1))
    assert actor.queued == 0


async def test_a_late_answer_to_an_asker_that_gave_up_is_fine() -> None:
    actor = Recorder()
    actor.gate.clear()
    async with running(actor) as task:
        with pytest.raises(DeadlineExpired):
            await actor.ask(1, Deadline.after(0.02))
        actor.gate.set()
        actor.tell("next")
        await until(lambda: "next" in actor.events)
        assert not task.done()


async def test_a_cancelled_asker_is_cancelled() -> None:
    actor = Recorder()
    async with running(actor):
        asking = asyncio.create_task(actor.ask("silence", soon()))
        await until(lambda: actor.queued == 0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_crashing_actor_fails_its_pending_asks_first() -> None:
    actor = Recorder()
    actor.gate.clear()
    async with running(actor) as task:
        actor.tell("boom")
        asks = [asyncio.create_task(actor.ask("silence", soon())) for _ in range(3)]
        await until(lambda: actor.queued == 3)
        actor.gate.set()
        for result in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(result, InternalError)
            assert result.hop == "recorder"
        with pytest.raises(ValueError, match="boom"):
            await task
    assert actor.events[-1] == "stop"


async def test_a_stopped_actor_fails_its_pending_asks_and_refuses_new_messages() -> None:
    actor = Recorder()
    async with running(actor) as task:
        asking = asyncio.create_task(actor.ask("silence", soon()))
        await until(lambda: actor.queued == 0 and "start" in actor.events)
        actor.stop()
        await task
        with pytest.raises(Unavailable):
            await asking
    with pytest.raises(Unavailable):
        actor.tell(1)


async def test_an_actor_is_busy_with_a_message_until_it_is_handled_and_then_waits() -> None:
    actor = Recorder()
    (activity,) = actor.activities()
    actor.gate.clear()
    async with running(actor):
        actor.tell(1)
        await until(lambda: actor.queued == 0)
        assert activity.busy
        moved = activity.moved
        actor.gate.set()
        await until(lambda: not activity.busy)
        assert activity.moved > moved


async def test_each_message_of_a_batch_is_a_move() -> None:
    actor = Recorder()
    (activity,) = actor.activities()
    for item in range(10):
        actor.tell(item)
    async with running(actor):
        await until(length(actor, 11))
    assert activity.moved >= 10
