"""Find out what is there before it is measured: that it answers, and how many characters its tokens have."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from random import Random

from services.cli.bench.plan.prose import Prose
from services.cli.bench.targets.target import BenchTarget, CallEnded, CallFacts, CallOutcome, TargetCall

USUAL_CHARS_PER_TOKEN = 4.0
"""Assumed of English text where a server does not say how many tokens a prompt has."""
SHORT_CHARS = 100
LONG_CHARS = (2400, 1200, 400)
"""The second text, the longest that the model's context has room for."""
PROBE_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """`counted`: the characters of a token are measured, not assumed."""

    model: str
    chars_per_token: float
    counted: bool


async def probe_target(target: BenchTarget, model: str, prose: Prose, seed: int) -> TargetTraits:
    """Send a short and a long text: what they differ in is text alone, without a template.

    Raises CallEnded where even the short one is not answered.
    """
    short = await _count(target, prose.write(Random(f"{seed}/probe/short"), SHORT_CHARS))  # noqa: S311
    for chars in LONG_CHARS:
        try:
            long = await _count(target, prose.write(Random(f"{seed}/probe/long"), chars))  # noqa: S311
        except CallEnded as error:
            if error.outcome is not CallOutcome.REFUSED:
                raise
            continue
        if long[1] > short[1] >= 0:
            return TargetTraits(model, (long[0] - short[0]) / (long[1] - short[1]), counted=True)
        break
    return TargetTraits(model, USUAL_CHARS_PER_TOKEN, counted=False)


async def _count(target: BenchTarget, text: str) -> tuple[int, int]:
    """Return the characters of a text and the tokens of its prompt; -1 where the server does not say."""
    facts = CallFacts()
    try:
        async with (
            asyncio.timeout(PROBE_DEADLINE_S),
            aclosing(target.pieces(TargetCall((("user", text),), 1), facts)) as pieces,
        ):
            async for _ in pieces:
                pass
    except TimeoutError as error:
        told = f"one token took more than {PROBE_DEADLINE_S:.0f} s"
        raise CallEnded(CallOutcome.EXPIRED, "no answer", told) from error
    return len(text), facts.prompt_tokens
