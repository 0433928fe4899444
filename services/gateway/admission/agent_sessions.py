"""Remember the sessions of agents: what their calls have waited, and how long their tools take.

Soft and of this gateway alone: what is forgotten, or was said to another gateway, costs time and no answer. A
session is its tenant's: the same name of another one is another session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.request.agent_hints import AgentHints
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.fair_cache import FairCache

MAX_AGENT_SESSIONS = 16_384
"""The sessions that a gateway remembers, a share for each tenant; those that were silent for longest go
first."""
MAX_TOOLS = 4096
"""The tools whose times it remembers, likewise."""
MAX_WAITED_S = 30.0
"""A call goes no further ahead than this of those that came with it, whatever its job has waited."""
MAX_PAUSE_S = 3600.0
"""A longer time between two calls tells nothing of a tool."""
NEWEST_SHARE = 0.3
"""The share of the latest pause in the usual one."""
LEAST_STAY_S, UNKNOWN_STAY_S, MAX_STAY_S = 5.0, 60.0, 600.0
"""The times for which KV is kept for a session's next call: the shortest, where nobody knows when that comes,
and the longest."""
USUAL_APPENDED_TOKENS = 256
"""The tokens that a turn is expected to append, until the session has shown its own."""


@dataclass(slots=True)
class AgentSession:
    """`waited_s`: its calls', those of helpers that it began included; `counted_s`: up to when. `tools`: what
    its last answer called, at `answered_s` (None: nothing since the last call). `known_tokens`: of its last
    prompt with the answer; `appended_tokens`: what a call last added to that."""

    waited_s: float = 0.0
    counted_s: float = 0.0
    answered_s: float | None = None
    tools: tuple[str, ...] = ()
    known_tokens: int = 0
    appended_tokens: int = USUAL_APPENDED_TOKENS


class AgentSessions:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._sessions: FairCache[str, AgentSession] = FairCache(MAX_AGENT_SESSIONS)
        self._pauses_s: FairCache[str, float] = FairCache(MAX_TOOLS)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin_call(self, tenant: str, hints: AgentHints) -> bool:
        """A call of the session has come; returns whether it had one before. What passed since its last
        answer is the time of the tools that this had called."""
        session = self._sessions.get(tenant, hints.session)
        if session is None:
            self._sessions.put(tenant, hints.session, AgentSession())
            return False
        if session.answered_s is not None:
            self._record_pause(tenant, session.tools, self._clock.monotonic_s() - session.answered_s)
            session.answered_s = None
        return True

    def record_prompt(self, tenant: str, hints: AgentHints, prompt_tokens: int) -> None:
        """The prompt of the session's call has so many tokens."""
        session = self._sessions.peek(tenant, hints.session)
        if session is not None and 0 < session.known_tokens <= prompt_tokens:
            session.appended_tokens = prompt_tokens - session.known_tokens

    def end_call(self, tenant: str, hints: AgentHints, tools: Sequence[str], known_tokens: int) -> None:
        """Its client has the whole answer, which called these tools; prompt and answer are `known_tokens`."""
        if hints.final:
            self._sessions.pop(tenant, hints.session)
            return
        session = self._sessions.peek(tenant, hints.session)
        if session is not None:
            session.answered_s, session.tools = self._clock.monotonic_s(), tuple(tools)
            session.known_tokens = known_tokens

    def waited_s(self, tenant: str, hints: AgentHints | None) -> float:
        """Return what the job of a call has waited already, as far as that counts; 0 for a call of none."""
        session = None if hints is None else self._sessions.peek(tenant, hints.job)
        return 0.0 if session is None else min(session.waited_s, MAX_WAITED_S)

    def record_wait(self, tenant: str, hints: AgentHints, began_s: float) -> None:
        """A call of the job has waited from `began_s` until now; calls that waited together count once."""
        session = self._sessions.peek(tenant, hints.job)
        if session is None:
            session = AgentSession()
            self._sessions.put(tenant, hints.job, session)
        now_s = self._clock.monotonic_s()
        session.waited_s += max(0.0, now_s - max(began_s, session.counted_s))
        session.counted_s = now_s

    def appended_tokens(self, tenant: str, hints: AgentHints) -> int:
        """Return how many tokens the session's next turn is expected to append."""
        session = self._sessions.peek(tenant, hints.session)
        return USUAL_APPENDED_TOKENS if session is None else session.appended_tokens

    def pause_s(self, tenant: str, hints: AgentHints, tools: Sequence[str] = ()) -> float | None:
        """Return the time until the session's next call: as it says, or as its tools take; None: nobody
        knows.

        `tools`: what the answer has called, where it is there.
        """
        if hints.pause_ms is not None:
            return hints.pause_ms / 1000
        called = tools or ((hints.next_tool,) if hints.next_tool else ())
        known = [pause for tool in called if (pause := self._pauses_s.peek(tenant, tool)) is not None]
        return max(known, default=None)

    def stay_ms(self, tenant: str, hints: AgentHints | None) -> int:
        """Return how long workers keep the KV of a call for the next one: twice as long as that is expected
        to take; 0 for a call of no agent, below 0 where none follows."""
        if hints is None:
            return 0
        if hints.final:
            return -1
        pause_s = self.pause_s(tenant, hints)
        stay_s = UNKNOWN_STAY_S if pause_s is None else min(MAX_STAY_S, 2 * pause_s + LEAST_STAY_S)
        return round(1000 * stay_s)

    def _record_pause(self, tenant: str, tools: Sequence[str], pause_s: float) -> None:
        if pause_s > MAX_PAUSE_S:
            return
        for tool in tools:
            usual_s = self._pauses_s.get(tenant, tool)
            newest = 1.0 if usual_s is None else NEWEST_SHARE
            self._pauses_s.put(tenant, tool, newest * pause_s + (1.0 - newest) * (usual_s or 0.0))
