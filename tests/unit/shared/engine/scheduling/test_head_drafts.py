"""When a head is asked for drafts, and how much of them is verified."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shared.blocks.block_hash import BlockHasher
from shared.engine import SamplingParams
from shared.engine.scheduling.draft_prices import DraftPrices
from shared.engine.scheduling.head_drafts import (
    HEAD_TOKENS,
    LEAST_SHARE_US,
    REST_STEPS,
    TRIED_TOGETHER,
    HeadDrafts,
    HeadWish,
)
from shared.engine.scheduling.head_model import CONFIDENCE_BINS, DraftRequest, HeadDraft, TapRows
from shared.engine.scheduling.probes import FIRST_SAVED, SAVED_SHARE
from shared.engine.sequence import HashChain, LiveSequence, SequenceStatus
from tests.support.clock import FakeClock

WIDTH = 6
CHEAP = DraftPrices(10_000.0, 10_000.0, 0.1, 0.0)
DEAR = DraftPrices(10_000.0, 10_000.0, 0.96, 0.0)
SHARED = DraftPrices(40_000.0, 10_000.0, 0.1, 0.0)  # by four sequences


class PlayedHead:
    """Says the same of every token; to read its weights takes `token_us` for all rows together, and each row
    `row_us`. It knows whom it was asked for."""

    def __init__(
        self, clock: FakeClock, confidence: float = 0.9, token_us: int = 500, row_us: int = 0
    ) -> None:
        self.asked: list[DraftRequest] = []
        self.taps: list[list[float]] = []
        self._clock = clock
        self._confidence = confidence
        self.token_us = token_us
        self._row_us = row_us

    @property
    def tap_width(self) -> int:
        return WIDTH

    def draft(
        self, taps: TapRows, requests: Sequence[DraftRequest], chances: Sequence[float]
    ) -> list[HeadDraft]:
        assert len(chances) == CONFIDENCE_BINS
        self.asked += requests
        self.taps += [taps[each.slot].tolist() for each in requests]
        lengths = [each.length for each in requests]
        self._clock.advance((max(lengths) * self.token_us + sum(lengths) * self._row_us) / 1e6)
        return [
            HeadDraft(tuple(range(each.length)), (self._confidence,) * each.length, each.length)
            for each in requests
        ]


def decoding(key: str = "a", num_tokens: int = 10) -> LiveSequence:
    chain = HashChain([], None, BlockHasher())
    tokens = list(range(num_tokens))
    sequence = LiveSequence(key, 1, tokens, 1, SamplingParams(), SequenceStatus.ACTIVE, chain)
    sequence.num_computed = num_tokens - 1
    return sequence


class Asked:
    """A head's drafts for sequences whose hidden states are known."""

    def __init__(self, *sequences: LiveSequence, room: int = 32, **head: float) -> None:
        self.clock = FakeClock()
        self.head = PlayedHead(self.clock, **head)  # type: ignore[arg-type]  # its own numbers
        self.drafts = HeadDrafts(self.head, 4, room, now_ns=lambda: round(1e9 * self.clock.monotonic_s()))
        self.sequences = sequences
        self.keep()

    def keep(self) -> None:
        taps = np.arange(WIDTH * len(self.sequences), dtype=np.float32).reshape(-1, WIDTH)
        self.drafts.keep([(each, place) for place, each in enumerate(self.sequences)], taps)

    def step(self, *, right: str, gain: float = 0.0, prices: DraftPrices = CHEAP) -> list[int]:
        """Plan a step, and verify what is drafted, which is right for those that `right` names; returns how
        long the drafts are."""
        if not self.drafts.begin_step(prices):
            return [0] * len(self.sequences)
        requests = self.drafts.requests([HeadWish(each, 8, gain) for each in self.sequences])
        asked = [
            (each, request)
            for each, request in zip(self.sequences, requests, strict=True)
            if request is not None
        ]
        lengths = dict.fromkeys((each.key for each in self.sequences), 0)
        for (each, _), offer in zip(asked, self.drafts.ask(asked) if asked else [], strict=True):
            lengths[each.key] = len(offer.token_ids)
            if offer.token_ids:
                self.drafts.judge(each.key, offer.confidences, len(offer.token_ids) * (each.key in right))
        return list(lengths.values())


def proven(*sequences: LiveSequence, room: int = 32) -> Asked:
    """Return a head that has been right for them, and is trusted."""
    asked = Asked(*sequences, room=room)
    for _ in range(30):
        asked.step(right="abcde")
    asked.head.asked.clear()
    asked.head.taps.clear()
    return asked


def test_a_sequence_is_drafted_for_from_its_last_hidden_states() -> None:
    asked = proven(decoding("a"), decoding("b", 20))
    assert min(asked.step(right="abcde")) > 2
    assert asked.head.taps == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert [(each.token_id, each.position) for each in asked.head.asked] == [(9, 10), (19, 20)]


def test_a_head_of_which_nothing_is_known_is_tried_one_token_at_a_time_before_it_is_trusted() -> None:
    asked = Asked(decoding())
    lengths = [asked.step(right="abcde")[0] for _ in range(20)]
    assert lengths[0] == 1
    assert lengths[-1] == HEAD_TOKENS


def test_without_hidden_states_of_the_last_token_a_head_is_not_asked() -> None:
    asked = Asked(decoding())
    asked.sequences[0].tokens.append(5)
    assert asked.step(right="abcde") == [0]
    asked.keep()
    assert asked.step(right="abcde") != [0]
    asked.drafts.forget("a")
    assert asked.step(right="abcde") == [0]


def test_there_is_room_for_as_many_sequences_as_may_be_held() -> None:
    asked = Asked(*(decoding(key) for key in "abcde"))
    assert [asked.step(right="abcde") for _ in range(20)][-1][4] == 0
    asked.drafts.forget("a")
    asked.sequences = asked.sequences[1:]
    asked.keep()
    assert asked.step(right="abcde")[3] > 0


def test_no_more_is_drafted_than_a_step_has_room_for() -> None:
    assert sum(proven(*(decoding(key) for key in "abc"), room=5).step(right="abcde")) == 5


def test_a_token_is_verified_where_it_is_right_more_often_than_it_costs() -> None:
    asked = Asked(decoding(), confidence=0.9)
    for number in range(200):  # a token is right every other time
        asked.drafts.begin_step(CHEAP)
        (request,) = asked.drafts.requests([HeadWish(asked.sequences[0], 8, 0.0)])
        if request is not None:
            (offer,) = asked.drafts.ask([(asked.sequences[0], request)])
            if offer.token_ids:
                accepted = (number % 2) * (1 + number // 2 % 2)
                asked.drafts.judge("a", offer.confidences, min(accepted, len(offer.token_ids)))
    assert 1 < len(offer.token_ids) < 6  # 0.5 ** 4 is less than a tenth


def test_nobody_asks_where_tokens_are_dear_or_steps_are_short() -> None:
    asked = Asked(decoding())
    assert not asked.drafts.begin_step(DEAR)
    assert not asked.drafts.begin_step(DraftPrices(10.0, LEAST_SHARE_US - 1, 0.1, 0.0))
    assert not asked.drafts.begin_step(None)
    asked.drafts.longest = 0
    assert not asked.drafts.begin_step(CHEAP)


def test_nobody_asks_where_text_promises_more() -> None:
    asked = proven(decoding())
    assert asked.step(right="abcde", gain=7.5) == [0]
    assert asked.step(right="abcde", gain=0.1) != [0]
    assert Asked(decoding()).step(right="abcde", gain=0.1) == [0]  # it is not tried instead of what pays


def test_a_useless_head_is_asked_for_one_token_now_and_then_which_costs_a_small_part_of_all_steps() -> None:
    asked = Asked(decoding())
    cost = CHEAP.row + 0.05  # what PlayedHead takes
    first = sum(asked.step(right="")[0] for _ in range(400))
    assert first * cost < 400 * SAVED_SHARE + FIRST_SAVED
    lengths = [asked.step(right="")[0] for _ in range(4000)]
    assert set(lengths) == {0, 1}
    assert 4 < sum(lengths) <= 4000 * SAVED_SHARE / cost


def test_a_head_that_states_too_much_is_verified_as_far_as_it_has_been_right() -> None:
    asked = Asked(decoding(), confidence=0.95)
    for _ in range(100):  # every other draft is right in its first token, and none in more
        asked.drafts.begin_step(CHEAP)
        (request,) = asked.drafts.requests([HeadWish(asked.sequences[0], 8, 0.0)])
        assert request is not None
        (offer,) = asked.drafts.ask([(asked.sequences[0], request)])
        asked.drafts.judge("a", offer.confidences, 1)
    assert len(offer.token_ids) in (3, 4)  # as many as are right in every eighth or tenth draft


def test_a_sequence_whose_drafts_are_wrong_is_seldom_asked_where_those_of_others_are_right() -> None:
    asked = proven(decoding("a"), decoding("b"))
    lengths = [asked.step(right="b") for _ in range(100)]
    assert sum(own for own, _ in lengths[20:]) < 30  # each costs a thirteenth of what b saves in a step
    assert {other for _, other in lengths} == {HEAD_TOKENS}


def test_a_new_sequence_begins_with_what_others_have_shown() -> None:
    asked = Asked(decoding())
    for _ in range(400):
        asked.step(right="")
    asked.sequences = (decoding("new"),)
    asked.keep()
    assert [asked.step(right="") for _ in range(20)].count([0]) >= 15  # some tries were left for it
    good = proven(decoding())
    good.sequences = (decoding("new"),)
    good.keep()
    assert good.step(right="abcde") == [HEAD_TOKENS]


def test_a_head_that_takes_longer_than_it_saves_is_not_asked() -> None:
    asked = Asked(decoding(), token_us=12_000)
    for _ in range(40):
        asked.step(right="abcde")
    assert [asked.step(right="abcde") for _ in range(20)].count([0]) >= 19


def test_what_a_head_took_is_told_of_its_step_alone() -> None:
    asked = proven(decoding())
    asked.step(right="abcde")
    assert asked.drafts.drafting_us == 500 * HEAD_TOKENS
    asked.drafts.begin_step(CHEAP)
    assert asked.drafts.drafting_us == 0


def tries_of(asked: Asked, steps: int) -> list[list[int]]:
    """Return the lengths of drafts in the steps, of so many, that have some; none of them is right."""
    found = []
    for _ in range(steps):
        asked.keep()
        if any(lengths := asked.step(right="", prices=SHARED)):
            found.append(lengths)
    return found


def test_a_token_is_tried_for_several_sequences_in_the_same_step() -> None:
    asked = Asked(*(decoding(key) for key in "abcd"), token_us=500, row_us=50)
    asked.drafts.measure()
    found = tries_of(asked, 1000)
    assert found[0] == [1] * TRIED_TOGETHER
    cost = SHARED.sequences * SHARED.row * SHARED.share_us + 500 + 4 * 50
    assert len(found) * cost / SHARED.step_us <= 1000 * SAVED_SHARE + FIRST_SAVED


def test_to_read_the_weights_is_paid_by_all_who_ask_together() -> None:
    alone, together = proven(decoding("a")), proven(*(decoding(key) for key in "abcd"))
    for asked in (alone, together):
        asked.head.token_us = 9_500  # as many of them, and of rows, are more than as many steps
        for _ in range(200):
            asked.drafts.measure()
    assert max(alone.step(right="a", prices=SHARED)[0] for _ in range(2 * REST_STEPS)) <= 1
    assert min(together.step(right="abcd", prices=SHARED)) > 1


def test_what_a_head_takes_is_known_before_the_first_sequence_comes() -> None:
    asked = Asked(decoding(), token_us=12_000)
    asked.drafts.measure()
    assert [asked.step(right="a") for _ in range(20)] == [[0]] * 20  # a step and more
    assert asked.drafts.drafting_us == 0


def test_a_sequence_that_waits_learns_from_those_that_are_asked_for() -> None:
    asked = Asked(*(decoding(key) for key in "abcd"))
    asked.sequences = asked.sequences[:1]
    for _ in range(30):
        asked.step(right="a")
    asked.sequences = (decoding("b"),)
    asked.keep()
    assert asked.step(right="b") == [HEAD_TOKENS]


def test_a_head_that_pays_for_nobody_is_left_alone_for_some_steps() -> None:
    asked = Asked(decoding())
    for _ in range(400):
        asked.step(right="")
    planned = [asked.drafts.begin_step(CHEAP) and not asked.step(right="")[0] for _ in range(4 * REST_STEPS)]
    assert sum(planned) <= 4
