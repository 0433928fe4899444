"""Read what a client knows of the agent that a request is a call of: whose call it is, and when the next
comes."""

from __future__ import annotations

from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest

MAX_AGENT_SESSION_CHARS = 256
"""The longest name of an agent's session."""
MAX_NEXT_TOOL_CHARS = 64
"""The longest name of the tool that an answer is expected to call."""
MAX_PAUSE_MS = 24 * 3600 * 1000
"""The longest time that a client may expect to pass before a session's next call."""


@dataclass(frozen=True, slots=True)
class AgentHints:
    """`session` names the agent's calls within its tenant, `parent` that of the agent which began it ("" for
    none). `final`: no call follows. `pause_ms`: from the answer to the next call; None: as its tools took
    lately. `warm_next`: the next prompt is to be computed ahead; None: where the answer calls a tool.
    `next_tool`: what the answer is expected to call, "" for nobody knows."""

    session: str
    parent: str = ""
    final: bool = False
    pause_ms: int | None = None
    warm_next: bool | None = None
    next_tool: str = ""

    @property
    def job(self) -> str:
        """The session whose waiting counts: that of the agent which began this one, else its own."""
        return self.parent or self.session

    def warms_next(self, *, has_called: bool) -> bool:
        """Return whether the next turn is to be computed ahead of an answer that `has_called` a tool, or
        not."""
        if self.final:
            return False
        return has_called if self.warm_next is None else self.warm_next


def read_agent_hints(message: pb.GenerateRequest) -> AgentHints | None:
    """Return what the request says, None where it says nothing. Raises InvalidRequest that names the
    field."""
    if not message.HasField("agent"):
        return None
    asked = message.agent
    if not asked.session:
        raise InvalidRequest("agent.session is empty: name the session, or send no agent")
    for name, text in (("session", asked.session), ("parent_session", asked.parent_session)):
        if len(text) > MAX_AGENT_SESSION_CHARS:
            raise InvalidRequest(
                f"agent.{name} has {len(text)} characters: send at most {MAX_AGENT_SESSION_CHARS}"
            )
    if len(asked.next_tool) > MAX_NEXT_TOOL_CHARS:
        raise InvalidRequest(
            f"agent.next_tool has {len(asked.next_tool)} characters: send at most {MAX_NEXT_TOOL_CHARS}"
        )
    pause_ms = asked.pause_ms if asked.HasField("pause_ms") else None
    if pause_ms is not None and not 0 <= pause_ms <= MAX_PAUSE_MS:
        raise InvalidRequest(f"agent.pause_ms is {pause_ms}: send milliseconds up to {MAX_PAUSE_MS}")
    return AgentHints(
        session=asked.session,
        parent=asked.parent_session,
        final=asked.final,
        pause_ms=pause_ms,
        warm_next=asked.warm_next if asked.HasField("warm_next") else None,
        next_tool=asked.next_tool,
    )
