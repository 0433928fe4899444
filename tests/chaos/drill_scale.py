"""Scale: a stack has more workers and fewer again while it serves, and no request fails or changes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tests.chaos.drill_roll import ROOM, told
from tests.chaos.report import DrillReport, spread
from tests.chaos.steady_load import steady_load
from tests.chaos.world import Models, drill_stack, until_serving
from tests.support.stack import Stack


@dataclass(frozen=True, slots=True)
class Scale:
    streams: int
    tokens: int
    anew: int
    steps: tuple[Mapping[str, int], ...]


FULL = Scale(
    8,
    400,
    2,
    (
        {"decode": 3},
        {"decode": 1},
        {"tokenizer": 1, "detokenizer": 3, "prefill": 3, "decode": 2, "gateway": 2},
        {"tokenizer": 2, "detokenizer": 1, "prefill": 1, "decode": 1, "gateway": 1},
    ),
)
SHORT = Scale(1, 40, 1, ({"decode": 3}, {"decode": 2}))
"""Ends with as many as the stack had."""


async def _step(stack: Stack, scale: Scale, counts: Mapping[str, int], report: DrillReport) -> None:
    arguments = [f"{role}={count}" for role, count in counts.items()]
    what = ", ".join(arguments)
    async with steady_load(stack, scale.streams, scale.tokens, scale.anew) as load:
        begun_s = time.monotonic()
        code, said = await told(stack, "scale", *arguments)
        took_s = time.monotonic() - begun_s
    pauses = spread([1e3 * pause_s for pause_s in load.pauses_s])
    report.add(what, f"{took_s:.1f} s", load.answers, len(load.wrong), pauses)
    report.claim(f"`penstock scale` to {what} ends well", said.splitlines()[-1:], holds=code == 0)
    report.claim("no request fails and none is answered otherwise", load.wrong[:3], holds=not load.wrong)
    there = Counter(each.role for each in stack.instances())
    report.claim(
        "there are as many as were wanted", dict(there), holds=all(there[r] == n for r, n in counts.items())
    )


def new_report() -> DrillReport:
    return DrillReport(
        "scale: instances come and go under load",
        ("wanted", "took", "answers", "failed or changed", "longest pause p50 / p99 / max"),
    )


async def hold_on(stack: Stack, scale: Scale, report: DrillReport) -> None:
    for counts in scale.steps:
        await _step(stack, scale, counts, report)
        await until_serving(stack)


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report()
    with drill_stack(models, environ=ROOM) as stack:
        await hold_on(stack, scale, report)
    return report
