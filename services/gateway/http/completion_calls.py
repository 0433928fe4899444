"""Calls for completions: each choice is a session as over gRPC, and the call ends with the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from services.gateway.budget import Budget
from services.gateway.config import GatewayConfig
from services.gateway.front_door import FrontDoor, note_refusal
from services.gateway.http.answer import Answer, ChunkStream
from services.gateway.http.call import HttpCall
from services.gateway.http.choice import Choice, Spell
from services.gateway.http.completion import AnswerShape, AskedCompletion
from services.gateway.http.error_object import error_object
from services.gateway.http.event_stream import EventStream
from services.gateway.http.json_fields import JsonFields
from services.gateway.outcome import Outcome
from services.gateway.response_relay import relay_response
from services.gateway.session import Session
from shared.api_key_file import ApiKey
from shared.errors import PenstockError
from shared.tasks import cancel_until_done

REQUEST_ID = "x-request-id"
"""The header with the id that cancels the request."""

ReadBody = Callable[[JsonFields, Mapping[str, str], int], AskedCompletion]


@dataclass(frozen=True, slots=True)
class OpenChoice:
    session: Session
    budget: Budget


class CompletionCalls:
    def __init__(self, front_door: FrontDoor, spell: Spell, config: GatewayConfig) -> None:
        self._front_door = front_door
        self._spell = spell
        self._config = config

    async def answer(self, call: HttpCall, read: ReadBody, shape: AnswerShape) -> web.StreamResponse:
        try:
            key = self._front_door.identify(call.authorization)
            completion = read(await call.read_json(), call.headers, self._config.http_max_tokens)
            opened = self._open_choices(key, completion)
        except PenstockError as error:
            note_refusal(error)
            return call.error(error)
        try:
            return await self._relay(call, completion, shape, opened)
        finally:
            for choice in opened:
                choice.session.cancel_request("the client ended the call")
                choice.session.on_call_ended()

    def _open_choices(self, key: ApiKey, completion: AskedCompletion) -> list[OpenChoice]:
        """All, or none: raises why one is not taken."""
        opened: list[OpenChoice] = []
        salt = completion.options.cache_salt
        try:
            for request in completion.requests:
                session, budget = self._front_door.open_session(key, request, cache_salt=salt)
                opened.append(OpenChoice(session, budget))
        except PenstockError:
            for choice in opened:
                choice.session.cancel_request("another choice of the same call is not taken")
                choice.session.on_call_ended()
            raise
        return opened

    async def _relay(
        self, call: HttpCall, completion: AskedCompletion, shape: AnswerShape, opened: list[OpenChoice]
    ) -> web.StreamResponse:
        request_id = opened[0].session.request_id
        headers = {REQUEST_ID: request_id}
        answer, events = Answer(request_id, shape, completion), EventStream(call, headers)
        make = partial(
            Choice,
            shape=shape,
            sender=ChunkStream(events, answer) if completion.stream else None,
            spell=self._spell if completion.requests[0].sampling.HasField("logprobs") else None,
        )
        choices = [make(index, echo) for index, echo in enumerate(completion.echoes)]
        failed = await _relay_all(opened, choices)
        if failed is not None and not events.started:
            return call.error(failed, headers)
        if not completion.stream:
            return call.json(answer.whole(choices), headers=headers)
        last = error_object(failed)[2] if failed is not None else answer.last_chunk(choices)
        return await events.finish(last)


async def _relay_all(opened: list[OpenChoice], choices: list[Choice]) -> PenstockError | None:
    """Until all have finished, or one has not: then why not, and the others are cancelled."""
    relays = [
        asyncio.create_task(
            relay_response(each.session, each.budget, choice), name=f"relay-{each.session.request_id}"
        )
        for each, choice in zip(opened, choices, strict=True)
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
