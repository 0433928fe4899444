"""Requests with targets for their first tokens and for the time between tokens, and whether these were met.

Lengths and times are what a trace recorded, scaled to what one small worker of each role can do, or drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.simulation.step_profile import StepProfile

SMALL_MODEL = StepProfile(step_us=6000.0, token_us=700.0, sequence_us=450.0, key_us=1.0)
"""The steps of a model of 135 M parameters in 4 bits on one core with AVX-512, as its own cost model learned
them."""


@dataclass(frozen=True, slots=True)
class Target:
    """The times in which clients of one kind want their first token and each further one; 0: any."""

    kind: str
    ttft_s: float = 0.0
    itl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    target: Target


@dataclass(slots=True)
class Heard:
    """One call, by the clock of its client: when tokens came, and how it ended."""

    ask: Ask
    began_s: float
    times_s: list[float] = field(default_factory=list)
    outcome: str = ""

    @property
    def ttft_s(self) -> float:
        """Return infinity for a call without a token."""
        return self.times_s[0] - self.began_s if self.times_s else float("inf")

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False)]

    @property
    def verdict(self) -> str:
        """Return "met" where each token came in its time, else what was missed first."""
        target = self.ask.target
        if self.outcome == "shed":
            return "shed"
        if target.ttft_s and self.ttft_s > target.ttft_s:
            return "late"
        if target.itl_s and max(self.gaps_s, default=0.0) > target.itl_s:
            return "slow"
        return "met" if self.outcome == "finished" else "unfinished"


def goodput(heard: Sequence[Heard]) -> float:
    """Return the share of calls that met their targets."""
    return sum(call.verdict == "met" for call in heard) / len(heard)


def traced_asks(
    trace: Path,
    count: int,
    rate: float,
    scale: float,
    targets: Sequence[Target],
    *,
    skip: int = 0,
    longest: int = 2048,
    output_scale: float = 0.1,
) -> list[Ask]:
    """Return the requests of a Mooncake trace from `skip` on: lengths times `scale`, and bursts as they were
    recorded, at `rate` a second on average. Targets go by length: the last is for prompts that are longer
    than half of `longest`, the others take turns."""
    rows = []
    with trace.open(encoding="utf-8") as lines:
        for place, line in enumerate(lines):
            if skip <= place < skip + count:
                rows.append(json.loads(line))
    first_ms, last_ms = rows[0]["timestamp"], rows[-1]["timestamp"]
    squeeze = (count / rate) / max(1.0, (last_ms - first_ms) / 1000)
    asks = []
    for place, row in enumerate(rows):
        prompt = min(longest, max(8, round(scale * row["input_length"])))
        output = min(120, max(2, round(output_scale * row["output_length"])))
        long = prompt > longest / 2 and len(targets) > 1
        others = targets[:-1] if len(targets) > 1 else targets
        target = targets[-1] if long else others[place % len(others)]
        asks.append(Ask(squeeze * (row["timestamp"] - first_ms) / 1000, prompt, output, target))
    return asks


def poisson_asks(
    seed: int, seconds: float, shares: Mapping[tuple[int, int, Target], float], *, spread: float = 0.5
) -> list[Ask]:
    """Return requests in Poisson order: so many a second of each (prompt tokens, output tokens, target), of
    lengths up to `spread` shorter or longer."""
    drawn, asks = Random(seed), list[Ask]()
    for (prompt, output, target), rate in shares.items():
        at_s = drawn.expovariate(rate)
        while at_s < seconds:
            times = 1 + spread * drawn.uniform(-1, 1)
            asks.append(Ask(at_s, max(8, round(times * prompt)), max(2, round(times * output)), target))
            at_s += drawn.expovariate(rate)
    return sorted(asks, key=lambda ask: ask.at_s)
