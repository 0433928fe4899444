from __future__ import annotations

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.scheduling.draft_choice import drafts_that_pay, forgive_drafts, judge_drafts
from shared.engine.sequence import STARTING_ACCEPTANCE, HashChain, LiveSequence, SequenceStatus


def decoding(acceptance: float = STARTING_ACCEPTANCE, drafts: int = 10) -> LiveSequence:
    sequence = LiveSequence(
        "a", 1, [1], 1, SamplingParams(), SequenceStatus.ACTIVE, HashChain([], None, BlockHasher())
    )
    sequence.acceptance = acceptance
    sequence.drafts = (1,) * drafts
    return sequence


def test_drafts_are_cut_where_a_right_one_saves_less_than_its_row_costs() -> None:
    # 0.5 ** j * 1000 us >= 100 us for j <= 3
    assert drafts_that_pay(decoding(0.5), row_us=100, step_us=1000, num_decoding=1) == 3
    assert drafts_that_pay(decoding(0.9), row_us=100, step_us=1000, num_decoding=1) == 21
    assert drafts_that_pay(decoding(0.01), row_us=100, step_us=1000, num_decoding=1) == 0


def test_in_a_large_batch_a_saved_token_is_worth_a_share_of_the_step() -> None:
    assert drafts_that_pay(decoding(0.5), row_us=100, step_us=1600, num_decoding=4) == 2
    assert drafts_that_pay(decoding(0.5), row_us=100, step_us=1600, num_decoding=16) == 0


@pytest.mark.parametrize(("row_us", "step_us"), [(0, 1000), (0, 0)])
def test_rows_that_cost_nothing_always_pay(row_us: float, step_us: float) -> None:
    assert drafts_that_pay(decoding(), row_us, step_us, num_decoding=8) == 10


def test_right_drafts_make_sure_and_wrong_ones_unsure() -> None:
    sure, unsure = decoding(), decoding()
    for _ in range(20):
        judge_drafts(sure, 4, 4)
        judge_drafts(unsure, 4, 0)
    assert sure.acceptance > 0.99
    assert unsure.acceptance < 0.1


def test_drafts_after_the_first_wrong_one_say_nothing() -> None:
    short, long = decoding(), decoding()
    judge_drafts(short, 2, 1)
    judge_drafts(long, 60, 1)
    assert short.acceptance == long.acceptance
    judge_drafts(short, 0, 0)
    assert short.acceptance == long.acceptance


def test_a_sequence_whose_drafts_are_left_out_gets_another_chance() -> None:
    sequence = decoding(0.0)
    for _ in range(200):
        forgive_drafts(sequence)
    assert sequence.acceptance == pytest.approx(STARTING_ACCEPTANCE, rel=0.05)
