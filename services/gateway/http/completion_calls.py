"""Calls that generate: each choice is a session as over gRPC, and the call ends with the last of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from aiohttp import web

from services.gateway.config import GatewayConfig
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.completions.event_stream import EventStream
from services.gateway.http.completions.token_text import FetchTokenBytes
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.penstock_options import (
    LAST_EVENT_ID,
    PenstockOptions,
    check_stream_alone,
)
from services.gateway.request.choices import Choices
from services.gateway.session.call_sessions import CallSessions
from services.gateway.session.ingress import Ingress, record_refusal
from services.gateway.session.response_relay import ResponseWriter
from shared.errors import PenstockError
from shared.files.api_key_file import ApiKey


class AskedCall(Protocol):
    """One call in any of OpenAI's shapes: a session for each of `choices`."""

    @property
    def choices(self) -> Choices: ...
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
BeginAnswer = Callable[[str, A, EventStream, FetchTokenBytes], CallAnswer]


class CompletionCalls:
    def __init__(self, ingress: Ingress, fetch_bytes: FetchTokenBytes, config: GatewayConfig) -> None:
        self._ingress = ingress
        self._fetch_bytes = fetch_bytes
        self._config = config

    async def answer(self, call: HttpCall, read: ReadBody[A], begin: BeginAnswer[A]) -> web.StreamResponse:
        """`begin` gets the id of the first request, or of that whose stream is gone on with."""
        names: FieldNames = ()
        key: ApiKey | None = None
        try:
            key = self._ingress.identify(call.authorization)
            if LAST_EVENT_ID in call.headers:
                self._ingress.check_place(key)
            else:
                self._ingress.check_room(key)  # before anything is read, which costs more than the answer
            asked = read(await call.read_json(key.tenant), call.headers, self._config.default_max_tokens)
            names = asked.field_names
            check_stream_alone(asked.options, stream=asked.stream)
            options = asked.options
            sessions = await CallSessions.open(
                self._ingress, key, asked.choices, cache_salt=options.cache_salt, resumed=options.resumed
            )
        except PenstockError as error:
            self._ingress.count_refused(key, error)
            record_refusal(error, key)
            return call.error(error, names=names)
        try:
            return await self._relay(call, asked, begin, sessions)
        finally:
            sessions.end_call()

    async def _relay(
        self, call: HttpCall, asked: A, begin: BeginAnswer[A], sessions: CallSessions
    ) -> web.StreamResponse:
        headers = dict(sessions.id_headers)
        events = EventStream(call, headers)
        answer = begin(sessions.stream_id, asked, events, self._fetch_bytes)
        failed = await sessions.relay_all(answer.writers)
        if failed is not None and not events.started:
            return call.error(failed, headers, asked.field_names)
        if not asked.stream:
            return call.json(answer.whole(), headers=headers)
        return await answer.end_stream(failed)
