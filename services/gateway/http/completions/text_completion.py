"""`/v1/completions`: its bodies, and the shape of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.completion import (
    AskedCompletion,
    Echo,
    read_n,
    read_stream_usage,
    seeded_choices,
)
from services.gateway.http.completions.token_text import TokenText, show_token
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.penstock_options import read_penstock_options
from services.gateway.http.fields.sampling_fields import TOKEN_IDS, read_sampling, read_seed
from shared.sampling.parameters import MAX_TOP_LOGPROBS, Bounds


def read_text_completion(
    body: JsonFields, headers: Mapping[str, str], default_max_tokens: int
) -> AskedCompletion:
    """Raises InvalidRequest that names what is wrong."""
    options = read_penstock_options(body, headers)
    sampling = read_sampling(body, default_max_tokens)
    logprobs = body.number("logprobs", Bounds(0, MAX_TOP_LOGPROBS, integer=True))
    if logprobs is not None:
        sampling.logprobs = logprobs
        if body.flag("echo"):
            sampling.prompt_logprobs = logprobs
    prompts = _prompts(body)
    for prompt in prompts:
        prompt.model = body.text("model")
        prompt.sampling.CopyFrom(sampling)
        options.apply(prompt)
    n, stream = read_n(body, len(prompts)), body.flag("stream")
    if body.integer("best_of", 1, 2**31, n) != n:
        raise body.wrong("best_of", f"{n}, which is n: nothing is drawn to be thrown away")
    if body.text("suffix"):
        raise body.wrong("suffix", "none: this model only continues a text")
    return AskedCompletion(
        choices=seeded_choices(prompts, n, read_seed(body)),
        echoes=_echoes(body, prompts, n),
        stream=stream,
        stream_usage=read_stream_usage(body, stream=stream),
        options=options,
    )


def _prompts(body: JsonFields) -> list[pb.GenerateRequest]:
    """A text, several, the ids of one, or those of several."""
    prompt = body.value("prompt")
    if prompt is None:
        raise body.wrong("prompt", "a text, its token ids, or an array of either", "missing")
    if isinstance(prompt, str):
        return [pb.GenerateRequest(text=prompt)]
    entries = body.array("prompt")
    if not entries:
        raise body.wrong("prompt", "at least one prompt")
    if all(isinstance(entry, str) for entry in entries):
        return [pb.GenerateRequest(text=entry) for entry in entries]
    if not any(isinstance(entry, list) for entry in entries):
        return [_of_ids(body.integers("prompt", TOKEN_IDS))]
    nested = {f"prompt[{index}]": entry for index, entry in enumerate(entries)}
    return [_of_ids(JsonFields(nested).integers(name, TOKEN_IDS)) for name in nested]


def _of_ids(ids: Sequence[int]) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids))


def _echoes(body: JsonFields, prompts: Sequence[pb.GenerateRequest], n: int) -> tuple[Echo, ...]:
    if not body.flag("echo"):
        return (Echo(),) * len(prompts) * n
    echoes = [Echo(prompt.text, prompt.token_ids.ids) for prompt in prompts]
    return tuple(echo for echo in echoes for _ in range(n))


class TextShape:
    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def first_chunks(self, index: int) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002 - of the other shape
        return []

    def text_chunk(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        offset: int,
        calls: Sequence[pb.ToolCallDelta] = (),  # noqa: ARG002 - of the other shape
        reasoning: str = "",  # noqa: ARG002 - of the other shape
    ) -> Mapping[str, Any]:
        return _choice(index, text, _text_logprobs(tokens, offset), None)

    def end_chunk(self, index: int, finish_reason: str) -> Mapping[str, Any]:
        return _choice(index, "", None, finish_reason)

    def whole(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        finish_reason: str,
        offset: int,
        calls: Sequence[pb.ToolCall] = (),  # noqa: ARG002 - of the other shape
        reasoning: str = "",  # noqa: ARG002 - of the other shape
    ) -> Mapping[str, Any]:
        return _choice(index, text, _text_logprobs(tokens, offset), finish_reason)


def _choice(
    index: int, text: str, logprobs: Mapping[str, Any] | None, finish_reason: str | None
) -> Mapping[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _text_logprobs(tokens: Sequence[TokenText] | None, offset: int) -> Mapping[str, Any] | None:
    if tokens is None:
        return None
    offsets = []
    for token in tokens:
        offsets.append(max(0, offset))
        offset += len(token.shown)
    return {
        "tokens": [token.shown for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            None if token.logprob is None else {show_token(text): logprob for text, logprob in token.top}
            for token in tokens
        ],
        "text_offset": offsets,
    }
