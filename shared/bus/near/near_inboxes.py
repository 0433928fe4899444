"""Carry what services of one process say to each other: the bytes of the bus, and no socket.

A message goes to its receiver in the next turn of the loop, so that those of one sender come in their order
and nobody is called while he calls. All else is as on the bus: who may say what (the table that a server is
configured by is asked here instead), how long a message may be, what a receiver refuses, and how often an ask
is answered. What is for more than one instance, as heartbeats and broadcast cancels, stays with the server:
only there it says also that its sender is reached by others.
"""

from __future__ import annotations

from contextvars import Context, copy_context
from dataclasses import dataclass

import structlog

from shared.bus.client import Take
from shared.bus.open_asks import OpenAsks
from shared.bus.subjects import ANSWERS
from shared.tasks import Tasks
from shared.telemetry import metrics

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class NearInbox:
    """An inbox of this process. `context` is that of whoever serves it: its log lines say whose they are."""

    take: Take
    context: Context
    is_open: bool = True


class NearInboxes:
    """The inboxes of the services that share a process, by address."""

    def __init__(self) -> None:
        self._inboxes: dict[str, NearInbox] = {}
        self._asks: list[OpenAsks] = []
        self._refusals = Tasks()

    def join(self, asks: OpenAsks) -> None:
        """Hear answers to these asks here."""
        self._asks.append(asks)

    def leave(self, asks: OpenAsks) -> None:
        self._asks.remove(asks)

    def open(self, address: str, take: Take) -> None:
        self._inboxes[address] = NearInbox(take, copy_context())

    def close(self, address: str) -> None:
        """Serve it no more; whoever has asked there, and is not heard any more, is told so."""
        self._inboxes.pop(address).is_open = False

    def inbox(self, address: str) -> NearInbox | None:
        return self._inboxes.get(address)

    def asks_at(self, reply: str) -> OpenAsks | None:
        """Return the asks of this process of which one is answered at `reply`."""
        if not reply.startswith(ANSWERS):
            return None
        place = reply.rpartition(".")[0]
        return next((asks for asks in self._asks if asks.inbox == place), None)

    def deliver(self, inbox: NearInbox, subject: str, reply: str, data: bytes) -> None:
        """Hand it over, where it is still served there."""
        if inbox.is_open:
            waiting = inbox.take(subject, reply, data)
            if waiting is not None:
                self._refusals.start("near-refusal", waiting)
        elif reply and (asks := self.asks_at(reply)) is not None:
            asks.nobody_listens(reply)
        else:
            metrics.DROPPED_MESSAGES.labels(reason="near_gone").inc()
            log.warning("near_message_dropped", subject=subject)
