"""The detokenizer's actor: messages in, `DecoderSessions` decides, messages out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import structlog

from services.detokenizer.config import DetokenizerConfig
from services.detokenizer.decoder_session import DecodedRow, text_of
from services.detokenizer.decoder_sessions import DecodedOutput, DecoderSessions, LostRow
from shared.bus import Delivery
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK
from shared.errors import InvalidRequest, PenstockError, Unavailable, UnknownMessage
from shared.messages import Accepted, AllowSuccessor, Cancel, Heartbeat, Held, Open, Tokens
from shared.process.serve_actor import ServiceActor
from shared.process.service import Service
from shared.telemetry import metrics
from shared.text.tokenizer import TextTokenizer

log = structlog.get_logger()

MAILBOX_LIMIT = 8192
"""Messages, each a step of one decode worker: seconds of work."""
TICK_S = 0.025
"""The exactness with which graces and leases are kept."""


@dataclass(frozen=True, slots=True)
class GatewayLost:
    """Told by the process: this gateway's process has ended."""

    gateway: str


class DetokenizerActor(ServiceActor):
    def __init__(self, service: Service[DetokenizerConfig], tokenizer: TextTokenizer) -> None:
        super().__init__("detokenizer", service, mailbox_limit=MAILBOX_LIMIT)
        self._service = service
        self._sessions = DecoderSessions(tokenizer, service.config)
        self._next_tick_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """While there is anything that ends in time."""

    def status(self) -> Heartbeat:
        return replace(
            self._service.heartbeat(),
            capacity=self._service.config.max_sessions,
            live=len(self._sessions),
            queued=self.queued + self._sessions.waiting_rows,
        )

    def held(self) -> list[Held]:
        return list(self._sessions.held())

    # ---- messages -----------------------------------------------------------------------------------

    async def on_message(self, delivery: Delivery) -> None:
        match delivery.message:
            case Tokens() as tokens:
                await self._send(self._sessions.decode_tokens(tokens, delivery.sender))
            case Open() as opened:
                await self._open(delivery, opened)
            case AllowSuccessor(gateway, decode):
                await self._allow_successor(delivery, gateway, decode)
            case Cancel() as cancel:
                await self._cancel(delivery, cancel)
            case other:
                raise UnknownMessage(f"a detokenizer has no use for {type(other).__name__}")

    async def on_item(self, item: Any) -> None:
        if isinstance(item, GatewayLost):
            dropped = self._sessions.gateway_lost(item.gateway)
            log.info("gateway_lost", gateway=item.gateway, decoders_dropped=dropped)
            return
        await super().on_item(item)

    async def _open(self, delivery: Delivery, opened: Open) -> None:
        envelope = delivery.envelope
        if not envelope.request_id or not opened.gateway:
            raise InvalidRequest("Open needs a request_id in its envelope and a gateway")
        if delivery.sender not in ("", opened.gateway):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_route").inc()
            raise InvalidRequest(
                f"{delivery.sender} opens a request for {opened.gateway}; a gateway opens its own"
            )
        if self._service.stopping.is_set():
            raise Unavailable("this detokenizer is draining; open the request elsewhere")
        deadline = self.bus.deadline_of(envelope)
        output = self._sessions.open_decoder(envelope.request_id, envelope.epoch, opened, deadline)
        await self.bus.reply(envelope, Accepted())
        await self._send(output)

    async def _allow_successor(self, delivery: Delivery, gateway: str, decode: str) -> None:
        envelope = delivery.envelope
        if delivery.sender not in ("", gateway):
            metrics.DROPPED_MESSAGES.labels(reason="foreign_route").inc()
            raise InvalidRequest(f"{delivery.sender} speaks for {gateway}; a gateway speaks for itself")
        self._sessions.allow_worker(envelope.request_id, envelope.epoch, gateway, decode)
        await self.bus.answer(envelope, Accepted())

    async def _cancel(self, delivery: Delivery, cancel: Cancel) -> None:
        envelope = delivery.envelope
        if not envelope.request_id:
            raise InvalidRequest("Cancel needs a request_id in its envelope")
        ack = self._sessions.cancel_decoder(
            envelope.request_id, envelope.epoch, cancel.reason, delivery.sender
        )
        await self.bus.answer(envelope, ack)

    # ---- time ---------------------------------------------------------------------------------------

    async def turn(self) -> bool:
        """Renew the leases of living gateways, then act on what time has decided; at most once per TICK_S."""
        if self._sessions.timed and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._on_timer)
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s < self._next_tick_s:
            return False
        self._next_tick_s = now_s + TICK_S
        for gateway in self._sessions.gateways():
            if self._lives(gateway):
                self._sessions.gateway_lives(gateway)
        await self._send(self._sessions.tick())
        metrics.QUEUE_DEPTH.labels(service="detokenizer").set(self._sessions.waiting_rows)
        return False

    def _lives(self, gateway: str) -> bool:
        """Return whether it is in this process, or heard of."""
        if self.bus.is_near(inbox("gateway", gateway)):
            return True
        view = self._service.fleet.get("gateway", gateway)
        return view is not None and not view.suspect

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._send_lost(self._sessions.abandon_decoders())

    # ---- sending ------------------------------------------------------------------------------------

    async def _send(self, output: DecodedOutput) -> None:
        """One `Text` per gateway; where that fails the requests are reported lost."""
        by_gateway: dict[str, list[DecodedRow]] = {}
        for row in output.texts:
            by_gateway.setdefault(row.gateway, []).append(row)
        lost = output.lost
        for gateway, rows in by_gateway.items():
            try:
                envelope = self.bus.envelope(origin=gateway)
                await self.bus.publish(inbox("gateway", gateway), text_of(rows), envelope)
            except PenstockError as error:
                log.warning("text_not_sent", gateway=gateway, rows=len(rows), error=error.message)
                lost = [*lost, *self._sessions.undelivered(rows, error)]
        await self._send_lost(lost)

    async def _send_lost(self, lost: list[LostRow]) -> None:
        for row in lost:
            log.warning("request_lost", request_id=row.request_id, epoch=row.epoch, code=row.lost.code)
            try:
                envelope = self.bus.envelope(row.request_id, row.epoch, origin=row.gateway)
                await self.bus.publish(inbox("gateway", row.gateway), row.lost, envelope)
            except PenstockError as error:
                # The gateway finds out by its stall limit.
                metrics.DROPPED_MESSAGES.labels(reason="lost_not_sent").inc()
                log.warning("lost_not_sent", request_id=row.request_id, error=error.message)
