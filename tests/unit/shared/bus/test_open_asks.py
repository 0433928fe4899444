"""An open ask is answered, sent again, or given up; it waits for nothing longer than it may."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from shared.bus.client import BusClient
from shared.bus.open_asks import OpenAsk, OpenAsks
from shared.errors import NoListener, Unavailable

FOR_EVER_S = 60.0


class Sent:
    """Keep what was published, by its reply subject."""

    def __init__(self) -> None:
        self.replies: list[str] = []
        self.came = asyncio.Event()

    async def publish(self, subject: str, data: bytes, reply: str) -> None:
        assert (subject, data) == ("place", b"ask")
        self.replies.append(reply)
        self.came.set()

    async def next(self) -> None:
        await self.came.wait()
        self.came.clear()


class Connected:
    is_connected = True


async def asking(timeout_s: float = FOR_EVER_S) -> tuple[Sent, OpenAsk, asyncio.Task[bytes]]:
    sent = Sent()
    asks = OpenAsks(cast(BusClient, Connected()), sent.publish)
    ask = OpenAsk(asks, "place", b"ask", "inbox.1")
    task = asyncio.create_task(ask.answer(timeout_s))
    await sent.next()
    return sent, ask, task


async def test_an_answer_to_any_repetition_counts() -> None:
    sent, ask, task = await asking()
    ask.send_again()
    await sent.next()
    assert sent.replies == ["inbox.1", "inbox.1+1"]
    ask.take(b"answer")
    ask.send_again()  # too late: nobody is asked any more
    assert await task == b"answer"
    assert len(sent.replies) == 2


async def test_who_waits_hears_why_it_is_given_up() -> None:
    _, ask, task = await asking()
    ask.give_up(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await task


async def test_giving_up_is_not_lost_behind_a_repetition() -> None:
    sent, ask, task = await asking()
    ask.send_again()
    ask.give_up(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await task
    assert len(sent.replies) == 1


async def test_an_answer_that_came_first_counts() -> None:
    _, ask, task = await asking()
    ask.take(b"answer")
    ask.give_up(Unavailable("gone"))
    assert await task == b"answer"


async def test_an_ask_whose_time_is_up_may_be_waited_for_once_more() -> None:
    sent, ask, task = await asking(timeout_s=0.0)
    with pytest.raises(TimeoutError):
        await task
    again = asyncio.create_task(ask.answer(FOR_EVER_S))
    await sent.next()
    ask.take(b"answer")
    assert await again == b"answer"
    assert sent.replies == ["inbox.1", "inbox.1+1"]


async def test_nobody_there_is_an_answer() -> None:
    _, ask, task = await asking()
    ask.nobody_listens()
    with pytest.raises(NoListener):
        await task
