"""A call, what comes of it, and how it may end, whatever the server is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

MAX_TOLD_CHARS = 300
"""The characters of a server's error that are kept."""


class CallOutcome(StrEnum):
    FINISHED = "finished"
    GAVE_UP = "gave up"
    """Our client ended it, as it was to."""
    SHED = "shed"
    """Refused for want of room, with 429 or 503."""
    EXPIRED = "expired"
    REFUSED = "refused"
    """The request itself cannot be: it is invalid, too long, or not allowed."""
    FAILED = "failed"


class CallEnded(Exception):
    """The server ended a call otherwise than with a whole answer. `kind` is short, for counting."""

    def __init__(self, outcome: CallOutcome, kind: str, told: str = "") -> None:
        super().__init__(f"{kind}: {told}")
        self.outcome = outcome
        self.kind = kind
        self.told = told[:MAX_TOLD_CHARS]


@dataclass(frozen=True, slots=True)
class TargetSampling:
    """`ignore_eos`: answers have all their tokens, where the server knows how."""

    model: str = ""
    temperature: float = 0.0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class CallHints:
    """The agent that a call is of, as it is told to the server: its session, that of the agent which began it
    ("" for none), whether no call follows, the time to the next one, and whether that goes on from the
    answer."""

    session: str
    parent: str = ""
    final: bool = False
    pause_ms: int = 0
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class TargetCall:
    """`messages` are roles and texts. `deadline_ms` is told to the server, 0 is none. `alone`: over a
    connection of its own, which is cut when the call is left. `json_schema`: the answer fits it; "" is none.
    `passages`: so many are retrieved before, whatever that takes; 0: as the server does. `hints`: None for a
    call that says nothing of an agent."""

    messages: tuple[tuple[str, str], ...]
    max_tokens: int
    deadline_ms: int = 0
    alone: bool = False
    json_schema: str = ""
    passages: int = 0
    hints: CallHints | None = None

    @property
    def plain_text(self) -> str:
        return "\n\n".join(text for _, text in self.messages)


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The text of one event. `tokens` 0: the server does not say how many. `thinking`: it is no part of the
    answer, as the server says."""

    text: str
    tokens: int = 0
    thinking: bool = False


@dataclass(slots=True)
class CallFacts:
    """Facts that a server tells of a call, as they become known; -1 is what it does not tell."""

    model: str = ""
    request_id: str = ""
    prompt_tokens: int = -1
    completion_tokens: int = -1
    cached_tokens: int = -1
    drafted_tokens: int = -1
    """Tokens of the answer that a draft had guessed."""
    replacements: int = 0
    earlier_answer: bool = False
    phases_ms: dict[str, float] = field(default_factory=dict)
    ended: bool = False
    """The server has said that the answer is whole."""


class BenchTarget(Protocol):
    def pieces(self, call: TargetCall, facts: CallFacts) -> AsyncGenerator[StreamPiece]:
        """Stream one answer; leaving the generator ends the call. Raises CallEnded."""
        ...

    async def find_model(self) -> str:
        """Return the model that calls name. Raises CallEnded where nothing answers."""
        ...

    async def close(self) -> None: ...
