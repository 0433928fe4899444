"""How many of the drafts that were offered are verified."""

from __future__ import annotations

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.offered_drafts import UNKNOWN_TOKENS, OfferedDrafts
from shared.engine.scheduling.probes import FIRST_SAVED, FIRST_TRIES, MOST_SAVED, SAVED_SHARE
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus

DRAFT = (7,) * 8
CHEAP = DraftPrices(10_000.0, 10_000.0, 0.05, 0.0)
DEAR = DraftPrices(10_000.0, 1_250.0, 0.7, 0.0)  # of eight sequences
USELESS = DraftPrices(10_000.0, 312.0, HIGHEST_PRICE, 0.0)


def decoding(key: str = "a") -> LiveSequence:
    chain = HashChain([], None, BlockHasher())
    return LiveSequence(key, 1, [1, 2, 3], 1, SamplingParams(), SequenceStatus.ACTIVE, chain)


def chosen(
    offered: OfferedDrafts, prices: DraftPrices | None, sequence: LiveSequence, *, most: int = 100
) -> int:
    offered.begin_step()
    sequence.drafts = DRAFT
    return len(offered.choose(sequence, most, prices))


def proven() -> OfferedDrafts:
    """Return offers that have been right, of others."""
    offered = OfferedDrafts()
    play(offered, decoding("proven"), [8] * 60, CHEAP)
    return offered


def play(offered: OfferedDrafts, sequence: LiveSequence, accepted: list[int], prices: DraftPrices) -> int:
    """Return how many rows were verified in vain, in steps of which each draft had so many right ones."""
    in_vain = 0
    for right in accepted:
        count = chosen(offered, prices, sequence)
        if count:
            offered.judge(sequence.key, count, min(right, count))
            in_vain += count - min(right, count)
    return in_vain


def test_a_drafter_of_which_nothing_is_known_is_tried_with_one_token_before_it_is_bet_on() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    assert chosen(offered, CHEAP, sequence) == 1
    offered.judge("a", 1, 1)
    assert chosen(offered, CHEAP, sequence) > 2


def test_no_more_than_a_few_are_verified_in_all_before_it_is_known_what_that_costs() -> None:
    offered = OfferedDrafts()
    assert [chosen(offered, None, decoding(key), most=5) for key in "abc"] == [5, UNKNOWN_TOKENS - 5, 0]
    assert chosen(offered, CHEAP, decoding("c")) > 0


def test_what_one_sequence_has_shown_counts_for_those_that_were_there_before() -> None:
    offered, waiting = OfferedDrafts(), decoding("waiting")
    assert (
        sum(chosen(offered, USELESS, decoding(f"s{number}")) for number in range(FIRST_TRIES)) == FIRST_TRIES
    )
    assert chosen(offered, USELESS, waiting) == 0
    play(offered, decoding("a"), [8] * 20, CHEAP)
    assert chosen(offered, CHEAP, waiting) == 8


def test_drafts_that_are_right_are_verified_whole() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [8] * 20, CHEAP)
    assert chosen(offered, CHEAP, sequence) == 8
    assert chosen(offered, DEAR, sequence) == 8


def test_at_most_what_there_is_room_for_is_taken_and_an_offer_is_taken_once() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    assert chosen(offered, None, sequence, most=3) == 3
    assert chosen(offered, None, sequence, most=-1) == 0
    assert offered.choose(sequence, 8, None) == ()


def test_the_same_draft_is_cut_shorter_in_a_larger_batch() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [4, 8] * 40, CHEAP)
    alone, beside = chosen(offered, CHEAP, sequence), chosen(offered, DEAR, sequence)
    assert alone > beside > 0


def test_where_rows_are_believed_to_cost_too_much_one_is_verified_now_and_then_to_see_whether_they_do() -> (
    None
):
    offered = proven()
    verified = [chosen(offered, USELESS, decoding(f"s{number}")) for number in range(3000)]
    tries = sum(verified)
    assert max(verified) == 1
    assert (
        0
        < tries * USELESS.row * USELESS.share_us / USELESS.step_us
        <= 3000 * SAVED_SHARE + MOST_SAVED + FIRST_SAVED
    )


def test_sequences_that_are_short_lived_find_out_together_that_drafts_have_become_right() -> None:
    offered = OfferedDrafts()
    for number in range(20):
        play(offered, decoding(f"wrong{number}"), [0] * 12, CHEAP)
    for number in range(20):
        sequence = decoding(f"right{number}")
        play(offered, sequence, [8] * 12, CHEAP)
        offered.forget(sequence.key)
    assert chosen(offered, CHEAP, decoding("new")) == 8


def test_a_drafter_that_is_seldom_asked_has_its_answer_verified() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [0] * 60, CHEAP)
    for _ in range(200):
        offered.begin_step()
    assert chosen(offered, CHEAP, sequence) == 1


def test_keys_that_a_row_reads_are_in_its_price() -> None:
    prices = DraftPrices(10_000.0, 10_000.0, 0.05, 0.0003)
    near, far = decoding("a"), decoding("b")
    far.num_computed = 4000
    offered = proven()
    assert chosen(offered, prices, near) > chosen(offered, prices, far)


@pytest.mark.parametrize("steps", [80, 800])
def test_a_useless_drafter_costs_a_small_part_of_all_steps(steps: int) -> None:
    offered, sequence = OfferedDrafts(), decoding()
    assert play(offered, sequence, [0] * steps, CHEAP) * CHEAP.row <= steps * SAVED_SHARE + FIRST_SAVED


def test_a_drafter_that_begins_to_lie_is_known_within_some_steps() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [8] * 50, CHEAP)
    assert play(offered, sequence, [0] * 100, CHEAP) * CHEAP.row < 8  # steps; 400 were saved before


def test_a_drafter_that_is_of_use_again_is_found_out() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [0] * 60, CHEAP)
    play(offered, sequence, [8] * 100, CHEAP)
    assert chosen(offered, CHEAP, sequence) == 8


def test_who_comes_begins_with_what_the_last_ones_have_seen() -> None:
    offered = proven()
    assert chosen(offered, CHEAP, decoding("first")) == 8
    for number in range(10):
        play(offered, decoding(f"s{number}"), [0] * 12, CHEAP)
    assert chosen(offered, CHEAP, decoding("new")) <= 1


def test_a_sequence_whose_text_has_changed_begins_anew() -> None:
    offered, sequence = proven(), decoding()
    play(offered, sequence, [0] * 40, CHEAP)
    assert chosen(offered, CHEAP, sequence) <= 1
    play(offered, decoding("other"), [8] * 40, CHEAP)
    offered.forget(sequence.key)
    assert chosen(offered, CHEAP, sequence) > 1
