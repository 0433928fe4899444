"""Ask tokenizers and retrievers alone: for ids of a text, text of ids, vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from services.gateway.asks.call_trace import CallTrace
from services.gateway.asks.text_calls import TextCall, TextCalls, check_model_name, checked_bytes
from services.gateway.fleet.model_identity import find_model
from services.gateway.fleet.request_client import unexpected_answer
from services.gateway.fleet.routing import serving
from services.gateway.fleet.served_models import EMBEDDING_ROLE, ServedModel, served_models
from services.gateway.prompt.preprocessor import tokenize_message
from services.gateway.request.request import MAX_TOKEN_ID, Request, served_model, split_model
from services.gateway.tracing.text_call_record import DETOKENIZE, EMBEDDINGS, SPELLING, TOKENIZE
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.errors import InvalidRequest
from shared.files.api_key_file import ApiKey
from shared.messages import (
    MAX_EMBED_TEXTS,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    GetTokenBytes,
    Message,
    TokenBytes,
    Tokenized,
    pack_ids,
    unpack_ids,
    unpack_vector,
)

MAX_DETOKENIZE_IDS = 1 << 17
"""The most ids of a call: on the bus they are half a megabyte, and their text is about as much."""
MAX_EMBEDDED_TEXTS = 2048
"""The most texts of one call for embeddings."""


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


class TextAsks:
    """`key` is what `KeyGate.identify` found."""

    def __init__(self, calls: TextCalls) -> None:
        self._calls = calls
        self._fleet = calls.fleet

    def models(self, key: ApiKey) -> tuple[ServedModel, ...]:
        """Return what the key's tenant may name."""
        context = self._calls.context
        return served_models(
            self._fleet, key.tenant, context.config.default_model, context.virtual_models.all()
        )

    async def tokenize(
        self, key: ApiKey, request: Request, deadline: Deadline, *, add_special_tokens: bool = True
    ) -> PromptIds:
        """The ids of the prompt of `request`, of which nothing else counts but the model."""
        message = replace(tokenize_message(request, ()), add_special_tokens=add_special_tokens)
        async with self._calls.admitted(key, 0, deadline, TOKENIZE) as call:
            model, answer = await self._ask_model(call, "tokenizer", request.model, message, key.tenant)
        if not isinstance(answer, Tokenized):
            raise unexpected_answer(answer, "tokenizer")
        return PromptIds(model, unpack_ids(answer.token_ids))

    async def detokenize(
        self, key: ApiKey, model: str, token_ids: Sequence[int], deadline: Deadline
    ) -> PlainText:
        check_model_name(model)
        _check_ids(token_ids)
        message = Detokenize(pack_ids(token_ids))
        async with self._calls.admitted(key, 0, deadline, DETOKENIZE) as call:
            wanted = model or self._calls.context.config.default_model
            model, answer = await self._ask_model(call, "tokenizer", wanted, message, key.tenant)
        if not isinstance(answer, Detokenized):
            raise unexpected_answer(answer, "tokenizer")
        return PlainText(model, answer.text)

    async def embed(self, key: ApiKey, model: str, texts: Sequence[str], deadline: Deadline) -> TextVectors:
        """Embed in parts, one after another: questions of requests go between them."""
        check_model_name(model)
        text_bytes = checked_bytes(texts, MAX_EMBEDDED_TEXTS)
        found = TextVectors(model, [], [], [])
        async with self._calls.admitted(key, text_bytes, deadline, EMBEDDINGS) as call:
            try:
                for start in range(0, len(texts), MAX_EMBED_TEXTS):
                    part = Embed(tuple(texts[start : start + MAX_EMBED_TEXTS]))
                    model, answer = await self._ask_model(call, EMBEDDING_ROLE, model, part, key.tenant)
                    if not isinstance(answer, Embedded) or len(answer.vectors) != len(part.texts):
                        raise unexpected_answer(answer, EMBEDDING_ROLE)
                    found.vectors.extend(answer.vectors)
                    found.tokens.extend(answer.tokens)
                    found.truncated.extend(answer.truncated)
            finally:
                call.used_tokens = sum(found.tokens)
        return replace(found, model=model)

    async def token_bytes(self, model: str, token_ids: Sequence[int], deadline: Deadline) -> Sequence[bytes]:
        """The bytes that ids stand for, each by itself. Of a request that has been admitted: in no limits."""
        trace = CallTrace(SPELLING, "", self._calls.context.sampler)
        with self._calls.begun(deadline, trace) as call:
            ids = GetTokenBytes(pack_ids(token_ids))
            _, answer = await self._ask_model(call, "tokenizer", model, ids, None)
        if not isinstance(answer, TokenBytes) or len(answer.token_bytes) != len(token_ids):
            raise unexpected_answer(answer, "tokenizer")
        return answer.token_bytes

    async def _ask_model(
        self, call: TextCall, role: str, wanted_model: str, message: Message, tenant: str | None
    ) -> tuple[str, Message]:
        """The name of the model and the answer of an instance that has it; raises NotFound where none has for
        the tenant.

        An adapter has the tokenizer of its model. `tenant` None: of a request that has been placed and goes
        on when its adapter is there no more.
        """
        virtual = self._calls.context.virtual_models.find(wanted_model)
        if virtual is not None and role == "tokenizer":
            raise InvalidRequest(
                f"{virtual.name} stands for several models, and each reads text in its own way: send one of "
                f"{', '.join(virtual.targets)}"
            )
        found = await self._calls.ready(call, role, partial(self._fleet.instances, role))
        served = {view.heartbeat.model for view in found}
        named, adapter = split_model(wanted_model, served) if role == "tokenizer" else (wanted_model, "")
        model = served_model(named, served)
        call.trace.model = f"{model}:{adapter}" if adapter else model
        if adapter and tenant is not None:
            find_model(wanted_model, self._fleet.instances, tenant)
        answer = await self._calls.ask_any(call, role, message, partial(self._having, role, model))
        return f"{model}:{adapter}" if adapter else model, answer

    def _having(self, role: str, model: str) -> Sequence[InstanceView]:
        views = [view for view in self._fleet.instances(role) if view.heartbeat.model == model]
        if any(view.heartbeat.model == model for view in self._fleet.instances("decode")):
            return serving(views, role, find_model(model, self._fleet.instances))
        return views


def read_vector(vector: bytes) -> list[float]:
    return unpack_vector(vector).tolist()


def _check_ids(token_ids: Sequence[int]) -> None:
    if not 1 <= len(token_ids) <= MAX_DETOKENIZE_IDS:
        raise InvalidRequest(f"token_ids has {len(token_ids)} ids: send 1 to {MAX_DETOKENIZE_IDS}")
    if not (min(token_ids) >= 0 and max(token_ids) <= MAX_TOKEN_ID):
        raise InvalidRequest("token_ids holds what is no id: send ids of the model's vocabulary")
