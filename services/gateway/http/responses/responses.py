"""`/v1/responses`: its bodies. Nothing of a response is kept, so nothing can be asked of an earlier one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.completions.completion import seeded_choices
from services.gateway.http.completions.error_object import FieldNames
from services.gateway.http.fields.chat_tools import read_tools_into
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.http.fields.penstock_options import (
    PenstockOptions,
    check_not_resumable,
    read_penstock_options,
)
from services.gateway.http.fields.sampling_fields import read_sampling, read_seed
from services.gateway.http.responses.response_input import read_input
from services.gateway.request.choices import Choices
from shared.sampling.parameters import MAX_TOP_LOGPROBS

LENGTHS = ("max_output_tokens",)
TRUNCATIONS = ("disabled", "auto")
"""Whether a conversation that is too long goes without its oldest turns."""
INCLUDE_LOGPROBS = "message.output_text.logprobs"
SAMPLING_FIELD_NAMES: FieldNames = (
    (re.compile(r"\bsampling\.json_schema\b"), "text.format.schema"),
    (re.compile(r"\bsampling\.max_tokens\b"), "max_output_tokens"),
)
TOOL_FIELD_NAMES: FieldNames = (
    (re.compile(r"\bchat\.tools\["), "tools["),
    (re.compile(r"\bchat\.tool_name\b"), "tool_choice.name"),
)
MAX_METADATA_ENTRIES = 16
"""The most entries of a response's metadata."""
MAX_METADATA_NAME_CHARS = 64
"""The longest name of one."""
MAX_METADATA_CHARS = 512
"""The longest value of one."""
NOT_KEPT = {
    "previous_response_id": "no id: no response is kept; send the conversation as input",
    "conversation": "none: no conversation is kept; send it as input",
    "background": "false: no response is kept to be fetched later",
    "prompt": "none: no prompts are kept here; send instructions and input",
}
"""Better refused than left out without a word. `store` is no more than a wish: the answer says false."""


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """`repeated` are the fields of the body that the answer has too."""

    choices: Choices
    stream: bool
    options: PenstockOptions
    repeated: Mapping[str, Any]
    field_names: FieldNames

    @property
    def sampling(self) -> pb.Sampling:
        return self.choices.prompts[0].sampling


def read_response(body: JsonFields, headers: Mapping[str, str], default_max_tokens: int) -> AskedResponse:
    """Raises InvalidRequest that names what is wrong."""
    _check_kept(body)
    options = read_penstock_options(body, headers)
    check_not_resumable(options)
    text_format = body.object("text").object("format")
    sampling = read_sampling(body, default_max_tokens, lengths=LENGTHS, text_format=text_format)
    top_logprobs = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    if INCLUDE_LOGPROBS in body.strings("include"):
        sampling.logprobs = top_logprobs
    elif top_logprobs:
        raise body.wrong("top_logprobs", f"it with {INCLUDE_LOGPROBS} in include alone")
    read = read_input(body)
    chat = pb.ChatPrompt(messages=read.messages)
    read_tools_into(chat, body, _function)
    request = pb.GenerateRequest(model=body.text("model"), chat=chat, sampling=sampling)
    options.apply(request)
    truncation = body.choice("truncation", TRUNCATIONS, TRUNCATIONS[0])
    if truncation == "auto" and not request.trimming.off:
        request.trimming.fit_context = True
    return AskedResponse(
        choices=seeded_choices([request], 1, read_seed(body)),
        stream=body.flag("stream"),
        options=options,
        repeated={
            "instructions": body.value("instructions"),
            "reasoning": {"effort": body.object("reasoning").value("effort"), "summary": None},
            "metadata": _metadata(body),
            "text": {"format": text_format.raw or {"type": "text"}},
            "top_logprobs": top_logprobs,
            "truncation": truncation,
            "tools": body.array("tools"),
            "tool_choice": body.value("tool_choice") or "auto",
            "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
        },
        field_names=(*read.field_names, *TOOL_FIELD_NAMES, *SAMPLING_FIELD_NAMES),
    )


def _check_kept(body: JsonFields) -> None:
    for name, allowed in NOT_KEPT.items():
        if body.value(name) not in (None, False):
            raise body.wrong(name, allowed)
    body.flag("store")


def _metadata(body: JsonFields) -> Mapping[str, str]:
    given = body.object("metadata")
    names = given.names()
    if len(names) > MAX_METADATA_ENTRIES:
        allowed = f"at most {MAX_METADATA_ENTRIES} entries"
        raise body.wrong("metadata", allowed, f"of {len(names)} entries")
    for name in names:
        if len(name) > MAX_METADATA_NAME_CHARS:
            raise body.wrong("metadata", f"names of at most {MAX_METADATA_NAME_CHARS} characters", name)
        if len(given.text(name)) > MAX_METADATA_CHARS:
            raise given.wrong(name, f"at most {MAX_METADATA_CHARS} characters")
    return {name: given.text(name) for name in names}


def _function(fields: JsonFields) -> JsonFields:
    """Return the fields of a tool, which stand beside its type here and not below it as in chats."""
    if fields.text("type") != "function":
        raise fields.wrong("type", "function: this server calls nothing by itself")
    return fields
