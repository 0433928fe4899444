"""Carry what services of one process say to each other: the bytes of the bus, and no socket.

A message goes to its receiver in the next turn of the loop, so that those of one sender come in their order
and nobody is called while he calls. All else is as on the bus: who may say what (the table that a server is
configured by is asked here instead), how long a message may be, what a receiver refuses, and how often an ask
is answered. What is for more than one instance, as heartbeats and broadcast cancels, stays with the server:
only there it says also that its sender is reached by others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass

import structlog

from shared.bus.client import Take
from shared.bus.open_asks import OpenAsks
from shared.bus.permissions import BusUser, may_publish
from shared.bus.subjects import ANSWERS, Claim, is_inbox
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
        """Whoever has asked there, and is not heard any more, is told so."""
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


class NearSide:
    """What one service of a process says to the others, as the user that it is to a server.

    `check_size` raises TooLarge for more bytes than a server would take; `denied` hears of what may not be
    said.
    """

    def __init__(
        self,
        near: NearInboxes,
        user: BusUser,
        asks: OpenAsks,
        *,
        check_size: Callable[[int], None],
        denied: Callable[[str], None],
    ) -> None:
        self._near = near
        self._user = user
        self._asks = asks
        self._check_size = check_size
        self._denied = denied
        self._served: list[str] = []
        self._permitted: dict[str, bool] = {}
        """By subject, which says receiver, message and sender: there are few of a process's own."""
        near.join(asks)

    def serve(self, address: str, take: Take) -> None:
        """Hand over what is said to `address` in this process, where that is one instance's."""
        if is_inbox(address):
            self._near.open(address, take)
            self._served.append(address)

    def leave(self) -> None:
        """Say and hear nothing here any more."""
        for address in self._served:
            self._near.close(address)
        self._served.clear()
        self._near.leave(self._asks)

    def has(self, address: str) -> bool:
        """Return whether `address` is served in this process."""
        return self._near.inbox(address) is not None

    def hears_answer(self, reply: str) -> bool:
        """Return whether who waits for an answer at `reply` is in this process."""
        return self._near.asks_at(reply) is not None

    def send(self, subject: str, data: bytes, reply: str) -> bool:
        """Deliver a message of ours, or our answer, in the next turn; False where its receiver is elsewhere.

        What our user may not say is said by nobody, as a server does. Raises TooLarge.
        """
        inbox = self._near.inbox(Claim.of(subject).address)
        asks = self._near.asks_at(subject) if inbox is None else None
        if inbox is None and asks is None:
            return False
        self._check_size(len(data))
        loop = asyncio.get_running_loop()
        if asks is not None:
            loop.call_soon(asks.take_answer, subject, "", data)
        elif inbox is not None and self._may_say(subject):
            loop.call_soon(self._near.deliver, inbox, subject, reply, data, context=inbox.context)
        return True

    def _may_say(self, subject: str) -> bool:
        permitted = self._permitted.get(subject)
        if permitted is None:
            permitted = self._permitted[subject] = may_publish(self._user, subject)
        if not permitted:
            self._denied(subject)
        return permitted
