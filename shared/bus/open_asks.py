"""Asks that wait for their answer, each at an inbox of its own for as long as it is open.

A server that is started again, and a connection that is lost, lose messages silently: the ask, or the answer
to it. So an open ask can be sent again: whoever has it already answers once (`shared.bus.repeated_asks`), and
an answer to either counts. Each repetition has a reply subject of its own: on a closed bus one that comes
twice uses up the leave to answer to it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nats.aio.msg import Msg

from shared.bus.client import BusClient
from shared.bus.subjects import ask_of, repeated
from shared.deadline import SYSTEM_CLOCK, Clock, Deadline
from shared.errors import NoListener
from shared.seams.buggify import BUGGIFY
from shared.seams.chance import CHANCE

PEERS_RETURN_S = 1.0
"""The time after a reconnection in which nobody is believed to be gone: it may still be reconnecting."""
PEERS_POLL_S = 0.05
"""The time after which somebody who may be reconnecting is asked again."""
INBOX_BYTES = 12
NO_RESPONDERS = "503"
"""The status with which a server says that nobody listens to a subject."""

Publish = Callable[[str, bytes, str], Awaitable[None]]


class OpenAsk:
    """One ask, from before it is sent until it is answered or given up."""

    def __init__(self, asks: OpenAsks, subject: str, data: bytes, inbox: str) -> None:
        self.subject = subject
        self._asks = asks
        self._data = data
        self._inbox = inbox
        self._sent = 0
        self._answer: bytes | None = None
        self._over: Exception | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(self, timeout_s: float) -> bytes:
        """Send it, again when something may have been lost, and return what was answered to any of it.

        Raises TimeoutError, NoListener when nobody listens there and nobody is coming back, and what it is
        given up with.
        """
        loop = asyncio.get_running_loop()
        # A timer and a future, not a timeout and an event, which take twice as long: a request asks thrice.
        timer = loop.call_later(max(0.0, timeout_s), self._expire)
        try:
            while self._answer is None:
                self._news = loop.create_future()
                reply, self._sent = repeated(self._inbox, self._sent), self._sent + 1
                await self._asks.publish(self.subject, self._data, reply)
                if BUGGIFY.takes("an ask is sent twice"):
                    self.send_again()
                if self._over is None:
                    await self._news
                if self._over is not None and self._answer is None:
                    raise self._over
        finally:
            timer.cancel()
            self._over = None  # or it would hold this frame, and this frame it
        return self._answer

    def send_again(self) -> None:
        self._wake()

    def take(self, answer: bytes) -> None:
        """Take what was answered; the first answer alone counts."""
        if self._answer is None:
            self._answer = answer
            self._wake()

    def nobody_listens(self) -> None:
        if self._asks.peers_return:
            asyncio.get_running_loop().call_later(PEERS_POLL_S, self.send_again)
        else:
            self.give_up(NoListener("nobody listens there; it has stopped or has not started yet"))

    def give_up(self, error: Exception) -> None:
        """End the waiting for an answer with an error."""
        self._over = error
        self._wake()

    def _expire(self) -> None:
        self.give_up(TimeoutError())

    def _wake(self) -> None:
        if not self._news.done():
            self._news.set_result(None)


class OpenAsks:
    """The open asks of one connection. `publish(subject, data, inbox)` is how it sends."""

    def __init__(self, client: BusClient, publish: Publish, clock: Clock = SYSTEM_CLOCK) -> None:
        self.publish = publish
        self._client = client
        self._clock = clock
        self._open: dict[str, OpenAsk] = {}
        self._inbox = ""
        self._numbers = itertools.count()
        self._peers_return: Deadline | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def prepared(self) -> bool:
        """Return whether answers are listened for."""
        return bool(self._inbox)

    @property
    def inbox(self) -> str:
        """Return the subject below which each ask has its answer, "" before the first."""
        return self._inbox

    @property
    def peers_return(self) -> bool:
        """Return whether somebody who does not listen may only be reconnecting, as we were."""
        if not self._client.is_connected:
            return True
        return self._peers_return is not None and not self._peers_return.expired(self._clock)

    @contextmanager
    def opened(self, subject: str, data: bytes) -> Iterator[OpenAsk]:
        """An ask that is open in this block; `prepare` has run before."""
        number = str(next(self._numbers))
        ask = self._open[number] = OpenAsk(self, subject, data, f"{self._inbox}.{number}")
        try:
            yield ask
        finally:
            del self._open[number]

    async def prepare(self, prefix: str) -> None:
        """Listen for answers, below `prefix`, from the first ask on."""
        if self._inbox:
            return
        self._inbox = f"{prefix}.{CHANCE.hex_digits(INBOX_BYTES)}"
        subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_status)
        self._client.hand_over(subscription, self.take_answer)

    def reconnected(self) -> None:
        """Messages may have been lost: what is open is asked again at once."""
        self._peers_return = Deadline.after(PEERS_RETURN_S, self._clock)
        self.ask_again()

    def ask_again(self, address: str = "") -> None:
        """Send again what is open, of `address` alone where that is given."""
        for ask in self._open.values():
            if not address or ask.subject.startswith(f"{address}."):
                ask.send_again()

    def take_answer(self, subject: str, reply: str, data: bytes) -> None:  # noqa: ARG002 - a callback
        """Take what was answered at `subject`; nobody waits for a second one."""
        ask = self._of(subject)
        if ask is not None:
            ask.take(data)

    def nobody_listens(self, inbox: str) -> None:
        """Tell the ask that is to be answered at `inbox` that nobody hears it."""
        ask = self._of(inbox)
        if ask is not None:
            ask.nobody_listens()

    async def _on_status(self, message: Msg) -> None:
        """Take what the server says itself: that has headers, which no answer of ours has."""
        if message.headers and message.headers.get("Status") == NO_RESPONDERS:
            self.nobody_listens(message.subject)

    def _of(self, inbox: str) -> OpenAsk | None:
        """Return the ask of an inbox; None when it is answered already, or nobody waits any more."""
        return self._open.get(ask_of(inbox).rpartition(".")[2])
