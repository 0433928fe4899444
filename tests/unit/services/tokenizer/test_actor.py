"""The tokenizer's queue: cancelled and expired prompts are never started, and a panic is answered first."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import cast

import pytest

from services.tokenizer.actor import INLINE_CHARS, TokenizerActor
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.prompt_tokenizer import PromptTokenizer
from shared.actor import Supervisor
from shared.messages import Cancel, CancelAck, Failure, Message, Tokenize, Tokenized
from shared.process.service import Service
from tests.support.noted_bus import REPLY, NotedBus
from tests.support.wait import until

LONG = "x" * (INLINE_CHARS + 1)


class Panic(BaseException):
    """As those of extensions in Rust: no Exception."""


class HeldTokenizer:
    """Answers every prompt once the test lets it; "panic…" breaks it."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []

    def tokenize_prompt(self, message: Tokenize) -> Tokenized:
        text = message.text or ""
        self.begun.append(text)
        assert self.go.wait(60)
        if text.startswith("panic"):
            raise Panic
        return Tokenized(b"", b"")


class Rig:
    """A running actor with one thread."""

    def __init__(self) -> None:
        self.bus = NotedBus()
        self.tokenizer = HeldTokenizer()
        service = Service("tokenizer", TokenizerConfig(workers=1), "tokenizer-0")
        service.bus = self.bus
        self.supervisor = Supervisor()
        prompts = cast(PromptTokenizer, self.tokenizer)
        self.actor = self.supervisor.start(lambda: TokenizerActor(service, prompts))

    def ask(self, message: Message, request_id: str, epoch: int = 1, *, seconds: float = 60.0) -> None:
        self.actor.living.receive(self.bus.asked(message, request_id, epoch, seconds=seconds))

    def held(self) -> list[tuple[str, str]]:
        return [(held.request_id, held.phase) for held in self.actor.living.held()]

    def answers(self, request_id: str) -> list[Message]:
        sent = [one for one in self.bus.noted.sent if one.subject == REPLY]
        return [one.message for one in sent if one.envelope.request_id == request_id]

    def codes(self) -> list[str]:
        return [one.message.code for one in self.bus.noted.sent if isinstance(one.message, Failure)]

    async def occupied(self) -> None:
        self.ask(Tokenize(text=LONG), "first")
        await until(lambda: self.tokenizer.begun)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.tokenizer.go.set()
    await rig.supervisor.stop()


async def test_a_cancelled_prompt_leaves_the_queue_and_is_never_started(rig: Rig) -> None:
    await rig.occupied()
    rig.ask(Tokenize(text=LONG + "waiting"), "second")
    await until(lambda: ("second", "queued") in rig.held())
    rig.ask(Cancel("cancelled"), "second")
    await until(lambda: rig.answers("second"))
    assert CancelAck(held=True, phase="queued") in rig.answers("second")
    assert rig.held() == [("first", "tokenizing")]
    rig.tokenizer.go.set()
    await until(lambda: not rig.held())
    assert rig.tokenizer.begun == [LONG]


async def test_a_cancel_that_comes_before_its_prompt_wins(rig: Rig) -> None:
    rig.tokenizer.go.set()
    rig.ask(Cancel("cancelled"), "r")
    rig.ask(Tokenize(text="short"), "r")
    await until(rig.codes)
    assert (rig.codes(), rig.tokenizer.begun) == (["cancelled"], [])


async def test_a_cancel_of_an_earlier_ask_leaves_the_later_one(rig: Rig) -> None:
    rig.tokenizer.go.set()
    rig.ask(Cancel("replaced"), "r", 1)
    rig.ask(Tokenize(text="short"), "r", 2)
    await until(lambda: any(isinstance(answer, Tokenized) for answer in rig.answers("r")))


async def test_a_prompt_that_expires_in_the_queue_is_answered_then_and_never_started(rig: Rig) -> None:
    await rig.occupied()
    rig.ask(Tokenize(text=LONG + "late"), "second", seconds=0.2)
    await until(lambda: ("second", "queued") in rig.held())
    (waiting,) = rig.actor.living._waiting
    deadline = rig.bus.deadline_of(waiting.envelope)
    assert deadline is not None
    await until(deadline.expired)
    rig.actor.wake()
    await until(lambda: rig.codes() == ["expired"])
    rig.tokenizer.go.set()
    await until(lambda: not rig.held())
    assert rig.tokenizer.begun == [LONG]


async def test_a_panic_in_a_thread_is_answered_and_the_next_life_of_the_actor_works(rig: Rig) -> None:
    before = rig.actor.living
    rig.tokenizer.go.set()
    rig.ask(Tokenize(text="panic" + LONG), "r")
    await until(lambda: rig.codes() == ["internal"])
    await until(lambda: rig.actor.living is not before)
    rig.ask(Tokenize(text=LONG), "next")
    await until(lambda: any(isinstance(answer, Tokenized) for answer in rig.answers("next")))
