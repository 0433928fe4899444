"""One connection to NATS, with what nats-py 2.16 needs to be safe here.

- Its error callback must never raise: an exception there ends the read loop for good.
- The first connect is bounded (a wrong address would be retried for ever) and ends at once when the
  server refuses the password; later reconnects go on for ever, every 50 ms, unless they are refused.
- `flush()` writes its PING before the pending SUB and PUB, so one flush proves nothing: flush twice.
- A forced flush swallows a cancellation; `publish` raises it again. So may connect, drain and close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import nats.errors
import structlog

from shared.bus.addresses import server_urls, without_password
from shared.bus.client import (
    MAX_OUTSTANDING_PINGS,
    PING_INTERVAL_S,
    BusClient,
    is_refusal,
    login,
    refusal,
)
from shared.bus.credentials import Credentials
from shared.bus.denials import Denials
from shared.bus.near.near_inboxes import NearInboxes
from shared.bus.near.near_side import NearSide
from shared.bus.open_asks import OpenAsks
from shared.bus.permissions import BusUser
from shared.bus.refusals import Refusals
from shared.bus.subjects import answers
from shared.errors import InternalError, TooLarge, Unavailable
from shared.tasks import cancel_until_done
from shared.telemetry import metrics

log = structlog.get_logger()

FIRST_CONNECT_S = 10.0
RECONNECT_WAIT_S = 0.05
PENDING_BYTES = 4 << 20
"""Most bytes that wait for the socket, or for a reconnection, before a publish is refused."""
FLUSH_TIMEOUT_S = 2
DRAIN_TIMEOUT_S = 2.0


class Connection:
    """A nats-py client that raises the errors of shared.errors. `url` names one server, or a cluster's."""

    def __init__(self, url: str, name: str) -> None:
        self.url = without_password(url)
        self.name = name
        self.client = BusClient()
        self.lost = asyncio.Event()
        """Set when the connection is gone for good without our asking: closed by the server over a protocol
        violation, or refused for too long."""
        self.why_lost = f"the NATS server at {self.url} closed the connection for good; its log says why"
        self.denials = Denials(name)
        self.asks = OpenAsks(self.client, self.publish)
        self.near: NearSide | None = None
        """The others of this process, where there are any: what is for them goes through no socket."""
        self.refusals: Refusals
        self.reconnects = 0
        self._answers = answers("")
        self._opened = False
        self._closing = False
        self._last_error: Exception | None = None
        self._reconnect_callbacks: list[Callable[[], None]] = []

    @classmethod
    async def open(cls, url: str, *, name: str, credentials: Credentials | None = None) -> Connection:
        """Raises Unavailable when no server answers within FIRST_CONNECT_S, at once when each refuses us or
        is not to be trusted."""
        self = cls(url, name)
        self._answers = answers(credentials.user if credentials else "")
        self.refusals = Refusals(self.client, name, self.url, credentials, RECONNECT_WAIT_S)
        try:
            await bounded(self.client.connect(**self._options(url, credentials)), FIRST_CONNECT_S)
        except (TimeoutError, nats.errors.Error, OSError, ValueError) as error:
            if self.client.servers:  # a URL that nats-py could not read has opened nothing
                await self._abandon()
            why = self._last_error or error
            if is_refusal(why):
                raise Unavailable(refusal(self.url, credentials, why)) from error
            raise Unavailable(
                f"no NATS server usable at {self.url} within {FIRST_CONNECT_S:g} s "
                f"({_sentence(why)}); start one there or set PENSTOCK_NATS_URL"
            ) from error
        self._opened = True
        self.refusals.ended()
        return self

    def _options(self, url: str, credentials: Credentials | None) -> dict[str, Any]:
        if not (urls := server_urls(url)):
            raise ValueError("no address is named")
        return {
            "servers": urls,
            "name": self.name,
            **login(url, credentials),
            "inbox_prefix": self._answers,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
            "connect_timeout": 1,
            "reconnect_time_wait": RECONNECT_WAIT_S,
            "max_reconnect_attempts": -1,
            "ping_interval": PING_INTERVAL_S,
            "max_outstanding_pings": MAX_OUTSTANDING_PINGS,
            "pending_size": PENDING_BYTES,
            "flush_timeout": FLUSH_TIMEOUT_S,
            "drain_timeout": DRAIN_TIMEOUT_S,
        }

    # ---- state ----------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return bool(self.client.is_connected)

    @property
    def max_payload(self) -> int:
        return int(self.client.max_payload)

    @property
    def has_room(self) -> bool:
        """Return whether a publish returns at once: what waits for the socket is not half of what may."""
        return int(self.client.pending_data_size) < PENDING_BYTES // 2

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnect_callbacks.append(callback)

    # ---- sending --------------------------------------------------------------------------------

    def check_room(self, size: int) -> None:
        """Raise before nats-py sees a message that would hurt the connection.

        TooLarge over the server's max_payload (the server would close the connection for good),
        Unavailable when closed or when the buffer of a broken or stalled connection is full. (While
        connected nats-py first waits FLUSH_TIMEOUT_S for room, then lets the buffer grow.)
        """
        self._check_size(size)
        if self.client.is_closed or self.client.is_draining_pubs:
            raise Unavailable(f"the connection to NATS at {self.url} is closed")
        waiting = self.client.pending_data_size
        if waiting > PENDING_BYTES or (not self.connected and waiting + size > PENDING_BYTES):
            raise Unavailable(
                f"NATS at {self.url} takes nothing and {waiting} bytes already wait for it; retry later"
            )

    def _check_size(self, size: int) -> None:
        if size > self.max_payload:
            raise TooLarge(
                f"a message of {size} bytes is over the NATS server's max_payload of {self.max_payload}: "
                "send less at once, or raise it"
            )

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Queue bytes for the socket, or for whom they are for in this process; they leave on the next turn
        of the loop."""
        if self.near is not None and self.near.send(subject, data, reply):
            return
        if not self.client.send_now(subject, data, reply):
            self.check_room(len(data))
            await self._guarded(self.client.publish(subject, data, reply=reply))

    def join(self, near: NearInboxes, user: BusUser) -> None:
        """Say what is for others of this process, and hear what they say, by `near`."""

        def denied(subject: str) -> None:
            self.denials.take(PermissionError(f'Permissions Violation for Publish to "{subject}"'))

        self.near = NearSide(near, user, self.asks, check_size=self._check_size, denied=denied)

    async def prepare_asks(self) -> None:
        """Listen for answers: `asks` opens none before."""
        if not self.asks.prepared:
            await self._guarded(self.asks.prepare(self._answers))

    async def _guarded(self, call: Awaitable[Any]) -> Any:
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            result = await call
        except TimeoutError:
            raise
        except nats.errors.Error as error:
            raise Unavailable(f"NATS at {self.url} refused a message: {_sentence(error)}") from error
        if task and task.cancelling() > cancels:
            raise asyncio.CancelledError
        return result

    async def flush(self) -> None:
        """Wait until the server has seen everything sent so far. Raises Unavailable."""
        try:
            await self.client.flush(timeout=FLUSH_TIMEOUT_S)
            await self.client.flush(timeout=FLUSH_TIMEOUT_S)
        except nats.errors.Error as error:
            raise Unavailable(f"NATS at {self.url} does not answer: {_sentence(error)}") from error

    # ---- end ------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Hand over what is queued, then close; bounded, and fine when already closed."""
        self._closing = True
        if self.client.is_closed:
            return
        try:
            await bounded(self.client.drain(), DRAIN_TIMEOUT_S)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            log.info("bus_drain_incomplete", connection=self.name, error=_sentence(error))
        await self._abandon()

    async def _abandon(self) -> None:
        self._closing = True
        try:
            await bounded(self.client.close(), DRAIN_TIMEOUT_S)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            log.info("bus_close_incomplete", connection=self.name, error=_sentence(error))

    # ---- callbacks of nats-py (coroutines by its rule; none may raise once it is open) ------------

    async def _on_error(self, error: Exception) -> None:
        # A server that refuses a password closes at once: a reset says less than the reason given before.
        told_why = isinstance(self._last_error, nats.errors.Error)
        if not (told_why and isinstance(error, ConnectionResetError)):
            self._last_error = error
        if is_refusal(error) and not self._opened and self.client.is_refused_everywhere():
            raise error  # the only way out of a first connect that goes on for ever
        if self.refusals.take(error):
            self._check_final()
        elif isinstance(error, nats.errors.SlowConsumerError):
            metrics.DROPPED_MESSAGES.labels(reason="slow_consumer").inc()
            log.warning("bus_slow_consumer", subject=error.subject)
        elif self.denials.take(error):
            return
        elif self.client.is_connected:
            log.warning("bus_error", error=_sentence(error))
        else:
            # One line per failed attempt, twenty a second: only for those who look for it.
            log.debug("bus_connect_failed", url=self.url, error=_sentence(error))

    def _check_final(self) -> None:
        if self.refusals.final and not self.lost.is_set():
            self.why_lost = self.refusals.final
            log.error("bus_refused_for_good", connection=self.name, error=self.why_lost)
            self.lost.set()

    async def _on_disconnected(self) -> None:
        if not self._closing:
            log.warning("bus_disconnected", connection=self.name, url=self.url)

    async def _on_reconnected(self) -> None:
        metrics.RECONNECTS.inc()
        log.info("bus_reconnected", connection=self.name, url=self.url)
        self.refusals.ended()
        self.reconnects += 1
        self.asks.reconnected()
        for callback in self._reconnect_callbacks:
            try:
                callback()
            except Exception:  # it would stop nats-py's reconnect task
                log.exception("bus_reconnect_callback_failed", connection=self.name)

    async def _on_closed(self) -> None:
        if not self._closing:
            log.error("bus_closed_by_server", connection=self.name, error=_sentence(self.client.last_error))
            self.lost.set()


async def bounded(call: Coroutine[Any, Any, None], seconds: float) -> None:
    """`call` to its end, or TimeoutError."""
    task = asyncio.create_task(call)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        await task
    finally:
        await cancel_until_done(task)


def _sentence(error: object) -> str:
    return str(error) or type(error).__name__


def internal(error: Exception) -> InternalError:
    """Return what the other side hears when code of ours failed; the traceback stays in our log."""
    return InternalError(f"a handler failed with {type(error).__name__}; its log has the traceback")
