"""How many tokens a drafter is asked for."""

from __future__ import annotations

import pytest

from services.decode.draft_length import (
    ASK_MESSAGE_US,
    ASK_ROW_US,
    PROBE_TOKENS,
    UNKNOWN_PRICE,
    DraftLength,
    DraftRecord,
    ask_price,
)
from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.probes import FIRST_SAVED, FIRST_TRIES, SAVED_SHARE, Probes


def length_of(longest: int = 4, probes: Probes | None = None) -> DraftLength:
    return DraftLength(longest, DraftRecord.common(), probes or Probes())


def asked_in(
    steps: int, length: DraftLength, probes: Probes, price: float, ask_price: float = 0.0
) -> list[int]:
    """Return what it asks for in each of so many steps, of which nothing comes."""
    asked = []
    for _ in range(steps):
        probes.begin_step()
        asked.append(length.next(8, price, ask_price))
    return asked


def test_drafts_that_are_right_are_asked_for_as_long_as_is_configured() -> None:
    length = length_of()
    for _ in range(20):
        length.observe(4, 4)
    assert length.next(8) == 4
    assert length.next(3) == 3
    for _ in range(3):
        length.observe(4, 0)
    assert length.next(8, price=0.6) == 0


def proven(longest: int = 8, right: int = 1) -> DraftLength:
    length = length_of(longest)
    for _ in range(60):
        length.observe(right, right)
    return length


def test_a_drafter_of_which_nothing_is_known_is_asked_for_one_token_and_then_for_more() -> None:
    length = length_of()
    assert length.next(8) == PROBE_TOKENS
    length.observe(1, 1)
    assert length.next(8) > 1


def test_what_costs_more_is_asked_for_shorter_and_what_saves_nothing_not_at_all() -> None:
    cheap, dear = proven().next(8, price=0.05), proven().next(8, price=0.5)
    assert cheap > dear > 0
    assert length_of(probes=Probes(0.0)).next(8, price=HIGHEST_PRICE) == 0


@pytest.mark.parametrize("price", [UNKNOWN_PRICE, HIGHEST_PRICE])
def test_useless_drafts_are_asked_for_one_at_a_time_and_cost_a_small_part_of_all_steps(price: float) -> None:
    probes = Probes()
    asked = asked_in(3000, length_of(probes=probes), probes, price=price, ask_price=0.05)
    assert max(asked) == PROBE_TOKENS
    assert 0 < sum(asked) * (price + 0.05) <= 3000 * SAVED_SHARE + FIRST_SAVED


def test_requests_that_end_before_they_have_a_probe_have_it_together() -> None:
    probes = Probes(0.0)
    asked = [asked_in(4, length_of(probes=probes), probes, price=HIGHEST_PRICE) for _ in range(500)]
    assert sum(map(sum, asked)) == int(2000 * SAVED_SHARE / HIGHEST_PRICE)


def test_what_is_tried_for_one_of_many_costs_its_part_of_a_step() -> None:
    def tries(num_sessions: int) -> int:
        probes = Probes()
        lengths = [length_of(probes=probes) for _ in range(num_sessions)]
        return sum(each.next(8, 0.4, 0.05, num_sessions) for each in lengths)

    assert (tries(1), tries(2), tries(8)) == (1, 2, FIRST_TRIES)
    assert tries(40) == FIRST_TRIES
    probes = Probes()
    for _ in range(round(2 * 0.45 / 8 / SAVED_SHARE) + 1):
        probes.begin_step()
    probes.take(0.0, 0.0, FIRST_TRIES)  # those at first are made
    lengths = [length_of(probes=probes) for _ in range(8)]
    assert sum(each.next(8, 0.4, 0.05, 8) for each in lengths) == 2  # an eighth of 0.45 each


def test_a_drafter_that_is_right_again_is_asked_again() -> None:
    length = length_of()
    while length.next(8):
        length.observe(4, 0)
    for _ in range(8):
        length.observe(1, 1)
    assert length.next(8) > 0


@pytest.mark.parametrize("wasted", [5, 40])
def test_answers_that_come_too_late_are_no_reason_to_ask(wasted: int) -> None:
    length = length_of()
    for _ in range(20):
        length.observe(4, 4)
    for _ in range(wasted):
        length.observe_waste()
    assert (length.next(8, price=0.1, ask_price=0.03) > PROBE_TOKENS) == (wasted == 5)


def test_a_message_is_shared_by_all_for_whom_it_asks() -> None:
    prices = DraftPrices(10_000.0, 1_000.0, 0.3, 0.0)
    assert ask_price(prices, 1) == pytest.approx((ASK_ROW_US + ASK_MESSAGE_US) / 1000)
    assert ask_price(prices, 60) == pytest.approx((ASK_ROW_US + ASK_MESSAGE_US / 60) / 1000)


def test_nothing_is_asked_for_where_drafts_are_off_or_have_no_room() -> None:
    assert length_of(0).next(8) == 0
    assert length_of(4).next(0) == 0


def test_what_one_request_has_shown_counts_for_those_that_were_open_before() -> None:
    common, probes = DraftRecord.common(), Probes()
    seen, waiting = (DraftLength(4, common, probes) for _ in range(2))
    for _ in range(20):
        seen.observe(4, 4)
    assert waiting.next(4) == 4
    waiting.observe(4, 0)
    assert seen.next(4) == 4
