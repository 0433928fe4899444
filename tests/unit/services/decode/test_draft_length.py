"""How many tokens a drafter is asked for."""

from __future__ import annotations

import pytest

from services.decode.draft_length import (
    ASK_MESSAGE_US,
    ASK_ROW_US,
    PROBE_TOKENS,
    DraftLength,
    DraftRecord,
    ask_price,
)
from shared.engine.scheduling.draft_prices import HIGHEST_PRICE, DraftPrices
from shared.engine.scheduling.probes import FIRST_AFTER, Probes


def length_of(longest: int = 4, probes: Probes | None = None) -> DraftLength:
    return DraftLength(longest, DraftRecord.common(), probes or Probes())


def asked_in(steps: int, length: DraftLength, probes: Probes, **prices: float) -> list[int]:
    """Return what it asks for in each of so many steps, of which nothing comes."""
    asked = []
    for _ in range(steps):
        probes.begin_step()
        asked.append(length.next(8, **prices))
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


def test_what_costs_more_is_asked_for_shorter_and_what_saves_nothing_not_at_all() -> None:
    cheap, dear = length_of(8).next(8, price=0.05), length_of(8).next(8, price=0.5)
    assert cheap > dear > 0
    assert length_of().next(8, price=HIGHEST_PRICE) == 0


PROBED_AT = [FIRST_AFTER, 3 * FIRST_AFTER, 7 * FIRST_AFTER]


def test_useless_drafts_are_turned_off_and_probed_ever_more_rarely() -> None:
    probes = Probes()
    length = length_of(probes=probes)
    while length.next(8):
        length.observe(4, 0)
    asked = asked_in(7 * FIRST_AFTER, length, probes)
    assert [step for step, each in enumerate(asked, 1) if each] == PROBED_AT
    assert max(asked) == PROBE_TOKENS


def test_where_tokens_are_believed_to_cost_too_much_it_is_seen_now_and_then_whether_they_do() -> None:
    probes = Probes()
    asked = asked_in(7 * FIRST_AFTER, length_of(probes=probes), probes, price=HIGHEST_PRICE)
    assert [step for step, each in enumerate(asked, 1) if each] == PROBED_AT


def test_requests_that_end_before_a_probe_is_due_have_it_together() -> None:
    probes = Probes()
    asked = [asked_in(4, length_of(probes=probes), probes, price=HIGHEST_PRICE) for _ in range(FIRST_AFTER)]
    assert sum(map(sum, asked)) == 2 * PROBE_TOKENS


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
    assert (length.next(8, price=0.1, ask_price=0.03) > 0) == (wasted == 5)


def test_a_message_is_shared_by_all_for_whom_it_asks() -> None:
    prices = DraftPrices(10_000.0, 1_000.0, 0.3, 0.0)
    assert ask_price(prices, 1) == pytest.approx((ASK_ROW_US + ASK_MESSAGE_US) / 1000)
    assert ask_price(prices, 60) == pytest.approx((ASK_ROW_US + ASK_MESSAGE_US / 60) / 1000)


def test_nothing_is_asked_for_where_drafts_are_off_or_have_no_room() -> None:
    assert length_of(0).next(8) == 0
    assert length_of(4).next(0) == 0
