"""What a request says of its agent is read, or refused with the field's name."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.agent_hints import (
    MAX_AGENT_SESSION_CHARS,
    MAX_NEXT_TOOL_CHARS,
    MAX_PAUSE_MS,
    AgentHints,
)
from shared.errors import InvalidRequest
from tests.support.text_request import text_request


def test_a_request_that_says_nothing_has_none() -> None:
    assert text_request().agent is None


def test_all_is_taken_up_to_its_limits() -> None:
    name, tool = "s" * MAX_AGENT_SESSION_CHARS, "t" * MAX_NEXT_TOOL_CHARS
    asked = pb.AgentHints(
        session=name, parent_session=name, final=True, pause_ms=MAX_PAUSE_MS, warm_next=False, next_tool=tool
    )
    assert text_request(agent=asked).agent == AgentHints(name, name, True, MAX_PAUSE_MS, False, tool)
    assert text_request(agent=pb.AgentHints(session="s")).agent == AgentHints("s")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (pb.AgentHints(final=True), r"agent\.session"),
        (pb.AgentHints(session="s" * (MAX_AGENT_SESSION_CHARS + 1)), r"agent\.session"),
        (
            pb.AgentHints(session="s", parent_session="s" * (MAX_AGENT_SESSION_CHARS + 1)),
            r"agent\.parent_session",
        ),
        (pb.AgentHints(session="s", next_tool="t" * (MAX_NEXT_TOOL_CHARS + 1)), r"agent\.next_tool"),
        (pb.AgentHints(session="s", pause_ms=-1), r"agent\.pause_ms"),
        (pb.AgentHints(session="s", pause_ms=MAX_PAUSE_MS + 1), r"agent\.pause_ms"),
    ],
)
def test_what_is_wrong_is_named(asked: pb.AgentHints, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        text_request(agent=asked)


def test_an_agent_that_another_one_began_is_of_its_job() -> None:
    assert AgentHints("own").job == "own"
    assert AgentHints("own", parent="root").job == "root"


@pytest.mark.parametrize(
    ("hints", "after_a_call", "after_a_text"),
    [
        (AgentHints("s"), True, False),
        (AgentHints("s", warm_next=True), True, True),
        (AgentHints("s", warm_next=False), False, False),
        (AgentHints("s", warm_next=True, final=True), False, False),
    ],
)
def test_the_next_turn_is_computed_ahead_where_one_is_sure_to_come(
    hints: AgentHints, after_a_call: bool, after_a_text: bool
) -> None:
    assert (hints.warms_next(has_called=True), hints.warms_next(has_called=False)) == (
        after_a_call,
        after_a_text,
    )
