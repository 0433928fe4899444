"""Questions of one request: they end early when their instance is lost, and only then."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from services.gateway.fleet.request_client import InstanceGone, RequestClient
from shared.bus import Bus
from shared.bus.bus import GoOn, OnOpen
from shared.bus.open_asks import OpenAsk
from shared.deadline import Deadline
from shared.errors import NoAnswer
from shared.messages import Accepted, Envelope, Message, Tokenize

DECODE = ("decode", "decode-0")


class SlowBus:
    """Answers when the test says so; it is also the ask that it has opened."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def give_up(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def envelope(
        self, request_id: str, epoch: int, _deadline: Deadline, origin: str, *, trace: str, tenant: str
    ) -> Envelope:
        return Envelope(request_id, epoch, origin=origin, trace=trace, tenant=tenant)

    async def ask(
        self,
        _subject: str,
        _message: Message,
        _envelope: Envelope,
        _deadline: Deadline,
        _go_on: GoOn | None = None,
        *,
        opened: OnOpen,
    ) -> Message:
        opened(cast(OpenAsk, self))
        self.asked.set()
        return await self.answer


async def asking(bus: SlowBus) -> tuple[RequestClient, asyncio.Task[Message]]:
    """A client with one open question to decode-0."""
    client = RequestClient(cast(Bus, bus), "gateway-0", "r", Deadline.after(60.0))
    task = asyncio.create_task(client.ask_instance(*DECODE, Tokenize(text="x"), Deadline.after(60.0)))
    await bus.asked.wait()
    return client, task


async def test_a_question_to_a_lost_instance_ends_at_once_and_names_it() -> None:
    client, task = await asking(SlowBus())
    client.stop_asking(*DECODE)
    with pytest.raises(InstanceGone, match="decode-0 stopped answering"):
        await task


async def test_an_instance_that_is_lost_twice_ends_its_question_once() -> None:
    client, task = await asking(SlowBus())
    client.stop_asking(*DECODE)
    await asyncio.sleep(0)
    client.stop_asking(*DECODE)
    with pytest.raises(InstanceGone):
        await task
    client.stop_asking(*DECODE)  # nobody asks it any more


async def test_a_question_to_another_instance_goes_on() -> None:
    bus = SlowBus()
    client, task = await asking(bus)
    client.stop_asking("decode", "decode-1")
    bus.answer.set_result(Accepted())
    assert await task == Accepted()


async def test_a_silence_that_the_bus_reports_stays_a_silence() -> None:
    bus = SlowBus()
    _, task = await asking(bus)
    bus.answer.set_exception(NoAnswer("silent"))
    with pytest.raises(NoAnswer, match="silent"):
        await task
