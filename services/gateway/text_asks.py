"""What clients ask of tokenizers and retrievers alone: ids of a text, text of ids, vectors. For every edge.

Such a call is no request: nothing is placed and nothing kept. It has a deadline, counts in the limits of its
key, is asked elsewhere when an instance fails, and is cancelled when its client is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from services.gateway.ask_in_turn import ask_in_turn
from services.gateway.avoided_instances import AvoidedInstances
from services.gateway.context import SessionContext
from services.gateway.key_gate import BYTES_PER_TOKEN, KeyGate
from services.gateway.model_identity import find_model
from services.gateway.placement import serving
from services.gateway.preprocessor import tokenize_message
from services.gateway.request import MAX_MODEL_CHARS, MAX_TOKEN_ID, Request, served_model, split_model
from services.gateway.request_client import RequestClient, unexpected_answer
from services.gateway.served_models import EMBEDDING_ROLE, ServedModel, served_models
from services.gateway.waiting import wait_for_instances
from shared.api_key_file import ApiKey
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.errors import InvalidRequest, NoAnswer, Overloaded, TooLarge, Unavailable
from shared.messages import (
    MAX_EMBED_TEXT_BYTES,
    MAX_EMBED_TEXTS,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Message,
    SpellTokens,
    Tokenized,
    TokenSpellings,
    pack_ids,
    unpack_ids,
)
from shared.telemetry import metrics

MAX_ASKS = 3
"""How often a role is asked, an instance that failed not again for a moment, before the call fails."""
FIRST_SHARE = 0.5
"""Of the time that is left, for one instance while there is another."""
MAX_DETOKENIZE_IDS = 1 << 17
"""As a message on the bus they are half a megabyte, and so is their text, about."""
MAX_EMBEDDED_TEXTS = 2048
ROOM_RETRY_MS = 100


@dataclass(frozen=True, slots=True)
class PromptIds:
    model: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class PlainText:
    model: str
    text: str


@dataclass(frozen=True, slots=True)
class TextVectors:
    """Columns of equal length, one row for each text; a vector is float32, little-endian."""

    model: str
    vectors: list[bytes]
    tokens: list[int]
    truncated: list[bool]


@dataclass(slots=True, eq=False)
class TextCall:
    """A live call. `epoch` counts what was asked for it, so that a cancel of one ask stops no later one;
    `used_tokens` is what it counts for in the limits of its key."""

    id: str
    client: RequestClient
    deadline: Deadline
    epoch: int = 0
    used_tokens: int = 0


class TextAsks:
    def __init__(self, context: SessionContext, key_gate: KeyGate) -> None:
        self._context = context
        self._fleet = context.fleet
        self._key_gate = key_gate
        self._live: set[TextCall] = set()
        self._turns = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        context.fleet.on_lost(self._on_instance_lost)

    # ---- for edges: `key` is what `KeyGate.identify` found ------------------------------------------

    def models(self) -> tuple[ServedModel, ...]:
        return served_models(self._fleet)

    async def tokenize(
        self, key: ApiKey, request: Request, deadline: Deadline, *, add_special_tokens: bool = True
    ) -> PromptIds:
        """The ids of the prompt of `request`, of which nothing else counts but the model."""
        message = replace(tokenize_message(request, ()), add_special_tokens=add_special_tokens)
        with self._admitted(key, 0, deadline) as call:
            model, answer = await self._ask_any(call, "tokenizer", request.model, message)
        if not isinstance(answer, Tokenized):
            raise unexpected_answer(answer, "tokenizer")
        return PromptIds(model, unpack_ids(answer.token_ids))

    async def detokenize(
        self, key: ApiKey, model: str, token_ids: Sequence[int], deadline: Deadline
    ) -> PlainText:
        _check_model(model)
        _check_ids(token_ids)
        message = Detokenize(pack_ids(token_ids))
        with self._admitted(key, 0, deadline) as call:
            model, answer = await self._ask_any(call, "tokenizer", model, message)
        if not isinstance(answer, Detokenized):
            raise unexpected_answer(answer, "tokenizer")
        return PlainText(model, answer.text)

    async def embed(self, key: ApiKey, model: str, texts: Sequence[str], deadline: Deadline) -> TextVectors:
        """In parts, one after another: questions of requests go between them."""
        _check_model(model)
        total_bytes = _check_texts(texts)
        found = TextVectors(model, [], [], [])
        with self._admitted(key, -(-total_bytes // BYTES_PER_TOKEN), deadline) as call:
            try:
                for start in range(0, len(texts), MAX_EMBED_TEXTS):
                    part = Embed(tuple(texts[start : start + MAX_EMBED_TEXTS]))
                    model, answer = await self._ask_any(call, EMBEDDING_ROLE, model, part)
                    if not isinstance(answer, Embedded) or len(answer.vectors) != len(part.texts):
                        raise unexpected_answer(answer, EMBEDDING_ROLE)
                    found.vectors.extend(answer.vectors)
                    found.tokens.extend(answer.tokens)
                    found.truncated.extend(answer.truncated)
            finally:
                call.used_tokens = sum(found.tokens)
        return replace(found, model=model)

    async def spell(self, model: str, token_ids: Sequence[int], deadline: Deadline) -> Sequence[bytes]:
        """The bytes that ids stand for, each by itself. Of a request that has been admitted: in no limits."""
        with self._begun(deadline) as call:
            ids = SpellTokens(pack_ids(token_ids))
            _, answer = await self._ask_any(call, "tokenizer", model, ids, is_placed=True)
        if not isinstance(answer, TokenSpellings) or len(answer.spellings) != len(token_ids):
            raise unexpected_answer(answer, "tokenizer")
        return answer.spellings

    async def drain(self) -> None:
        """Take no new call and return when the live ones have ended."""
        self._closing = True
        await self._idle.wait()

    # ---- inside ---------------------------------------------------------------------------------------

    @contextmanager
    def _admitted(self, key: ApiKey, tokens: int, deadline: Deadline) -> Iterator[TextCall]:
        """Room for one call here and in the limits of its key, while it lasts."""
        limit = self._context.config.max_text_calls
        if self._closing:
            raise Unavailable("this gateway is draining: use another one", hop="gateway")
        if len(self._live) >= limit:
            metrics.SHED.labels(hop="gateway", reason="calls").inc()
            raise Overloaded(
                f"{limit} calls for ids, texts and vectors are live already: retry later",
                hop="gateway",
                retry_after_ms=ROOM_RETRY_MS,
                reason="calls",
            )
        allowance = self._key_gate.admit_tokens(key, tokens, 0, exact=False)
        with self._begun(deadline) as call:
            try:
                yield call
            finally:
                allowance.settle(call.used_tokens)

    @contextmanager
    def _begun(self, deadline: Deadline) -> Iterator[TextCall]:
        context, call_id = self._context, f"{self._context.instance}.{secrets.token_hex(6)}"
        client = RequestClient(context.bus, context.instance, call_id, deadline)
        call = TextCall(call_id, client, deadline)
        self._live.add(call)
        self._idle.clear()
        try:
            yield call
        finally:
            self._live.discard(call)
            if not self._live:
                self._idle.set()

    async def _ask_any(
        self, call: TextCall, role: str, wanted_model: str, message: Message, *, is_placed: bool = False
    ) -> tuple[str, Message]:
        """The name of the model and the answer of an instance that has it; raises NotFound where none has.

        An adapter has the tokenizer of its model. `is_placed`: of a request that goes on when its adapter is
        there no more.
        """
        found = await self._ready(call, role, partial(self._fleet.instances, role))
        served = {view.heartbeat.model for view in found}
        named, adapter = split_model(wanted_model, served) if role == "tokenizer" else (wanted_model, "")
        model = served_model(named, served)
        if adapter and not is_placed:
            find_model(wanted_model, self._fleet.instances)

        async def usable(avoided: AvoidedInstances) -> Sequence[InstanceView]:
            return await self._ready(call, role, partial(self._usable, role, model, avoided))

        async def ask(view: InstanceView, is_last: bool) -> Message:
            share_s = FIRST_SHARE * call.deadline.remaining_s()
            end = call.deadline if is_last else call.deadline.shrink(share_s)
            return await self._ask_one(call, view, message, end)

        turn, shunned = next(self._turns), partial(self._context.breakers.shunned, request_id="")
        answer = await ask_in_turn(role, usable, shunned, ask, call.deadline, max_asks=MAX_ASKS, turn=turn)
        return f"{model}:{adapter}" if adapter else model, answer

    async def _ask_one(self, call: TextCall, view: InstanceView, message: Message, end: Deadline) -> Message:
        """Who has not answered when nobody listens any more is told so."""
        role, instance = view.heartbeat.role, view.heartbeat.instance
        call.epoch += 1
        self._fleet.expect_work(view)
        try:
            return await call.client.ask_instance(
                role, instance, message, end, epoch=call.epoch, work_ends=end
            )
        except (NoAnswer, asyncio.CancelledError):
            work = self._context.canceller.cancel_holders(
                call.id, call.epoch, [(role, instance)], "cancelled"
            )
            self._context.tasks.start(f"cancel-{call.id}", work)
            raise

    async def _ready(
        self, call: TextCall, role: str, views: Callable[[], Sequence[InstanceView]]
    ) -> Sequence[InstanceView]:
        """Some of `views`. One that restarts is waited for; where the role has never been, nobody waits."""
        if not any(view.heartbeat.role == role for view in self._fleet.all()):
            raise Unavailable(f"no {role} is running: start one", hop=role)
        config, remaining_s = self._context.config, call.deadline.remaining_s()
        wait_s = min(config.admit_wait_s, config.place_share * remaining_s)
        return await wait_for_instances(views, role, Deadline.after(wait_s))

    def _usable(self, role: str, model: str, avoided: AvoidedInstances) -> list[InstanceView]:
        views = [view for view in self._fleet.instances(role) if view.heartbeat.model == model]
        if any(view.heartbeat.model == model for view in self._fleet.instances("decode")):
            views = serving(views, role, find_model(model, self._fleet.instances))
        return avoided.not_gone(views)

    def _on_instance_lost(self, role: str, instance: str, why: str) -> None:  # noqa: ARG002 - a callback of the fleet
        for call in self._live:
            call.client.stop_asking(role, instance)


def read_vector(vector: bytes) -> list[float]:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _check_model(model: str) -> None:
    if len(model) > MAX_MODEL_CHARS:
        raise InvalidRequest(f"model has {len(model)} characters: send at most {MAX_MODEL_CHARS}")


def _check_ids(token_ids: Sequence[int]) -> None:
    if not 1 <= len(token_ids) <= MAX_DETOKENIZE_IDS:
        raise InvalidRequest(f"token_ids has {len(token_ids)} ids: send 1 to {MAX_DETOKENIZE_IDS}")
    if not (min(token_ids) >= 0 and max(token_ids) <= MAX_TOKEN_ID):
        raise InvalidRequest("token_ids holds what is no id: send ids of the model's vocabulary")


def _check_texts(texts: Sequence[str]) -> int:
    """How many bytes they are in all."""
    if not 1 <= len(texts) <= MAX_EMBEDDED_TEXTS:
        raise InvalidRequest(f"texts has {len(texts)}: send 1 to {MAX_EMBEDDED_TEXTS}")
    return sum(_text_bytes(index, text) for index, text in enumerate(texts))


def _text_bytes(index: int, text: str) -> int:
    if not text.strip():
        raise InvalidRequest(f"texts[{index}] is blank: send some words or leave it out")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"texts[{index}] has lone surrogates: send valid Unicode") from error
    if size > MAX_EMBED_TEXT_BYTES:
        raise TooLarge(f"texts[{index}] has {size} bytes: send at most {MAX_EMBED_TEXT_BYTES}")
    return size
