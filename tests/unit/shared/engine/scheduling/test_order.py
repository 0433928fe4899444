from __future__ import annotations

from typing import Any

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.cost_model import CostModel, Features
from shared.engine.scheduling.order import (
    AGING_US,
    PATIENCE_US,
    Precedence,
    PromptOrder,
    class_at,
    keeps_blocks,
    precedence,
)
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import TenantShare

NOBODY = ServiceCounters()
"""Those of a place where only one tenant is."""


def first_to_go(sequence: LiveSequence) -> Precedence:
    return keeps_blocks(sequence, NOBODY)


def waiting(key: str, remaining: int, **fields: Any) -> LiveSequence:
    sequence = LiveSequence(
        key,
        ord(key),
        [0] * remaining,
        remaining,
        SamplingParams(),
        SequenceStatus.ACTIVE,
        HashChain([], None, BlockHasher()),
    )
    sequence.deadline_us = PATIENCE_US
    for name, value in fields.items():
        setattr(sequence, name, value)
    return sequence


def order_at(*, step_us: float, token_us: float) -> PromptOrder:
    """One that knows what steps and their tokens cost."""
    cost = CostModel(512)
    for _ in range(20):
        for features in (Features(1, 1, 9), Features(9, 1, 80), Features(48, 2, 960), Features(8, 8, 5000)):
            cost.observe(features, step_us + token_us * features.tokens)
    return PromptOrder(cost, ServiceCounters())


def shares(
    sequences: list[LiveSequence], budget: int, now_us: int = 0, *, order: PromptOrder | None = None
) -> dict[str, int]:
    """Without an `order`: of one that knows no costs yet."""
    order = order or PromptOrder(CostModel(512), ServiceCounters())
    return {sequence.key: tokens for sequence, tokens in order.share_chunk(sequences, budget, now_us)}


def test_priority_comes_before_deadline_and_deadline_before_admission() -> None:
    low = waiting("a", 1, priority=2, deadline_us=1)
    late = waiting("b", 1)
    urgent = waiting("c", 1, deadline_us=10)
    later_admitted = waiting("d", 1)
    high = waiting("e", 1, priority=0)
    ordered = sorted(
        [low, late, urgent, later_admitted, high], key=lambda sequence: precedence(sequence, 0, NOBODY)
    )
    assert [sequence.key for sequence in ordered] == ["e", "c", "b", "d", "a"]


def test_a_waiting_sequence_rises_by_a_class_at_a_time() -> None:
    low = waiting("a", 1, priority=2)
    assert [class_at(low, times * AGING_US) for times in (0, 1, 2, 3)] == [2, 1, 0, 0]
    assert class_at(low, AGING_US - 1) == 2


def test_low_class_and_late_deadline_give_way_first() -> None:
    sequences = [waiting("a", 1, priority=0), waiting("b", 1, deadline_us=5), waiting("c", 1)]
    assert max(sequences, key=first_to_go).key == "c"
    assert max([*sequences, waiting("d", 1, priority=2, deadline_us=0)], key=first_to_go).key == "d"


def test_a_lone_prompt_gets_the_whole_chunk() -> None:
    assert shares([waiting("a", 1000)], 512) == {"a": 512}
    assert shares([waiting("a", 100)], 512) == {"a": 100}
    assert shares([waiting("a", 100)], 0) == {}


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    assert shares([waiting("a", 8000), waiting("b", 60)], 512) == {"a": 452, "b": 60}


def test_prompts_that_come_at_once_are_computed_one_after_another() -> None:
    order = order_at(step_us=4000, token_us=400)
    eight = [waiting(key, 256) for key in "abcdefgh"]
    assert shares(eight, 512, order=order) == {"a": 256}
    assert shares(eight[1:], 512, order=order) == {"b": 256}


def test_short_prompts_share_a_step_that_costs_more_than_they_do() -> None:
    """With `n` in it and the rest behind, another one costs n * 6.4 ms and saves that many times 4 ms."""
    order = order_at(step_us=4000, token_us=400)
    assert shares([waiting(key, 16) for key in "abcdefgh"], 512, order=order) == dict.fromkeys("abcd", 16)


def test_no_step_that_a_prompt_ends_in_begins_a_long_one() -> None:
    order = order_at(step_us=4000, token_us=1)
    assert shares([waiting("a", 256), waiting("b", 2000)], 512, order=order) == {"a": 256}


def test_a_prompt_that_does_not_end_in_the_step_is_waited_for_by_nobody() -> None:
    order = order_at(step_us=4000, token_us=400)
    assert shares([waiting("a", 600), waiting("b", 600)], 512, order=order) == {"a": 512}


def test_of_equally_long_prompts_the_earliest_deadline_goes_first() -> None:
    order = order_at(step_us=4000, token_us=400)
    late, urgent = waiting("a", 256), waiting("b", 256, deadline_us=10)
    assert shares([late, urgent], 512, order=order) == {"b": 256}


def test_a_first_token_that_is_due_counts_before_the_deadline_of_all() -> None:
    late, early = waiting("a", 100), waiting("b", 100, due_us=5.0)
    assert shares([late, early], 100) == {"b": 100}


def test_a_long_prompt_ends_although_short_ones_that_are_due_earlier_keep_coming() -> None:
    order, long = PromptOrder(CostModel(512), ServiceCounters()), waiting("z", 2000, due_us=60e6)
    now_us = came = 0
    while long.num_uncomputed:
        short = waiting("a", 90, order=came, waiting_since_us=now_us, due_us=now_us + 500_000)
        for sequence, tokens in order.share_chunk([short, long], 100, now_us):
            sequence.num_computed += tokens
            sequence.waiting_since_us = now_us
        now_us += 20_000
        came += 1
        assert now_us < 60e6


def test_a_long_prompt_gets_as_much_as_the_short_ones_that_come_after_it() -> None:
    """However many of them come: each goes first until it had as much as the long one."""
    order, long = order_at(step_us=4000, token_us=400), waiting("a", 8000)
    computed = {"a": 0, "b": 0}
    for _ in range(40):
        for key, tokens in shares([long, waiting("b", 200)], 512, order=order).items():
            computed[key] += tokens
    assert abs(computed["a"] - computed["b"]) <= 512


def test_a_short_prompt_waits_for_no_more_than_a_chunk_of_a_long_one() -> None:
    order, long = order_at(step_us=4000, token_us=400), waiting("a", 8000)
    assert shares([long], 512, order=order) == {"a": 512}
    assert shares([long, waiting("b", 60)], 512, order=order) == {"b": 60}


def test_what_a_prompt_leaves_goes_by_rank_while_costs_are_unknown() -> None:
    assert shares([waiting("a", 100), waiting("b", 8000), waiting("c", 9000)], 512) == {"a": 100, "b": 412}


def named(key: str, blocks: str, **fields: Any) -> LiveSequence:
    """A prompt of these blocks, each named by itself and all before it, and one token behind them."""
    sequence = waiting(key, 16 * len(blocks) + 1, **fields)
    sequence.num_scored = sequence.prompt_len
    sequence.chain.hashes += [blocks[: place + 1].encode() for place in range(len(blocks))]
    return sequence


def test_what_prompts_begin_with_alike_is_computed_by_the_first_alone() -> None:
    assert shares([named("a", "xxyy"), named("b", "xxyy"), named("c", "xxzzz")], 64) == {"a": 64}


def test_prompts_that_part_at_their_next_block_are_computed_side_by_side() -> None:
    both = [named("a", "xxyy", num_computed=32), named("b", "xxz", num_computed=32)]
    assert shares(both, 512) == {"a": 33, "b": 17}


def test_a_lower_class_gets_only_what_is_left() -> None:
    high, low = waiting("a", 8000, priority=0), waiting("b", 10, priority=2)
    assert shares([high, low], 512) == {"a": 512}
    high.tokens = [0] * 500
    assert shares([high, low], 512) == {"a": 500, "b": 10}


def test_no_class_starves_under_endless_work_of_a_higher_one() -> None:
    """A low prompt among high ones that never end, and that always bring earlier deadlines than it has."""
    low = waiting("z", 64, priority=2, deadline_us=PATIENCE_US)
    order, now_us, arrived = PromptOrder(CostModel(512), ServiceCounters()), 0, 0
    while low.num_uncomputed:
        high = [
            waiting("a", 8000, order=arrived, priority=0, waiting_since_us=now_us, deadline_us=now_us + 1000)
        ]
        for sequence, tokens in order.share_chunk([*high, low], 128, now_us):
            sequence.num_computed += tokens
            sequence.waiting_since_us = now_us
        now_us += 50_000
        arrived += 1
        assert now_us <= PATIENCE_US + 5 * AGING_US
    assert now_us >= 2 * AGING_US


@pytest.mark.parametrize("budget", [1, 2, 7, 512])
def test_shares_never_exceed_the_chunk_or_the_prompt(budget: int) -> None:
    many = [waiting(key, remaining) for key, remaining in zip("abcd", (5, 300, 1, 900), strict=True)]
    given = PromptOrder(CostModel(512), ServiceCounters()).share_chunk(many, budget, 0)
    assert sum(tokens for _, tokens in given) == min(budget, 1206)
    assert all(0 < tokens <= sequence.num_uncomputed for sequence, tokens in given)


A, B = TenantShare("a"), TenantShare("b")


def counters_of(a: float, b: float) -> ServiceCounters:
    """Return the service that two tenants have had."""
    counters = ServiceCounters()
    for share in (A, B):
        counters.join(share.tenant)
    counters.charge(A, a)
    counters.charge(B, b)
    return counters


def test_the_tenant_with_the_least_service_goes_first_whatever_the_other_says_of_itself() -> None:
    urgent = waiting("a", 1, share=A, priority=0, deadline_us=1)
    patient = waiting("b", 1, share=B, priority=2, waiting_since_us=9 * AGING_US)
    for counters, first in ((counters_of(9, 5), "b"), (counters_of(5, 9), "a")):
        ordered = sorted([urgent, patient], key=lambda each: precedence(each, 9 * AGING_US, counters))
        assert ordered[0].key == first


def test_the_tenant_that_has_had_most_gives_way_and_of_its_own_the_lowest_class() -> None:
    sequences = [
        waiting("a", 1, share=A, priority=0),
        waiting("b", 1, share=A, priority=1, deadline_us=1),
        waiting("c", 1, share=B, priority=2, times_preempted=0),
    ]
    rich = counters_of(9, 5)
    assert max(sequences, key=lambda each: keeps_blocks(each, rich)).key == "b"
    rich = counters_of(5, 9)
    assert max(sequences, key=lambda each: keeps_blocks(each, rich)).key == "c"


def test_a_short_prompt_of_another_tenant_has_no_turn_before_one_that_has_had_less() -> None:
    order = PromptOrder(CostModel(512), counters_of(5, 9))
    long, short = waiting("a", 8000, share=A), waiting("b", 60, share=B)
    assert shares([long, short], 512, order=order) == {"a": 512}
    order = PromptOrder(CostModel(512), counters_of(9, 5))
    assert shares([long, short], 512, order=order) == {"b": 60, "a": 452}
