"""Read what a call says of its agent: ours, or what the clients of coding agents and of Dynamo send.

Ours is `penstock.session`, a name or an object. Of the others a name that cannot be used counts as none: who
sends it does not mean us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.http.fields.json_fields import JsonFields
from services.gateway.request.agent_hints import MAX_AGENT_SESSION_CHARS, MAX_PAUSE_MS
from shared.sampling.parameters import Bounds

SESSION = "session"
"""The option with an agent's session: its name, or an object."""
SESSION_FIELDS = ("name", "parent", "final", "pause_ms", "warm_next", "next_tool")
"""The fields of that object."""
NVEXT = "nvext"
FINAL_HEADER = "x-dynamo-session-final"
PAUSES = Bounds(0, MAX_PAUSE_MS, integer=True)
PRIORITIES = Bounds(-(2**31), 2**31 - 1, integer=True)


@dataclass(frozen=True, slots=True)
class SessionHeaders:
    """The headers of one kind of client. `child`: the session of an agent that another one began, where that
    is another header; its parent is then `parent`, or else `session`."""

    session: str
    parent: str = ""
    child: str = ""


KNOWN_HEADERS = (
    SessionHeaders("x-dynamo-session-id", "x-dynamo-parent-session-id"),
    SessionHeaders(
        "x-claude-code-session-id", "x-claude-code-parent-agent-id", child="x-claude-code-agent-id"
    ),
    SessionHeaders("session-id"),
    SessionHeaders("x-session-id", "x-parent-session-id"),
)
"""The headers of known clients (Dynamo's, Claude Code, Codex, OpenCode): the first with a session counts."""


def read_agent(body: JsonFields, options: JsonFields, headers: Mapping[str, str]) -> pb.AgentHints | None:
    """Return what is said, None for nothing; `options` are those under `penstock`. Raises WrongField."""
    extension = body.object(NVEXT)
    hints, context = extension.object("agent_hints"), extension.object("agent_context")
    agent = _own(options) or _foreign(context, headers)
    if agent is None:
        return None
    if not agent.HasField("warm_next") and hints.has("speculative_prefill"):
        agent.warm_next = hints.flag("speculative_prefill")
    agent.final = agent.final or headers.get(FINAL_HEADER, "").lower() == "true"
    return agent


def read_foreign_priority(body: JsonFields) -> pb.Priority | None:
    """Return the class that `nvext.agent_hints.priority` stands for, None where it is not said: above 0 is
    more urgent than what says nothing, below 0 less."""
    value = body.object(NVEXT).object("agent_hints").number("priority", PRIORITIES)
    if value is None:
        return None
    return pb.PRIORITY_HIGH if value > 0 else pb.PRIORITY_LOW if value < 0 else pb.PRIORITY_NORMAL


def _own(options: JsonFields) -> pb.AgentHints | None:
    if not options.has(SESSION):
        return None
    if isinstance(options.value(SESSION), str):
        return pb.AgentHints(session=options.text(SESSION))
    given = options.object(SESSION)
    for name in given.names():
        if name not in SESSION_FIELDS:
            raise given.wrong(name, f"one of {', '.join(SESSION_FIELDS)}", name)
    return pb.AgentHints(
        session=given.text("name"),
        parent_session=given.text("parent"),
        final=given.flag("final"),
        pause_ms=given.number("pause_ms", PAUSES),
        warm_next=given.flag("warm_next") if given.has("warm_next") else None,
        next_tool=given.text("next_tool"),
    )


def _foreign(context: JsonFields, headers: Mapping[str, str]) -> pb.AgentHints | None:
    for known in KNOWN_HEADERS:
        session, parent = _name(headers, known.session), _name(headers, known.parent)
        if child := _name(headers, known.child):
            return pb.AgentHints(session=child, parent_session=parent or session)
        if session:
            return pb.AgentHints(session=session, parent_session="" if known.child else parent)
    session = context.text("session_id")[:MAX_AGENT_SESSION_CHARS]
    if not session:
        return None
    return pb.AgentHints(
        session=session, parent_session=context.text("parent_session_id")[:MAX_AGENT_SESSION_CHARS]
    )


def _name(headers: Mapping[str, str], header: str) -> str:
    """Return the header's value where that can be a name, "" otherwise."""
    value = headers.get(header, "") if header else ""
    return value if len(value) <= MAX_AGENT_SESSION_CHARS else ""
