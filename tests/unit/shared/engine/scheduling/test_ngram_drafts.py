"""When a sequence is drafted for from its own text, and by how much."""

from __future__ import annotations

import itertools

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.cost_model import CostModel, Features
from shared.engine.scheduling.draft_prices import LOWEST_PRICE, DraftPrices
from shared.engine.scheduling.ngram_drafts import (
    INDEXED_PER_STEP_US,
    LEAST_SHARE_US,
    NgramDrafts,
)
from shared.engine.scheduling.ngram_index import NO_GUESS
from shared.engine.scheduling.probes import SAVED_SHARE
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from tests.support.known_cost import KnownCost

LOOP = [9, 8, 7, 6, 5, 4, 3, 2] * 4  # behind it everything goes on as before
PAIR = [1, 2, 3, 9, 8, 1, 2]  # two tokens are like two before


ONCE = [*range(20, 60)]  # nothing of it comes twice


def decoding(tokens: list[int], key: str = "a", scope: str = "") -> LiveSequence:
    chain = HashChain([], None, BlockHasher())
    sequence = LiveSequence(key, 1, list(tokens), 1, SamplingParams(), SequenceStatus.ACTIVE, chain)
    sequence.num_computed = len(tokens) - 1
    sequence.answer_scope = scope
    return sequence


def cost_of(step_us: float, row_us: float) -> CostModel:
    """As learned from steps that took `step_us` and `row_us` for every row."""
    cost = CostModel(512)
    for tokens, sequences in itertools.islice(itertools.cycle([(1, 1), (5, 1), (8, 8), (40, 8)]), 64):
        cost.observe(Features(tokens, sequences, 0), step_us + row_us * tokens)
    return cost


def begun(
    cost: CostModel, *, longest: int = 8, batch_tokens: int = 32, rows: int = 1, scopes: int = 0
) -> NgramDrafts:
    lookups = NgramDrafts(longest, batch_tokens, scopes)
    assert lookups.begin_step(DraftPrices.of(cost, Features(rows, rows, 0)))
    return lookups


CHEAP_ROWS = cost_of(10_000, 100)
DEAR_ROWS = cost_of(10_000, 4_000)


def test_a_text_that_repeats_itself_is_drafted_from() -> None:
    drafts = begun(CHEAP_ROWS).draft(decoding(LOOP), 8)
    assert drafts.token_ids == (9, 8, 7, 6, 5, 4, 3, 2)


def test_no_more_is_drafted_than_is_asked_for_or_configured() -> None:
    assert len(begun(CHEAP_ROWS).draft(decoding(LOOP), 3).token_ids) == 3
    assert len(begun(CHEAP_ROWS, longest=2).draft(decoding(LOOP), 8).token_ids) == 2
    assert begun(CHEAP_ROWS).draft(decoding(LOOP), 0) == NO_GUESS


def test_all_sequences_of_a_step_share_its_limit() -> None:
    lookups = begun(CHEAP_ROWS, batch_tokens=10, rows=2)
    assert len(lookups.draft(decoding(LOOP, "a"), 8).token_ids) == 8
    assert len(lookups.draft(decoding(LOOP, "b"), 8).token_ids) == 2
    assert lookups.draft(decoding(LOOP, "c"), 8) == NO_GUESS


def test_a_short_match_is_not_drafted_from_before_it_has_shown_to_pay() -> None:
    lookups = begun(DEAR_ROWS)
    assert lookups.draft(decoding(PAIR), 8) == NO_GUESS
    assert len(begun(DEAR_ROWS).draft(decoding(LOOP), 8).token_ids) < 8
    for _ in range(30):
        lookups.judge("a", 2, 1, 1)
    assert lookups.draft(decoding(PAIR), 8).token_ids == (3, 9)


def test_wrong_drafts_end_drafting_and_after_a_while_one_token_is_tried_again() -> None:
    lookups, sequence = begun(CHEAP_ROWS, batch_tokens=1 << 16), decoding(LOOP)

    def verified_in(steps: int) -> list[int]:
        found = []
        for _ in range(steps):
            lookups.begin_step(DraftPrices.of(CHEAP_ROWS, Features(1, 1, 0)))
            guess = lookups.draft(sequence, 8)
            found.append(len(guess.token_ids))
            lookups.judge("a", guess.match_tokens, len(guess.token_ids), 0)
        return found

    verified_in(60)
    left = verified_in(3000)
    assert set(left) == {0, 1}
    assert 10 < left.count(1) < 3000 * SAVED_SHARE / LOWEST_PRICE


def test_one_sequence_says_nothing_about_another() -> None:
    lookups = begun(CHEAP_ROWS, batch_tokens=1 << 16)
    for _ in range(60):
        lookups.draft(decoding(LOOP), 8)
        lookups.judge("a", 8, 8, 0)
    assert lookups.draft(decoding(LOOP, "a"), 8) == NO_GUESS
    assert len(lookups.draft(decoding(LOOP, "b"), 8).token_ids) == 8


def test_a_sequence_that_is_gone_is_forgotten() -> None:
    lookups = begun(CHEAP_ROWS)
    lookups.draft(decoding(LOOP), 8)
    lookups.forget("a")
    assert lookups.draft(decoding(PAIR), 8).token_ids[:1] == (3,)


def test_where_a_row_costs_what_a_token_saves_nobody_looks() -> None:
    full = Features(8, 8, 0)
    assert NgramDrafts(8, 32).begin_step(DraftPrices.of(CHEAP_ROWS, full))
    assert not NgramDrafts(8, 32).begin_step(DraftPrices.of(cost_of(1_000, 5_000), full))


def test_where_steps_are_too_short_for_looking_nobody_looks() -> None:
    def looks(share_us: int) -> bool:
        return NgramDrafts(8, 32).begin_step(DraftPrices.of(KnownCost(share_us - 10, 10), Features(1, 1, 0)))

    assert looks(LEAST_SHARE_US)
    assert not looks(LEAST_SHARE_US - 1)


def test_a_row_that_was_never_seen_beside_its_sequence_costs_what_the_two_cost_together() -> None:
    lookups = NgramDrafts(8, 32)
    assert lookups.begin_step(DraftPrices.of(KnownCost(1_000, 0, sequence_us=500), Features(1, 1, 0)))
    assert len(lookups.draft(decoding(LOOP), 8).token_ids) == 4  # 0.8 ** 4 is more than 500 / 1500
    assert not lookups.begin_step(DraftPrices.of(KnownCost(1_000, 0, sequence_us=30_000), Features(1, 1, 0)))


def test_while_it_is_not_known_what_a_row_costs_nobody_looks() -> None:
    assert not NgramDrafts(8, 32).begin_step(DraftPrices.of(CostModel(512), Features(1, 1, 0)))


def test_nobody_looks_where_nothing_may_be_drafted_or_nobody_decodes() -> None:
    assert not NgramDrafts(0, 32).begin_step(DraftPrices.of(CHEAP_ROWS, Features(1, 1, 0)))
    assert not NgramDrafts(8, 32).begin_step(DraftPrices.of(CHEAP_ROWS, Features(0, 0, 0)))


def test_a_long_prompt_is_taken_in_over_several_steps() -> None:
    lookups = NgramDrafts(8, 32)
    tokens = [*range(10, 4010), *range(10, 30)]
    sequence, steps = decoding(tokens), 0
    while True:
        steps += 1
        assert lookups.begin_step(DraftPrices.of(CHEAP_ROWS, Features(1, 1, 0)))
        if lookups.draft(sequence, 1).token_ids == (30,):
            break
    per_step = 10_100 * INDEXED_PER_STEP_US
    assert steps == 1  # the first of it is there at once
    assert lookups._rows["a"].lookup.num_indexed - 1 <= per_step
    while lookups._rows["a"].lookup.num_indexed < len(tokens):
        steps += 1
        assert lookups.begin_step(DraftPrices.of(CHEAP_ROWS, Features(1, 1, 0)))
        lookups.draft(sequence, 1)
    assert steps >= len(tokens) / per_step


def after_an_answer(tokens: list[int], scope: str = "acme") -> NgramDrafts:
    """Drafts behind a sequence that has ended with `tokens`."""
    lookups = begun(CHEAP_ROWS, batch_tokens=1 << 16, scopes=4)
    lookups.end(decoding(tokens, "before", scope))
    return lookups


def test_an_earlier_answer_of_the_same_scope_is_drafted_from() -> None:
    drafts = after_an_answer(ONCE).draft(decoding([1, *ONCE[5:15]], scope="acme"), 4)
    assert drafts.token_ids == tuple(ONCE[15:19])


def test_an_answer_of_another_scope_or_of_none_is_not() -> None:
    sequence = decoding([1, *ONCE[5:15]], scope="acme")
    assert after_an_answer(ONCE, "other").draft(sequence, 4) == NO_GUESS
    assert after_an_answer(ONCE, "").draft(sequence, 4) == NO_GUESS
    assert after_an_answer(ONCE, "").draft(decoding([1, *ONCE[5:15]]), 4) == NO_GUESS


def test_the_text_whose_match_promises_more_is_drafted_from() -> None:
    lookups = after_an_answer([*ONCE, 21, 22, 23, 1, 2, 88, 89])
    own = [1, 2, 77, 78, 79, 21, 22, 23, 1, 2]
    assert lookups.draft(decoding(own, scope="acme"), 1).token_ids == (88,)
    repeating = [*ONCE[:10], 77, *ONCE[:10]]
    assert lookups.draft(decoding(repeating, "b", "acme"), 1).token_ids == (77,)


def test_what_came_of_a_draft_is_learned_of_the_text_that_it_was_from() -> None:
    lookups = after_an_answer(ONCE)
    sequence = decoding([1, *ONCE[5:15]], scope="acme")
    for _ in range(60):
        guess = lookups.draft(sequence, 4)
        lookups.judge("a", guess.match_tokens, len(guess.token_ids), 0)
    assert lookups.draft(decoding([1, *ONCE[5:15]], "b", "acme"), 4) == NO_GUESS
    assert len(lookups.draft(decoding(LOOP, "c", "acme"), 4).token_ids) == 4
