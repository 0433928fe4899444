"""A record of what became of one call; all times are seconds since the load began."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.targets.target import CallFacts, CallOutcome

EXPECTED = {
    Conduct.WELL: (CallOutcome.FINISHED,),
    Conduct.CANCEL: (CallOutcome.FINISHED, CallOutcome.GAVE_UP),
    Conduct.DISCONNECT: (CallOutcome.FINISHED, CallOutcome.GAVE_UP),
    Conduct.STALL: (CallOutcome.FINISHED, CallOutcome.GAVE_UP, CallOutcome.EXPIRED),
    Conduct.OVERSIZED: (CallOutcome.FINISHED, CallOutcome.REFUSED),
    Conduct.HURRIED: (CallOutcome.FINISHED, CallOutcome.EXPIRED),
    Conduct.SCHEMA: (CallOutcome.FINISHED, CallOutcome.REFUSED),
    Conduct.RETRIEVE: (CallOutcome.FINISHED,),
}
"""Ends that are no error, by how the client behaved; being shed is told apart from both."""
GATEWAY_LINE, QUEUE = "line", "queue"
"""Names of phases of timelines that are waits in lines: of one, and the end of the others."""


@dataclass(slots=True)
class CallRecord:
    """`intended_s`: when it should have been sent, from which its latencies count. `pieces_s`: when each
    event with text came. `chars`: of its prompt."""

    number: int
    turn: int
    source: str
    lap: int
    conduct: Conduct
    intended_s: float
    sent_s: float
    max_tokens: int
    chars: int
    ended_s: float = math.nan
    pieces_s: list[float] = field(default_factory=list)
    piece_tokens: int = 0
    useful_s: float = math.nan
    outcome: CallOutcome = CallOutcome.FAILED
    kind: str = ""
    told: str = ""
    facts: CallFacts = field(default_factory=CallFacts)

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0] - self.intended_s if self.pieces_s else math.nan

    @property
    def total_s(self) -> float:
        return self.ended_s - self.intended_s

    @property
    def ttua_s(self) -> float:
        """The time until the answer was of use."""
        return self.useful_s - self.intended_s

    @property
    def queue_s(self) -> float:
        """The time in lines of the server, by its timeline; nan where it tells none."""
        phases_ms = self.facts.phases_ms
        waits_ms = (spent_ms for name, spent_ms in phases_ms.items() if is_queue(name))
        return sum(waits_ms) / 1e3 if phases_ms else math.nan

    @property
    def gaps_s(self) -> list[float]:
        """The times between one delivery of text and the next, as a reader sees them."""
        return [later - earlier for earlier, later in zip(self.pieces_s, self.pieces_s[1:], strict=False)]

    @property
    def output_tokens(self) -> int:
        """The number that the server says; else those told with pieces; else the pieces themselves."""
        if self.facts.completion_tokens >= 0:
            return self.facts.completion_tokens
        return self.piece_tokens or len(self.pieces_s)

    @property
    def tpot_s(self) -> float:
        """The mean time of a token behind the first delivery; nan where all came at once."""
        behind = self.output_tokens - 1
        if behind < 1 or len(self.pieces_s) < 2:
            return math.nan
        return (self.pieces_s[-1] - self.pieces_s[0]) / behind

    @property
    def finished(self) -> bool:
        return self.outcome is CallOutcome.FINISHED

    @property
    def is_error(self) -> bool:
        return self.outcome is not CallOutcome.SHED and self.outcome not in EXPECTED[self.conduct]

    def as_json(self) -> dict[str, Any]:
        """Return all of it; what is not known is null."""
        row = asdict(self)
        return {name: _plain(value) for name, value in row.items()}

    @classmethod
    def of_json(cls, row: dict[str, Any]) -> Self:
        known: dict[str, Any] = {name: math.nan if value is None else value for name, value in row.items()}
        known |= {
            "conduct": Conduct(row["conduct"]),
            "outcome": CallOutcome(row["outcome"]),
            "facts": CallFacts(**row["facts"]),
        }
        return cls(**known)


def is_queue(phase: str) -> bool:
    """Whether a phase of a timeline is a wait in a line: the gateway's, or one of a worker."""
    return phase == GATEWAY_LINE or phase.endswith(QUEUE)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
