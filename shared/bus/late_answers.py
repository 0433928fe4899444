"""Answers that the bus has no room for yet: whoever gives one goes on, and it is sent when there is room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from shared.messages import Envelope, Message
from shared.tasks import cancel_until_done, start_task
from shared.telemetry import metrics

LATE_ANSWERS_LIMIT = 2048
"""The most that is kept; the rest is dropped and counted: its asker has a deadline."""
ROOM_LOOK_S = 0.02


class LateAnswers:
    """Answers that wait for room, in the order in which they were given. `send` raises nothing; `dropped`
    hears of each that is not sent."""

    def __init__(
        self,
        has_room: Callable[[], bool],
        send: Callable[[Envelope, Message], Awaitable[None]],
        dropped: Callable[[Envelope], None],
    ) -> None:
        self._has_room = has_room
        self._send = send
        self._dropped = dropped
        self._waiting: deque[tuple[Envelope, Message]] = deque()
        self._sending: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, envelope: Envelope, answer: Message) -> None:
        if len(self._waiting) >= LATE_ANSWERS_LIMIT:
            metrics.DROPPED_MESSAGES.labels(reason="reply_failed").inc()
            self._dropped(envelope)
            return
        self._waiting.append((envelope, answer))
        if self._sending is None or self._sending.done():
            self._sending = start_task(self._send_waiting(), name="late-answers")

    async def close(self) -> None:
        """Drop what still waits."""
        if self._sending is not None:
            await cancel_until_done(self._sending)
        metrics.DROPPED_MESSAGES.labels(reason="reply_failed").inc(len(self._waiting))
        self._waiting.clear()

    async def _send_waiting(self) -> None:
        while self._waiting:
            while not self._has_room():  # noqa: ASYNC110 - nats-py tells nobody when there is some
                await asyncio.sleep(ROOM_LOOK_S)
            await self._send(*self._waiting.popleft())
