"""Relay a session's buffer to its client, at the speed of the client, over whichever edge it came in."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.rows.row_sink import RowSink
from services.gateway.scope.deliveries import Deliveries
from services.gateway.scope.outcome import Outcome
from services.gateway.session.session import Session
from shared.errors import Cancelled, InternalError, PenstockError

log = structlog.get_logger()

WRITE_GRACE_S = 5.0
"""A client that does not read may keep its call open for so long after the total deadline."""


class ResponseWriter(Protocol):
    """One client. Each method that waits returns when the client has room for more."""

    def put_text(self, position: int, token_ids: tuple[int, ...], text: str) -> bool:
        """Write a row of a plain answer at once. Return False, with nothing written, where that would wait or
        where more than the row is to be written."""

    def row_sink(self) -> RowSink | None:
        """Return where `put_text` writes rows now, None where it does more than write, or cannot write."""

    async def write_prompt(self, prompt: pb.PromptInfo) -> None: ...
    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None: ...
    async def write_text(self, event: pb.GenerateEvent) -> None: ...
    async def write_end(self, end: pb.Terminal) -> None: ...


async def relay_response(session: Session, writer: ResponseWriter) -> Outcome:
    """Write everything until the end. A call that is dropped before that cancels its request.

    A fault of the gateway's own on the way is an end too, of which the client hears as of any other.
    """
    try:
        async with asyncio.timeout(session.budget.total.remaining_s() + WRITE_GRACE_S):
            try:
                return await _relay_parts(session, writer)
            except PenstockError:  # the way to the client, which hears no more
                raise
            except Exception as error:
                log.exception("relay_failed", request_id=session.request_id)
                failed = InternalError(f"the gateway failed: {type(error).__name__}", hop="gateway")
                outcome = Outcome.of(failed)
                await writer.write_end(outcome.terminal_event(pb.Usage(), pb.Timeline()))
                return outcome
    except TimeoutError:
        return Outcome.of(Cancelled("the client did not read its answer: read faster"))
    finally:
        session.response.write_through(None)
        # When the call was dropped this is what cancels the request; after an end it does nothing.
        session.cancel_request("the client ended the call")


async def _relay_parts(session: Session, writer: ResponseWriter) -> Outcome:
    """Relay parts; what queues while the client is slow goes out as one event.

    A row that comes while nothing waits is written where it comes, without a turn of the loop.
    """
    deliveries = Deliveries(session.timeline, session.latencies, session.usefulness)

    def put_text(position: int, token_ids: tuple[int, ...], text: str) -> bool:
        written = writer.put_text(position, token_ids, text)
        if written:
            deliveries.note_text(len(token_ids), text)
        return written

    session.response.write_through(put_text, writer.row_sink)
    session.intake.deliveries = deliveries
    while True:
        part = await session.response.take_response()
        if part.prompt is not None:
            await writer.write_prompt(part.prompt)
        if part.prompt_logprobs is not None:
            await writer.write_prompt_logprobs(part.prompt_logprobs)
        if part.text is not None:
            await writer.write_text(part.text)
            delta = part.text.text
            deliveries.note_text(len(delta.token_ids), delta.text, delta.reasoning)
        if part.end is not None:
            deliveries.note_end(finished=bool(part.end.finish))
            await writer.write_end(session.terminal_event(part.end))
            return part.end
