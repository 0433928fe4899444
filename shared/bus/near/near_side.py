"""Say what is for others of this process there, as the user that a server would know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared.bus.client import Take
from shared.bus.near.near_inboxes import NearInboxes
from shared.bus.open_asks import OpenAsks
from shared.bus.permissions import BusUser, may_publish
from shared.bus.subjects import Claim, is_inbox


class NearSide:
    """The voice of one service among the others of its process: it may say what its user may.

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
        """The decisions by subject, which says receiver, message and sender: a process has few of its own."""
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
