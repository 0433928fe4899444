"""Sampling options of an OpenAI-compatible body, with those that other servers have beside OpenAI's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.request.choices import SEED_SPAN
from shared.sampling.parameters import BIAS_BOUNDS, MAX_LOGIT_BIAS_ENTRIES, MAX_TOKEN_ID, PARAMETERS, Bounds

SCALAR_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
)
TOP_K_OFF = -1
"""The number that others write for no top-k; here it is 0, and both are taken."""
TOKEN_IDS = Bounds(0, MAX_TOKEN_ID, integer=True)
TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
ANSWER_FORMATS = ("text", "json_object", "json_schema")
LENGTHS = ("max_completion_tokens", "max_tokens")
"""The newer name first: it counts where both are there."""


def read_sampling(
    body: JsonFields,
    default_max_tokens: int,
    *,
    lengths: Sequence[str] = LENGTHS,
    text_format: JsonFields | None = None,
) -> pb.Sampling:
    """Read a body's sampling fields; raises WrongField. Limits that other fields set are checked later.

    `text_format`: what takes the place of `response_format`.
    """
    values: dict[str, Any] = {}
    for name in SCALAR_FIELDS:
        if name == "top_k" and body.value(name) == TOP_K_OFF:
            continue
        bounds = PARAMETERS[name].bounds
        assert bounds is not None
        value = body.number(name, bounds)
        if value is not None:
            values[name] = value
    sampling = pb.Sampling(
        **values,
        max_tokens=_max_tokens(body, default_max_tokens, lengths),
        stop=body.strings("stop"),
        stop_regex=body.strings("stop_regex"),
        stop_token_ids=body.integers("stop_token_ids", TOKEN_IDS),
        ignore_eos=body.flag("ignore_eos"),
        logit_bias=_logit_bias(body),
    )
    if text_format is None:
        _read_answer_format(body.object("response_format"), "json_schema", sampling)
    else:
        _read_answer_format(text_format, "", sampling)
    return sampling


def read_seed(body: JsonFields) -> int | None:
    """OpenAI's seeds may be negative; a seed is 64 bits, and those are the same."""
    bounds = PARAMETERS["seed"].bounds
    assert bounds is not None
    value = body.number("seed", bounds)
    return None if value is None else int(value) % SEED_SPAN


def _max_tokens(body: JsonFields, default: int, names: Sequence[str]) -> int:
    bounds = PARAMETERS["max_tokens"].bounds
    assert bounds is not None
    for name in names:
        value = body.number(name, bounds)
        if value is not None:
            return int(value)
    return default


def _logit_bias(body: JsonFields) -> Mapping[int, float]:
    given = body.object("logit_bias")
    names = given.names()
    if len(names) > MAX_LOGIT_BIAS_ENTRIES:
        raise body.wrong(
            "logit_bias", f"at most {MAX_LOGIT_BIAS_ENTRIES} entries", f"of {len(names)} entries"
        )
    bias = {}
    for name in names:
        if not TOKEN_ID.fullmatch(name) or int(name) > MAX_TOKEN_ID:
            raise body.wrong("logit_bias", "token ids as names, without leading zeros", name)
        bias[int(name)] = float(given.number(name, BIAS_BOUNDS))
    return bias


def _read_answer_format(wanted: JsonFields, schema_in: str, sampling: pb.Sampling) -> None:
    """The schema stands in the object `schema_in`; "": beside the type."""
    match wanted.text("type", "text"):
        case "text":
            pass
        case "json_object":
            sampling.json_object = True
        case "json_schema":
            schema = wanted.object(schema_in) if schema_in else wanted
            if not schema.has("schema"):
                raise schema.wrong("schema", "the schema that the answer matches")
            sampling.json_schema = json.dumps(schema.object("schema").raw)
        case _:
            raise wrong_choice(wanted, "type", ANSWER_FORMATS)


def wrong_choice(fields: JsonFields, name: str, allowed: tuple[str, ...]) -> Exception:
    return fields.wrong(name, f"one of {', '.join(allowed)}")
