"""A bus without a server: a test hands deliveries to whom it tests, and reads what that one sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import cast

from shared.bus import Bus, Delivery, codec
from shared.bus.connection import Connection
from shared.bus.subjects import Claim
from shared.deadline import Deadline
from shared.messages import Envelope, Message

REPLY = "reply"
"""The subject that answers to an `asked` go to."""


@dataclass(frozen=True, slots=True)
class Sent:
    """As its receiver would decode it."""

    subject: str
    envelope: Envelope
    message: Message


class NotedConnection:
    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.sent: list[Sent] = []
        self.has_room = True
        self.reconnects = 0
        self.near = None

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        self.sent.append(Sent(subject, *codec.decode(payload, reply)))


class NotedBus(Bus):
    """The real bus in front of a connection that notes instead of sending."""

    def __init__(self) -> None:
        self.noted = NotedConnection()
        super().__init__(cast(Connection, self.noted))

    def to(self, address: str) -> list[Message]:
        return [sent.message for sent in self.noted.sent if Claim.of(sent.subject).address == address]

    def asked(self, message: Message, request_id: str, epoch: int, *, seconds: float = 60.0) -> Delivery:
        """A question of gateway-0."""
        envelope = self.envelope(request_id, epoch, Deadline.after(seconds), "gateway-0")
        return Delivery(replace(envelope, reply=REPLY), message)
