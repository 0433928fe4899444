"""Asks are remembered up to named limits."""

from __future__ import annotations

from dataclasses import replace

from shared.bus import codec
from shared.bus.late_answers import LATE_ANSWERS_LIMIT
from shared.bus.repeated_asks import MAX_ANSWER_BYTES, MAX_ANSWERS, MAX_UNANSWERED, RepeatedAsks
from shared.bus.subjects import inbox, repeated, subject_of
from shared.errors import Unavailable
from shared.messages import Accepted, Envelope, LivenessCheck, Snapshot
from tests.support.noted_bus import NotedBus


def test_the_oldest_open_asks_are_forgotten_beyond_the_limit() -> None:
    asks = RepeatedAsks()
    for number in range(MAX_UNANSWERED + 1):
        asks.open(str(number))
    assert [asks.is_open(str(number)) for number in (0, 1, MAX_UNANSWERED)] == [False, True, True]


def test_the_oldest_answers_are_forgotten_beyond_the_limit() -> None:
    asks = RepeatedAsks()
    for number in range(MAX_ANSWERS + 1):
        asks.open(str(number))
        asks.answered(str(number), b"yes")
    kept = [asks.answer_of(str(number)) for number in (0, 1, MAX_ANSWERS)]
    assert kept == [None, b"yes", b"yes"]


def test_a_large_answer_is_not_kept_and_its_ask_is_done_again() -> None:
    asks = RepeatedAsks()
    for inbox_name, size in (("small", MAX_ANSWER_BYTES), ("large", MAX_ANSWER_BYTES + 1)):
        asks.open(inbox_name)
        asks.answered(inbox_name, bytes(size))
        assert not asks.is_open(inbox_name)
    assert asks.answer_of("small") == bytes(MAX_ANSWER_BYTES)
    assert asks.answer_of("large") is None


def test_an_answer_to_what_has_not_come_here_is_not_kept() -> None:
    asks = RepeatedAsks()
    asks.answered("stranger", b"yes")
    assert asks.answer_of("stranger") is None


def test_an_ask_that_came_again_is_answered_where_it_came_last() -> None:
    asks = RepeatedAsks()
    asks.open("inbox.7")
    for times in (1, 2):
        assert asks.is_open(repeated("inbox.7", times))
        asks.came_again(repeated("inbox.7", times))
    assert not asks.is_open("inbox.8")
    assert asks.answered("inbox.7", b"yes") == repeated("inbox.7", 2)
    assert asks.answer_of(repeated("inbox.7", 3)) == b"yes"


class Asked:
    """A bus that is asked, as the server would hand it on."""

    def __init__(self) -> None:
        self.bus = NotedBus()
        self.got: list[Envelope] = []

    async def ask(self, reply: str) -> None:
        subject = subject_of(inbox("decode", "decode-0"), LivenessCheck.__name__, "gateway-0")
        data = codec.encode(LivenessCheck(), Envelope("r", 1))
        again = self.bus._deliver(lambda delivery: self.got.append(delivery.envelope), subject, reply, data)
        if again is not None:
            await again


async def test_an_ask_whose_answer_was_dropped_for_want_of_room_is_done_again() -> None:
    asked = Asked()
    await asked.ask("inbox.1")
    asked.bus.noted.has_room = False
    for number in range(LATE_ANSWERS_LIMIT):
        await asked.bus.answer(replace(Envelope("r", 1), reply=f"other.{number}"), Snapshot(0, b""))
    await asked.bus.answer(asked.got[0], Accepted())
    await asked.ask("inbox.1")
    assert len(asked.got) == 2
    await asked.bus._late_answers.close()


async def test_an_answer_that_was_given_is_given_again_as_far_as_there_is_room() -> None:
    asked = Asked()
    await asked.ask("inbox.1")
    await asked.bus.answer(asked.got[0], Accepted(3))
    await asked.ask("inbox.1")
    asked.bus.noted.has_room = False
    await asked.ask("inbox.1")
    assert len(asked.got) == 1
    assert [sent.message for sent in asked.bus.noted.sent] == [Accepted(3), Accepted(3)]


async def test_a_refusal_is_an_answer_too() -> None:
    asked = Asked()
    await asked.ask("inbox.1")
    await asked.bus.answer(asked.got[0], Unavailable("ends"))
    await asked.ask("inbox.1")
    assert len(asked.got) == 1
    assert len(asked.bus.noted.sent) == 2
