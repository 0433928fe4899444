"""Control messages from synchronous code onto the bus, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import structlog

from shared.deadline import Deadline
from shared.errors import PenstockError
from shared.kv.limits import CONTROL_SENDER_LIMIT
from shared.messages import Envelope, Message
from shared.telemetry import metrics

log = structlog.get_logger()


class ControlBus(Protocol):
    """The part of shared.bus.Bus that transfers use."""

    async def publish(self, subject: str, message: Message, envelope: Envelope = ...) -> None: ...
    async def answer(self, envelope: Envelope, answer: Message) -> None: ...
    async def ask(
        self, subject: str, message: Message, envelope: Envelope, deadline: Deadline
    ) -> Message: ...
    def envelope(
        self, request_id: str = ..., epoch: int = ..., deadline: Deadline | None = ..., origin: str = ...
    ) -> Envelope: ...


class ControlSender:
    """A message that cannot be sent is logged and counted: a timer repeats what matters."""

    def __init__(self, bus: ControlBus) -> None:
        self._bus = bus
        self._waiting: deque[tuple[str, Message, Envelope]] = deque()  # subject "" = reply to the envelope
        self._ready = asyncio.Event()

    def publish(self, subject: str, message: Message, envelope: Envelope) -> None:
        if len(self._waiting) >= CONTROL_SENDER_LIMIT:
            metrics.DROPPED_MESSAGES.labels("kv_outbox").inc()
            return
        self._waiting.append((subject, message, envelope))
        self._ready.set()

    def reply(self, envelope: Envelope, message: Message) -> None:
        self.publish("", message, envelope)

    async def run(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._waiting:
                await self._send(*self._waiting.popleft())

    async def _send(self, subject: str, message: Message, envelope: Envelope) -> None:
        if not subject:
            await self._bus.answer(envelope, message)
            return
        try:
            await self._bus.publish(subject, message, envelope)
        except PenstockError as error:
            metrics.DROPPED_MESSAGES.labels("kv_outbox").inc()
            log.warning("a KV control message was not sent", message=type(message).__name__, error=error.code)
