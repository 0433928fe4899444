"""The bus: typed messages over one NATS connection.

`serve` gives every message of a subject to a synchronous receiver, `publish` is fire-and-forget,
`ask` waits for one reply until a deadline. Bytes that are no message of ours are counted, answered
with a Failure where somebody waits, and never reach a receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from nats import micro
from nats.aio.msg import Msg
from nats.micro.service import Service as MicroService

from shared.bus import codec, subjects
from shared.bus.connection import Connection, internal
from shared.bus.credentials import Credentials
from shared.bus.heartbeats.repeated_beats import HeardBeats, SaidBeat
from shared.bus.late_answers import LateAnswers
from shared.bus.near.near_inboxes import NearInboxes
from shared.bus.open_asks import OpenAsk
from shared.bus.permissions import role_user
from shared.bus.repeated_asks import RepeatedAsks
from shared.bus.unknown_messages import UnknownMessages
from shared.deadline import NO_DEADLINE_US, ClockOffsets, Deadline
from shared.errors import NoAnswer, PenstockError, ProtocolError, Unavailable, UnknownMessage
from shared.messages import Envelope, Failure, Heartbeat, Message
from shared.seams.buggify import BUGGIFY
from shared.telemetry import metrics

log = structlog.get_logger()

NO_ENVELOPE = Envelope()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as its receiver gets it.

    `sender` is the instance that sent it, "" when it has not said: on a closed bus nobody else can say so.
    """

    envelope: Envelope
    message: Message
    sender: str = ""


GoOn = Callable[[], Deadline | None]
"""Asked when a deadline of an ask has passed: until when it is waited for on, None for no longer."""

OnOpen = Callable[[OpenAsk], None]

Receive = Callable[[Delivery], None]
"""Synchronous and never blocking; may raise a PenstockError (Overloaded: the mailbox is full)."""


TakeRaw = Callable[[str, bytes], bool]
"""Takes subject and data of a message that nobody waits for an answer to, and returns whether it has done
all; it may raise what a receiver may."""


class Bus:
    def __init__(self, connection: Connection, sender: str = "") -> None:
        self._connection = connection
        self._sender = sender or subjects.NOBODY
        self._micro: MicroService | None = None
        self._late_answers = LateAnswers(lambda: self.has_room, self._send_answer, self._forget_ask)
        self._repeated_asks = RepeatedAsks()
        self._heard_beats = HeardBeats()
        self._said_beat = SaidBeat()
        self.offsets = ClockOffsets()
        self.unknown = UnknownMessages()
        """Refusals of what another version of the code has sent."""
        self.lost = connection.lost
        """Set when the connection is gone for good; `why_lost` says why."""

    @classmethod
    async def connect(
        cls, url: str, *, name: str, credentials: Credentials | None = None, sender: str = ""
    ) -> Bus:
        """`sender` is the instance that this is, else the user of `credentials`.

        Raises Unavailable after a bounded first try; later it reconnects for ever.
        """
        connection = await Connection.open(url, name=name, credentials=credentials)
        return cls(connection, sender or (credentials.user if credentials else ""))

    @property
    def why_lost(self) -> str:
        """Return the sentence about a connection that is lost for good."""
        return self._connection.why_lost

    @property
    def connected(self) -> bool:
        return self._connection.connected

    @property
    def reconnects(self) -> int:
        """Return how often the connection has been lost and made again: each time messages may have been
        lost."""
        return self._connection.reconnects

    @property
    def has_room(self) -> bool:
        """Return whether a publish returns at once; else it may wait for the server to take what was sent
        before."""
        return self._connection.has_room

    @property
    def max_payload(self) -> int:
        """Bytes a message may have on the wire."""
        return self._connection.max_payload

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """`callback` runs after each reconnection; messages may have been lost before it."""
        self._connection.on_reconnect(callback)

    def join(self, near: NearInboxes, role: str) -> None:
        """Say what is for other services of this process by `near`, as an instance of `role`, and serve them
        there what is served from now on."""
        self._connection.join(near, role_user(role, self._sender))

    def is_near(self, address: str) -> bool:
        """Return whether `address` is served in this process."""
        return self._connection.near is not None and self._connection.near.has(address)

    # ---- receiving ------------------------------------------------------------------------------

    async def serve(self, address: str, receive: Receive, take_raw: TakeRaw | None = None) -> None:
        """Hand every message sent to `address` to `receive` from now on, but for what `take_raw` has done.
        The server knows on return.

        Raises Unavailable when our user may not read there.
        """
        subject = subjects.everything_at(address)

        async def on_message(msg: Msg) -> None:
            refused = self._deliver(receive, msg.subject, msg.reply, msg.data, take_raw)
            if refused is not None:
                await refused

        client = self._connection.client
        take = partial(self._deliver, receive, take_raw=take_raw)
        subscription = await client.subscribe(subject, cb=on_message)
        client.hand_over(subscription, take)
        if self._connection.near is not None:
            self._connection.near.serve(address, take)
        await self._connection.flush()
        self._connection.denials.check_subscribed(subject)

    def _deliver(
        self, receive: Receive, subject: str, reply: str, data: bytes, take_raw: TakeRaw | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Return what is to be sent: the refusal of a message that the receiver does not take, or the answer
        that was given already to an ask that has come before."""
        if reply:
            if self._repeated_asks.is_open(reply):
                self._repeated_asks.came_again(reply)
                metrics.DROPPED_MESSAGES.labels(reason="asked_again").inc()
                return None
            if (answered := self._repeated_asks.answer_of(reply)) is not None:
                return self._answer_again(reply, answered)
            self._repeated_asks.open(reply)
        try:
            if take_raw is None or reply or not take_raw(subject, data):
                envelope, message = self._heard_beats.decode(subject, data, reply)
                sender = _sender_of(subject, message)
                receive(Delivery(envelope, message, sender))
        except ProtocolError as error:
            metrics.PROTOCOL_ERRORS.labels(code=error.code).inc()
            if isinstance(error, UnknownMessage):
                self.unknown.note(subject, error)
            else:
                log.warning("bus_garbage", subject=subject, size_bytes=len(data), error=error.message)
            return self._refuse(subject, reply, error)
        except PenstockError as error:
            return self._refuse(subject, reply, error)
        except Exception as error:  # one message must not stop the others; this one is answered
            log.exception("bus_receiver_failed", subject=subject)
            return self._refuse(subject, reply, internal(error))
        return None

    async def _answer_again(self, reply: str, answered: bytes) -> None:
        try:
            if self.has_room:
                await self._connection.publish(reply, answered)
                return
        except PenstockError as error:
            log.warning("reply_failed", error=error.message)
        metrics.DROPPED_MESSAGES.labels(reason="reply_failed").inc()

    def _forget_ask(self, envelope: Envelope) -> None:
        """Its answer is dropped: when it comes again it is done again."""
        self._repeated_asks.forget(envelope.reply)

    async def _refuse(self, subject: str, reply: str, error: PenstockError) -> None:
        await self.answer(Envelope(reply=reply), error, hop=subjects.role_of_subject(subject))

    # ---- sending --------------------------------------------------------------------------------

    async def publish(self, address: str, message: Message, envelope: Envelope = NO_ENVELOPE) -> None:
        """Raises TooLarge over max_payload, NoListener for a place that cannot be, Unavailable when too much
        already waits for a reconnection."""
        await self._send(self._subject(address, message), message, envelope)

    async def ask(
        self,
        address: str,
        message: Message,
        envelope: Envelope,
        deadline: Deadline,
        go_on: GoOn | None = None,
        *,
        opened: OnOpen | None = None,
    ) -> Message:
        """The reply. Raises the typed error of a Failure, NoListener at once when nobody listens at
        `address`, NoAnswer at the deadline; each names the role asked.

        It is sent again when it or its answer may have been lost: after a reconnection of ours or of whom it
        is for, and at the deadline where `go_on` returns a later one. However often it comes, it is done
        once. `opened` gets the ask before it is sent: who has it may give it up.
        """
        hop = subjects.role_of_subject(address)
        deadline.check(hop)
        data = codec.encode(message, envelope)
        try:
            await self._connection.prepare_asks()
            with self._connection.asks.opened(self._subject(address, message), data) as ask:
                if opened is not None:
                    opened(ask)
                answer = await _answer_of(ask, deadline, go_on)
        except TimeoutError as error:
            raise NoAnswer(f"{address} gave no answer before the deadline", hop=hop) from error
        except Unavailable as error:
            error.hop = error.hop or hop
            raise
        try:
            _, reply = codec.decode(answer)
        except ProtocolError as error:
            metrics.PROTOCOL_ERRORS.labels(code=error.code).inc()
            error.hop = hop
            raise
        if isinstance(reply, Failure):
            raise reply.to_error()
        return reply

    def ask_again(self, address: str) -> None:
        """Send again what is asked at `address` now: it may have been missed there."""
        self._connection.asks.ask_again(address)

    async def reply(self, envelope: Envelope, message: Message) -> None:
        """Answer the asker. Without a reply subject nothing is sent and the drop is counted."""
        if not envelope.reply:
            metrics.DROPPED_MESSAGES.labels(reason="no_reply_subject").inc()
            return
        data = codec.encode(message, envelope)  # the subject that it goes to is no part of it
        await self._connection.publish(self._repeated_asks.answered(envelope.reply, data), data)

    async def answer(self, envelope: Envelope, answer: Message | PenstockError, *, hop: str = "") -> None:
        """Reply where somebody waits, as nobody does for a broadcast; never raises, and never waits for room.

        What is not heard is counted: an error that nobody waits for, an answer that cannot be sent. An error
        that names no hop gets `hop`.
        """
        if isinstance(answer, PenstockError):
            if not envelope.reply:
                metrics.DROPPED_MESSAGES.labels(reason=answer.code).inc()
                log.debug("error_unheard", request_id=envelope.request_id, error=answer.message)
                return
            answer.hop = answer.hop or hop
            answer = Failure.of(answer)
        if not envelope.reply:
            return
        if self._hears_near(envelope.reply) or self._has_room_for_answers():
            await self._send_answer(envelope, answer)
        else:
            self._late_answers.add(envelope, answer)

    def _has_room_for_answers(self) -> bool:
        late = bool(self._late_answers) or not self.has_room
        return not late and not BUGGIFY.takes("an answer waits for room")

    def _hears_near(self, reply: str) -> bool:
        """Return whether an answer waits for no socket."""
        return self._connection.near is not None and self._connection.near.hears_answer(reply)

    async def _send_answer(self, envelope: Envelope, answer: Message) -> None:
        try:
            await self.reply(envelope, answer)
        except PenstockError as error:
            metrics.DROPPED_MESSAGES.labels(reason="reply_failed").inc()
            log.warning("reply_failed", request_id=envelope.request_id, error=error.message)

    def _subject(self, address: str, message: Message) -> str:
        """Raises NoListener."""
        subject = subjects.subject_of(address, type(message).__name__, self._sender)
        subjects.check_place(subject)
        return subject

    async def _send(self, subject: str, message: Message, envelope: Envelope) -> None:
        data = self._said_beat.encode(message, envelope)
        await self._connection.publish(subject, data, envelope.reply)

    # ---- deadlines ------------------------------------------------------------------------------

    def envelope(
        self,
        request_id: str = "",
        epoch: int = 0,
        deadline: Deadline | None = None,
        origin: str = "",
        *,
        trace: str = "",
        tenant: str = "",
    ) -> Envelope:
        """An envelope with the deadline in the clock of `origin`, a gateway instance."""
        deadline_us = NO_DEADLINE_US
        if deadline is not None:
            deadline_us = max(1, deadline.to_steady_us(self.offsets.offset_us(origin)))
        return Envelope(request_id, epoch, deadline_us, origin, trace, tenant=tenant)

    def deadline_of(self, envelope: Envelope) -> Deadline | None:
        """The envelope's deadline on this process's clock; None when it carries none."""
        return self.deadline_at(envelope.deadline_us, envelope.origin)

    def deadline_at(self, steady_us: int, origin: str) -> Deadline | None:
        """A time in the clock of `origin` on this process's clock; None for NO_DEADLINE_US."""
        if steady_us == NO_DEADLINE_US:
            return None
        return Deadline.from_steady_us(steady_us, self.offsets.offset_us(origin))

    # ---- life -----------------------------------------------------------------------------------

    async def announce(self, role: str, metadata: dict[str, str], version: str) -> None:
        """Answer $SRV.PING/INFO/STATS, so that stock NATS tools list this instance."""
        self._micro = await micro.add_service(
            self._connection.client, name=f"penstock-{role}", version=version, metadata=metadata
        )

    async def flush(self) -> None:
        """Wait until the server has everything that was published. Raises Unavailable."""
        await self._connection.flush()

    async def close(self) -> None:
        """Drain, then close; bounded."""
        if self._connection.near is not None:
            self._connection.near.leave()
            self._connection.near = None
        await self._late_answers.close()
        await self._connection.close()


async def _answer_of(ask: OpenAsk, deadline: Deadline, go_on: GoOn | None) -> bytes:
    """Raises TimeoutError when it is not waited for any longer."""
    while True:
        try:
            return await ask.answer(deadline.remaining_s())
        except TimeoutError:
            later = None if go_on is None else go_on()
            if later is None or later.expired():
                raise
            deadline = later


def _sender_of(subject: str, message: Message) -> str:
    """Raises ProtocolError when a message is not what its subject says: only that has been permitted."""
    claim = subjects.Claim.of(subject)
    if claim.message != type(message).__name__:
        raise ProtocolError(f"a {type(message).__name__} came on {subject}")
    if isinstance(message, Heartbeat) and claim.address != subjects.fleet(message.role, message.instance):
        raise ProtocolError(f"a heartbeat of {message.role} {message.instance} came on {subject}")
    return "" if claim.sender == subjects.NOBODY else claim.sender
