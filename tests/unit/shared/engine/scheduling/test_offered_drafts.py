"""How many of the drafts that were offered are verified."""

from __future__ import annotations

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.offered_drafts import OfferedDrafts
from shared.engine.scheduling.probes import FIRST_AFTER
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


def play(offered: OfferedDrafts, sequence: LiveSequence, accepted: list[int], prices: DraftPrices) -> int:
    """Return how many rows were verified in vain, in steps of which each draft had so many right ones."""
    in_vain = 0
    for right in accepted:
        count = chosen(offered, prices, sequence)
        if count:
            offered.judge(sequence.key, count, min(right, count))
            in_vain += count - min(right, count)
    return in_vain


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


def test_the_same_draft_is_cut_shorter_in_a_larger_batch_and_left_out_where_nothing_can_be_won() -> None:
    offered = OfferedDrafts()
    alone, beside = chosen(offered, CHEAP, decoding("a")), chosen(offered, DEAR, decoding("b"))
    assert alone > beside
    sequence = decoding("c")
    assert all(chosen(offered, USELESS, sequence) == 0 for _ in range(FIRST_AFTER - 3))


def test_where_rows_are_believed_to_cost_too_much_one_is_verified_now_and_then_to_see_whether_they_do() -> (
    None
):
    offered, sequence = OfferedDrafts(), decoding()
    verified = [chosen(offered, USELESS, sequence) for _ in range(7 * FIRST_AFTER)]
    assert [step for step, each in enumerate(verified, 1) if each] == [
        FIRST_AFTER,
        3 * FIRST_AFTER,
        7 * FIRST_AFTER,
    ]
    assert max(verified) == 1


def test_sequences_that_are_short_lived_find_out_together_that_drafts_have_become_right() -> None:
    offered = OfferedDrafts()
    for number in range(20):
        play(offered, decoding(f"wrong{number}"), [0] * 12, CHEAP)
    for number in range(2 * FIRST_AFTER):
        sequence = decoding(f"right{number}")
        play(offered, sequence, [8] * 40, CHEAP)
        offered.forget(sequence.key)
    assert chosen(offered, CHEAP, decoding("new")) == 8


def test_a_drafter_that_is_seldom_asked_has_its_answer_verified() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [0] * FIRST_AFTER, CHEAP)
    for _ in range(4 * FIRST_AFTER):
        offered.begin_step()
    assert chosen(offered, CHEAP, sequence) == 1


def test_keys_that_a_row_reads_are_in_its_price() -> None:
    prices = DraftPrices(10_000.0, 10_000.0, 0.05, 0.0001)
    near, far = decoding("a"), decoding("b")
    far.num_computed = 4000
    offered = OfferedDrafts()
    assert chosen(offered, prices, near) > chosen(offered, prices, far)


def test_a_useless_drafter_costs_little_at_first_and_then_one_row_at_a_time_ever_more_rarely() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    assert play(offered, sequence, [0] * 40, CHEAP) < 60
    assert play(offered, sequence, [0] * 15 * FIRST_AFTER, CHEAP) <= 4


def test_a_drafter_that_begins_to_lie_is_known_within_some_steps() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [8] * 50, CHEAP)
    assert play(offered, sequence, [0] * 100, CHEAP) * CHEAP.row < 8  # steps; 400 were saved before


def test_a_drafter_that_is_of_use_again_is_found_out() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [0] * 60, CHEAP)
    play(offered, sequence, [8] * 4 * FIRST_AFTER, CHEAP)
    assert chosen(offered, CHEAP, sequence) == 8


def test_who_comes_begins_with_what_the_last_ones_have_seen() -> None:
    offered = OfferedDrafts()
    at_first = chosen(offered, CHEAP, decoding("first"))
    for number in range(10):
        play(offered, decoding(f"s{number}"), [0] * 12, CHEAP)
    assert chosen(offered, CHEAP, decoding("new")) <= 1 < at_first


def test_a_sequence_whose_text_has_changed_begins_anew() -> None:
    offered, sequence = OfferedDrafts(), decoding()
    play(offered, sequence, [0] * 20, CHEAP)
    assert chosen(offered, CHEAP, sequence) == 0
    offered.forget(sequence.key)
    assert chosen(offered, CHEAP, sequence) > 0
