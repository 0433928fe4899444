"""What OpenAI's bodies and those of other servers say of a model's thinking."""

from __future__ import annotations

from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.http.fields.penstock_options import read_penstock_options
from services.gateway.http.fields.thinking_fields import read_thinking

LOW, NONE = pb.REASONING_EFFORT_LOW, pb.REASONING_EFFORT_NONE


def read(body: dict[str, Any], options: dict[str, Any] | None = None) -> pb.Thinking | None:
    return read_thinking(JsonFields(body), JsonFields({"thinking": options or {}}, "penstock"))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, None),
        ({"reasoning_effort": "low"}, pb.Thinking(effort=LOW)),
        ({"reasoning": {"effort": "none", "summary": "auto"}}, pb.Thinking(effort=NONE)),
        ({"thinking_token_budget": 0}, pb.Thinking(max_tokens=0)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, pb.Thinking(effort=NONE)),
        ({"chat_template_kwargs": {"thinking": False}}, pb.Thinking(effort=NONE)),
        ({"chat_template_kwargs": {"enable_thinking": True, "other": 1}}, None),
        (
            {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
            pb.Thinking(effort=LOW),
        ),
    ],
)
def test_the_names_of_others_are_taken(body: dict[str, Any], wanted: pb.Thinking | None) -> None:
    assert read(body) == wanted


def test_our_own_name_goes_before_them() -> None:
    ours = {"effort": "low", "max_tokens": 7, "deadline_ms": 9}
    theirs = {"reasoning_effort": "none", "thinking_token_budget": 1}
    assert read(theirs, ours) == pb.Thinking(effort=LOW, max_tokens=7, deadline_ms=9)
    applied = pb.GenerateRequest()
    read_penstock_options(JsonFields({**theirs, "penstock": {"thinking": ours}}), {}).apply(applied)
    assert applied.thinking == pb.Thinking(effort=LOW, max_tokens=7, deadline_ms=9)


@pytest.mark.parametrize(
    ("body", "options", "wrong"),
    [
        ({"reasoning_effort": "huge"}, {}, "reasoning_effort is 'huge': send one of none, minimal, low"),
        ({"thinking_token_budget": -1}, {}, "thinking_token_budget is -1: send an integer from 0"),
        ({}, {"max_tokens": 2**31}, "penstock.thinking.max_tokens is"),
        ({}, {"deadline_ms": 0}, "penstock.thinking.deadline_ms is 0: send an integer from 1"),
        ({"chat_template_kwargs": {"thinking": "no"}}, {}, "chat_template_kwargs.thinking is 'no'"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(WrongField) as refused:
        read(body, options)
    assert refused.value.message.startswith(wrong)
