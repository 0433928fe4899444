"""Records of calls with the times that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.cli.bench.plan.conduct import Conduct
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.loop_watch import GeneratorLoad
from services.cli.bench.targets.target import CallFacts, CallOutcome

QUIET = GeneratorLoad(0.0, 0.0, 0.1)


def call_record(
    number: int = 0,
    *,
    at_s: float = 0.0,
    ttft_s: float = 0.1,
    gaps_s: Sequence[float] = (0.02, 0.02),
    conduct: Conduct = Conduct.WELL,
    outcome: CallOutcome = CallOutcome.FINISHED,
    kind: str = "",
    prompt_tokens: int = 100,
    lap: int = 0,
    **facts: Any,
) -> CallRecord:
    """A call whose answer has a token for each delivery, and ends with the last."""
    pieces_s = [at_s + ttft_s]
    for gap_s in gaps_s:
        pieces_s.append(pieces_s[-1] + gap_s)
    return CallRecord(
        number=number,
        turn=0,
        source="test",
        lap=lap,
        conduct=conduct,
        intended_s=at_s,
        sent_s=at_s,
        max_tokens=16,
        chars=400,
        ended_s=pieces_s[-1],
        pieces_s=pieces_s,
        outcome=outcome,
        kind=kind,
        facts=CallFacts(prompt_tokens=prompt_tokens, completion_tokens=len(pieces_s), **facts),
    )
