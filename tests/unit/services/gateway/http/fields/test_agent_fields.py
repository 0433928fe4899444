"""What clients of agents say of themselves, each in its own words, is one thing to us."""

from __future__ import annotations

from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.json_fields import JsonFields, WrongField
from services.gateway.http.fields.penstock_options import read_penstock_options
from services.gateway.request.agent_hints import MAX_AGENT_SESSION_CHARS


def read(headers: dict[str, str] | None = None, **body: Any) -> pb.GenerateRequest:
    request = pb.GenerateRequest()
    read_penstock_options(JsonFields(body), headers or {}).apply(request)
    return request


def test_a_call_that_says_nothing_is_no_agents() -> None:
    assert not read({"user-agent": "curl"}).HasField("agent")


def test_a_session_is_a_name_or_all_that_is_known() -> None:
    assert read(penstock={"session": "s"}).agent == pb.AgentHints(session="s")
    assert read({"x-penstock-session": "s"}).agent == pb.AgentHints(session="s")
    said = {"name": "s", "parent": "p", "final": True, "pause_ms": 9, "warm_next": False, "next_tool": "t"}
    assert read(penstock={"session": said}).agent == pb.AgentHints(
        session="s", parent_session="p", final=True, pause_ms=9, warm_next=False, next_tool="t"
    )


@pytest.mark.parametrize(
    ("headers", "session", "parent"),
    [
        ({"x-dynamo-session-id": "a", "x-dynamo-parent-session-id": "b"}, "a", "b"),
        ({"x-dynamo-session-id": "a", "session-id": "c"}, "a", ""),
        ({"x-claude-code-session-id": "a"}, "a", ""),
        ({"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"}, "b", "a"),
        (
            {
                "x-claude-code-session-id": "a",
                "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "c",
            },
            "b",
            "c",
        ),
        ({"session-id": "a"}, "a", ""),
        ({"x-session-id": "a", "x-parent-session-id": "b"}, "a", "b"),
    ],
)
def test_the_headers_of_known_clients_name_a_session(
    headers: dict[str, str], session: str, parent: str
) -> None:
    assert read(headers).agent == pb.AgentHints(session=session, parent_session=parent)


def test_our_own_field_wins_and_a_foreign_name_that_is_too_long_counts_as_none() -> None:
    headers = {"x-dynamo-session-id": "theirs"}
    assert read(headers, penstock={"session": "ours"}).agent.session == "ours"
    assert not read({"session-id": "s" * (MAX_AGENT_SESSION_CHARS + 1)}).HasField("agent")


def test_dynamos_hints_are_read_as_far_as_we_have_a_use_for_them() -> None:
    headers = {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}
    hints = {"priority": 5, "speculative_prefill": True, "osl": 1024, "strict_priority": 1}
    request = read(headers, nvext={"agent_hints": hints, "extra_fields": ["timing"]})
    assert request.agent == pb.AgentHints(session="s", final=True, warm_next=True)
    assert request.priority == pb.PRIORITY_HIGH
    assert read(nvext={"agent_hints": {"priority": -1}}).priority == pb.PRIORITY_LOW
    ours = read(nvext={"agent_hints": {"priority": 9}}, penstock={"priority": "low"})
    assert ours.priority == pb.PRIORITY_LOW
    context = {"session_id": "s", "parent_session_id": "p"}
    assert read(nvext={"agent_context": context}).agent == pb.AgentHints(session="s", parent_session="p")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"penstock": {"session": 3}}, "penstock.session"),
        ({"penstock": {"session": {"name": "s", "pause": 3}}}, "penstock.session.pause"),
        ({"penstock": {"session": {"name": "s", "pause_ms": -1}}}, "penstock.session.pause_ms"),
        ({"nvext": {"agent_hints": {"priority": "high"}}}, "nvext.agent_hints.priority"),
        ({"nvext": 3}, "nvext"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(WrongField) as refused:
        read(**body)
    assert refused.value.param == param
