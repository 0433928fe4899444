"""Two workers in virtual time: what schedulers that follow targets may not lose, and what they win."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.bench.bench_goodput import BY_CONSTANTS, CHAT, LONG, asks_of
from tests.bench.goodput_world import Policy, World
from tests.simulation.slo_asks import SMALL_MODEL, Ask, Heard, Target, goodput, poisson_asks

BY_DEADLINES = Policy("all by deadlines")


def played(asks: list[Ask], policy: Policy) -> list[Heard]:
    return World(SMALL_MODEL, policy).play(asks)


def test_loose_targets_change_no_token_s_time() -> None:
    loose = Target("loose", 60.0, 2.0)
    asks = poisson_asks(1, 5.0, {(100, 12, loose): 7.0, (900, 6, loose): 0.6})
    by_constants, by_deadlines = played(asks, BY_CONSTANTS), played(asks, BY_DEADLINES)
    assert [call.times_s for call in by_deadlines] == [call.times_s for call in by_constants]
    assert goodput(by_constants) == 1.0


@pytest.mark.parametrize(("mix", "rate"), [("chats", 10.0), ("beside long prompts", 4.0)])
def test_more_requests_meet_their_targets_than_by_constants(mix: str, rate: float) -> None:
    asks = asks_of(mix, rate, 50, 1, None)
    assert goodput(played(asks, BY_DEADLINES)) >= goodput(played(asks, BY_CONSTANTS))


def test_a_long_prompt_ends_although_short_ones_keep_coming() -> None:
    short = poisson_asks(2, 6.0, {(150, 4, CHAT): 12.0})
    heard = played(sorted([*short, Ask(0.5, 1500, 4, LONG)], key=lambda ask: ask.at_s), BY_DEADLINES)
    (long,) = [call for call in heard if call.ask.target is LONG]
    assert long.outcome == "finished"


def test_tokens_come_one_after_another_and_as_many_as_were_asked_for() -> None:
    heard = played(poisson_asks(3, 4.0, {(60, 9, Target("any")): 5.0}), BY_DEADLINES)
    assert {call.outcome for call in heard} == {"finished"}
    assert [len(call.times_s) for call in heard] == [call.ask.output_tokens for call in heard]
    assert all(before < after for call in heard for before, after in pairwise(call.times_s))
