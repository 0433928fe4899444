"""A call for completions, whichever of OpenAI's shapes it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.completions.token_text import TokenText
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.penstock_options import PenstockOptions
from services.gateway.request.choices import MAX_CHOICES, Choices


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that stands in front of a choice's text, as it came; neither field: nothing does."""

    text: str = ""
    token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The chunks of a stream that have a usage: the last one, and each before it that of its choice so
    far."""

    last: bool
    each: bool


@dataclass(frozen=True, slots=True)
class AskedCompletion:
    """`echoes` are those of the choices."""

    choices: Choices
    echoes: tuple[Echo, ...]
    stream: bool
    stream_usage: StreamUsage
    options: PenstockOptions
    field_names: FieldNames = ()


class AnswerShape(Protocol):
    """The way in which one of OpenAI's interfaces writes choices."""

    id_prefix: str
    object_name: str
    chunk_object_name: str

    def first_chunks(self, index: int) -> Sequence[Mapping[str, Any]]:
        """Return the chunks that come before the text of a choice."""

    def text_chunk(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        offset: int,
        calls: Sequence[pb.ToolCallDelta] = (),
        reasoning: str = "",
    ) -> Mapping[str, Any]:
        """`offset`: how many characters of the choice went before; below 0 where the first of `tokens` are no
        part of its text. `calls`: what is called besides; `reasoning`: what was thought before `text`."""

    def end_chunk(self, index: int, finish_reason: str) -> Mapping[str, Any]: ...

    def whole(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenText] | None,
        finish_reason: str,
        offset: int,
        calls: Sequence[pb.ToolCall] = (),
        reasoning: str = "",
    ) -> Mapping[str, Any]:
        """The choice at once; `offset`: how many characters stand before the first of `tokens`."""


def seeded_choices(prompts: Sequence[pb.GenerateRequest], n: int, seed: int | None) -> Choices:
    """`n` choices of each prompt; the first of each has `seed`."""
    for prompt in prompts:
        if seed is not None:
            prompt.sampling.seed = seed
    return Choices(tuple(prompts), n)


def read_n(body: JsonFields, prompts: int) -> int:
    """Return the number of choices of each prompt."""
    n = body.integer("n", 1, MAX_CHOICES, 1)
    if n * prompts > MAX_CHOICES:
        raise body.wrong("n", f"at most {MAX_CHOICES} choices in all", f"{n} for each of {prompts} prompts")
    return n


def read_stream_usage(body: JsonFields, *, stream: bool) -> StreamUsage:
    options = body.object("stream_options")
    if options.names() and not stream:
        raise body.wrong("stream_options", "it with stream alone")
    last, each = options.flag("include_usage"), options.flag("continuous_usage_stats")
    return StreamUsage(last=last, each=last and each)
