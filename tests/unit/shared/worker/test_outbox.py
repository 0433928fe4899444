"""Messages of a worker while the bus has no room for them."""

from __future__ import annotations

import pytest

from shared.messages import DraftClose, Message
from shared.worker.outbox import Outbox
from tests.support.metric import value
from tests.support.noted_bus import NotedBus

DECODE = "penstock.decode.decode-0"


def numbered(number: int) -> DraftClose:
    return DraftClose((f"r{number}",), (1,))


class Sender(Outbox):
    def __init__(self) -> None:
        self.sent = NotedBus()
        super().__init__(self.sent, "decode")

    async def send(self, *numbers: int) -> None:
        for number in numbers:
            await self.tell("decode", "decode-0", numbered(number))

    @property
    def heard(self) -> list[Message]:
        return self.sent.to(DECODE)


async def test_what_waits_for_room_goes_before_what_comes_later() -> None:
    outbox = Sender()
    outbox.sent.noted.has_room = False
    await outbox.send(1, 2)
    await outbox.send_waiting()
    assert outbox.heard == []
    outbox.sent.noted.has_room = True
    await outbox.send(3)
    await outbox.send_waiting()
    await outbox.send(4)
    assert outbox.heard == [numbered(number) for number in (1, 2, 3, 4)]


async def test_what_waits_is_sent_at_the_end_without_room() -> None:
    outbox = Sender()
    outbox.sent.noted.has_room = False
    await outbox.send(1, 2)
    await outbox.send_rest()
    assert outbox.heard == [numbered(1), numbered(2)]


async def test_what_is_over_the_limit_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.worker.outbox.OUTBOX_LIMIT", 4)
    before = value("penstock_dropped_messages_total", reason="outbox_full")
    outbox = Sender()
    outbox.sent.noted.has_room = False
    crowded = []
    for number in (1, 2, 3, 4):
        await outbox.send(number)
        crowded.append(outbox.crowded)
    assert crowded == [False, True, True, True]
    assert value("penstock_dropped_messages_total", reason="outbox_full") == before
    await outbox.send(5)
    assert value("penstock_dropped_messages_total", reason="outbox_full") == before + 1
    await outbox.send_rest()
    assert outbox.heard == [numbered(number) for number in (1, 2, 3, 4)]
