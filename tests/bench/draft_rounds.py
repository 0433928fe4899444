"""Rounds of remote drafts, simulated: where they win, by the target's step, the drafter's, the way and more.

What a round needs is in four numbers: how long the target's step is and how much each verified row adds, how
long the drafter's is and how much each branch adds. Lengths and outcomes are drawn as bench_remote_drafts'
drafter has them, so that points of the map can be held against real processes.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from tests.bench.agreeing_drafter import RUNNER_UPS

USED_SHARE = 0.9
"""The share of a step in services/decode/ahead/answer_times.py: later branches are not there in time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`step_ms` of the target for one token of each of `batch` sequences, `row_share` of it more for each
    further row; `draft_ms` a step of the drafter, `branch_share` of it more for each further branch; `way_ms`
    there and back."""

    step_ms: float
    draft_ms: float
    way_ms: float
    acceptance: float
    batch: int = 1
    length: int = 4
    fan: int = 3
    row_share: float = 0.06
    branch_share: float = 0.03

    def verify_ms(self, drafts: int) -> float:
        return self.step_ms * (1 + self.row_share * self.batch * drafts)

    def tick_ms(self, branches: int, tokens: int) -> float:
        return tokens * self.draft_ms * (1 + self.branch_share * (self.batch * max(1, branches) - 1))

    @property
    def branches_ms(self) -> float:
        """The time until branches for a round are there."""
        return self.way_ms + self.tick_ms((self.length + 1) * self.fan, self.length + 1)


@dataclass(slots=True)
class Played:
    """The outcome of some rounds: `hits` of `drafted` had the next draft when they ended."""

    ms: float = 0.0
    tokens: int = 0
    drafted: int = 0
    hits: int = 0


def play(setting: Setting, *, ahead: bool, steps: int = 4000, seed: int = 1) -> Played:
    """Play the steps of one sequence; the others of its batch are like it."""
    rng, played, held = random.Random(seed), Played(), 0
    for _ in range(steps):
        if held:
            played.ms += setting.verify_ms(held)
            right = accepted(setting, rng, held)
            played.tokens += right + 1
            played.drafted += 1
            in_time = setting.branches_ms <= USED_SHARE * setting.verify_ms(held)
            found = ahead and in_time and is_prepared(setting, rng, all_right=right == held)
            played.hits += found
            held = setting.length if found else 0
            continue
        missing_ms = setting.way_ms + setting.tick_ms(1, setting.length + 1)
        meanwhile = max(1, math.ceil(missing_ms / setting.step_ms))
        played.ms += meanwhile * setting.step_ms
        played.tokens += meanwhile
        follows = accepted(setting, rng, meanwhile) == meanwhile
        if not follows and ahead and meanwhile == 1 and setting.branches_ms <= USED_SHARE * setting.step_ms:
            follows = is_prepared(setting, rng, all_right=False)
        held = setting.length if follows else 0
    return played


def accepted(setting: Setting, rng: random.Random, drafts: int) -> int:
    right = 0
    while right < drafts and rng.random() < setting.acceptance:
        right += 1
    return right


def is_prepared(setting: Setting, rng: random.Random, *, all_right: bool) -> bool:
    """Whether the id that follows is among those that were thought likely."""
    if all_right and rng.random() < setting.acceptance:
        return True
    return rng.random() < sum(RUNNER_UPS[: setting.fan - all_right])


def times(setting: Setting, *, ahead: bool) -> float:
    """Return how many times as fast the sequence is as without drafts; 1 where no length pays."""
    best = 1.0
    for length in range(1, setting.length + 1):
        played = play(replace(setting, length=length), ahead=ahead)
        best = max(best, played.tokens * setting.step_ms / played.ms)
    return best


MAP = [
    Setting(step_ms, share * step_ms, way_ms, acceptance, batch, row_share=row_share)
    for step_ms, row_share in ((20.0, 0.1), (100.0, 0.06))
    for share in (1 / 8, 1 / 4)
    for way_ms in (1.0, 10.0, 50.0)
    for batch in (1, 8)
    for acceptance in (0.5, 0.7, 0.9)
]


def print_map() -> None:
    """Print a row for each setting but the acceptance, which has a column."""
    print("| target's step | drafter's | there and back | batch | 0.5 | 0.7 | 0.9 |")
    print("|---" * 7 + "|")
    for first in range(0, len(MAP), 3):
        one = MAP[first]
        cells = [
            f"{times(each, ahead=False):.2f} → {times(each, ahead=True):.2f}"
            for each in MAP[first : first + 3]
        ]
        head = f"{one.step_ms:g} ms | {one.draft_ms:.3g} ms | {one.way_ms:g} ms | {one.batch}"
        print(f"| {head} | {' | '.join(cells)} |")
