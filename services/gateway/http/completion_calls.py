"""Calls that generate: each choice is a session as over gRPC, and the call ends with the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aiohttp import web

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.budget import Budget
from services.gateway.config import GatewayConfig
from services.gateway.front_door import FrontDoor, note_refusal
from services.gateway.http.call import HttpCall
from services.gateway.http.error_object import FieldNames
from services.gateway.http.event_stream import EventStream
from services.gateway.http.json_fields import JsonFields
from services.gateway.http.penstock_options import PenstockOptions
from services.gateway.http.token_text import Spell
from services.gateway.outcome import Outcome
from services.gateway.response_relay import ResponseWriter, relay_response
from services.gateway.session import Session
from shared.api_key_file import ApiKey
from shared.errors import PenstockError
from shared.tasks import cancel_until_done

REQUEST_ID = "x-request-id"
"""The header with the id that cancels the request."""


class AskedCall(Protocol):
    """What a call asks for, in whichever of OpenAI's shapes: one session for each of `requests`."""

    @property
    def requests(self) -> Sequence[pb.GenerateRequest]: ...
    @property
    def stream(self) -> bool: ...
    @property
    def options(self) -> PenstockOptions: ...
    @property
    def field_names(self) -> FieldNames: ...


class CallAnswer(Protocol):
    """The answer to it: each session's writer, then the whole, or the end of a stream that has begun."""

    @property
    def writers(self) -> Sequence[ResponseWriter]: ...
    def whole(self) -> Mapping[str, Any]: ...
    async def end_stream(self, failed: PenstockError | None) -> web.StreamResponse: ...


A = TypeVar("A", bound=AskedCall)
ReadBody = Callable[[JsonFields, Mapping[str, str], int], A]
BeginAnswer = Callable[[str, A, EventStream, Spell], CallAnswer]


@dataclass(frozen=True, slots=True)
class OpenSession:
    session: Session
    budget: Budget


class CompletionCalls:
    def __init__(self, front_door: FrontDoor, spell: Spell, config: GatewayConfig) -> None:
        self._front_door = front_door
        self._spell = spell
        self._config = config

    async def answer(self, call: HttpCall, read: ReadBody[A], begin: BeginAnswer[A]) -> web.StreamResponse:
        """`begin` gets the id of the first request."""
        names: FieldNames = ()
        try:
            key = self._front_door.identify(call.authorization)
            asked = read(await call.read_json(), call.headers, self._config.http_max_tokens)
            names = asked.field_names
            opened = self._open_sessions(key, asked)
        except PenstockError as error:
            note_refusal(error)
            return call.error(error, names=names)
        try:
            return await self._relay(call, asked, begin, opened)
        finally:
            for each in opened:
                each.session.cancel_request("the client ended the call")
                each.session.on_call_ended()

    def _open_sessions(self, key: ApiKey, asked: AskedCall) -> list[OpenSession]:
        """All, or none: raises why one is not taken."""
        opened: list[OpenSession] = []
        salt = asked.options.cache_salt
        try:
            for request in asked.requests:
                session, budget = self._front_door.open_session(key, request, cache_salt=salt)
                opened.append(OpenSession(session, budget))
        except PenstockError:
            for each in opened:
                each.session.cancel_request("another choice of the same call is not taken")
                each.session.on_call_ended()
            raise
        return opened

    async def _relay(
        self, call: HttpCall, asked: A, begin: BeginAnswer[A], opened: list[OpenSession]
    ) -> web.StreamResponse:
        request_id = opened[0].session.request_id
        headers = {REQUEST_ID: request_id}
        events = EventStream(call, headers)
        answer = begin(request_id, asked, events, self._spell)
        failed = await _relay_all(opened, answer.writers)
        if failed is not None and not events.started:
            return call.error(failed, headers, asked.field_names)
        if not asked.stream:
            return call.json(answer.whole(), headers=headers)
        return await answer.end_stream(failed)


async def _relay_all(
    opened: Sequence[OpenSession], writers: Sequence[ResponseWriter]
) -> PenstockError | None:
    """Until all have finished, or one has not: then why not, and the others are cancelled."""
    relays = [
        asyncio.create_task(
            relay_response(each.session, each.budget, writer), name=f"relay-{each.session.request_id}"
        )
        for each, writer in zip(opened, writers, strict=True)
    ]
    waiting: set[asyncio.Task[Outcome]] = set(relays)
    try:
        while waiting:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failed = next((error for task in ended if (error := _error_of(task)) is not None), None)
            if failed is not None:
                return failed
        return None
    finally:
        await cancel_until_done(*relays)


def _error_of(relay: asyncio.Task[Outcome]) -> PenstockError | None:
    """Why the choice has not finished, be it its request or the way to its client."""
    error = relay.exception()
    if error is None:
        return relay.result().error
    if isinstance(error, PenstockError):
        return error
    raise error
