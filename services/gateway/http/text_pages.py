"""Pages that ask tokenizers and retrievers alone: `/v1/embeddings`, `/tokenize`, `/detokenize`."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.asks.text_asks import MAX_DETOKENIZE_IDS, TextAsks, read_vector
from services.gateway.config import GatewayConfig
from services.gateway.http.ask_pages import AskPages
from services.gateway.http.completions.call import HttpCall
from services.gateway.http.completions.chat import read_chat_prompt
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.penstock_options import FIELD
from services.gateway.http.fields.sampling_fields import TOKEN_IDS, wrong_choice
from services.gateway.session.ingress import Ingress
from shared.deadline import Deadline
from shared.files.api_key_file import ApiKey

VECTOR_FORMATS = ("float", "base64")
_EMBEDDING_NAMES: FieldNames = ((re.compile(r"^texts(?=\[| has )"), "input"),)


class TextPages(AskPages):
    def __init__(self, ingress: Ingress, text_asks: TextAsks, config: GatewayConfig) -> None:
        super().__init__(ingress, config)
        self._text_asks = text_asks

    async def embeddings(self, call: HttpCall) -> web.Response:
        return await self._answer(call, self._embed, _EMBEDDING_NAMES)

    async def tokenize(self, call: HttpCall) -> web.Response:
        return await self._answer(call, self._tokenize)

    async def detokenize(self, call: HttpCall) -> web.Response:
        return await self._answer(call, self._detokenize)

    async def _embed(self, key: ApiKey, body: JsonFields, deadline: Deadline) -> Mapping[str, Any]:
        texts = body.strings("input")
        if not texts:
            raise body.wrong("input", "a text or an array of them")
        shown = body.text("encoding_format", VECTOR_FORMATS[0])
        if shown not in VECTOR_FORMATS:
            raise wrong_choice(body, "encoding_format", VECTOR_FORMATS)
        found = await self._text_asks.embed(key, body.text("model"), texts, deadline)
        size = len(read_vector(found.vectors[0]))
        if body.integer("dimensions", 1, 1 << 20, size) != size:
            raise body.wrong("dimensions", f"{size}: vectors of this model are not cut")
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector).decode() if shown == "base64" else read_vector(vector),
            }
            for index, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": sum(found.tokens), "total_tokens": sum(found.tokens)}
        answer = {"object": "list", "data": data, "model": found.model, "usage": usage}
        cut = [index for index, truncated in enumerate(found.truncated) if truncated]
        return {**answer, FIELD: {"truncated": cut}} if cut else answer

    async def _tokenize(self, key: ApiKey, body: JsonFields, deadline: Deadline) -> Mapping[str, Any]:
        special = body.flag("add_special_tokens", default=True)
        prompt = self._ingress.validate(_prompt(body))
        found = await self._text_asks.tokenize(key, prompt, deadline, add_special_tokens=special)
        context = {model.name: model.context_tokens for model in self._text_asks.models(key)}
        longest = context.get(found.model) or None
        return {"tokens": found.token_ids, "count": len(found.token_ids), "max_model_len": longest}

    async def _detokenize(self, key: ApiKey, body: JsonFields, deadline: Deadline) -> Mapping[str, Any]:
        token_ids = body.integers("tokens", TOKEN_IDS)
        if not 1 <= len(token_ids) <= MAX_DETOKENIZE_IDS:
            raise body.wrong("tokens", f"1 to {MAX_DETOKENIZE_IDS} token ids", f"{len(token_ids)} of them")
        found = await self._text_asks.detokenize(key, body.text("model"), token_ids, deadline)
        return {"prompt": found.text}


def _prompt(body: JsonFields) -> pb.GenerateRequest:
    """A text in `prompt` or a chat in `messages`, so that they have the limits of a request.

    All fields are read, so that a wrong one is refused also beside the other kind of prompt.
    """
    message = pb.GenerateRequest(model=body.text("model"))
    chat, text = read_chat_prompt(body), body.text("prompt")
    if body.has("messages"):
        message.chat.CopyFrom(chat)
    else:
        message.text = text
    return message
