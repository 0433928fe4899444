"""A placement knows what each prefill worker has of a prompt, who lends it more, and what the rest costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from services.gateway.fleet.known_prefixes import DEFAULT_PREFILL_TOKENS_PER_S, KnownPrefix, KnownPrefixes
from services.gateway.fleet.routing import Need, cheapest_instance
from shared.blocks.prefix_fetch import LEAST_BLOCKS, MARGIN
from shared.messages import NO_FETCHES, NO_LENDER, FetchReport, Heartbeat, PrefixLender
from tests.integration.gateway_peers import heartbeat
from tests.support.block_hashes import numbered_hashes

TOKENS = 16 * 64 + 4
NEED = Need(tuple(numbered_hashes(range(1, 65))), TOKENS, 16)
RATE = 1000.0
FAST = FetchReport(answer_us=5000, tokens_per_s=16_000.0, most_tokens=1 << 16)


@dataclass(frozen=True, slots=True)
class View:
    heartbeat: Heartbeat
    cached: int

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        return min(self.cached, len(block_hashes))


def view(number: int, cached: int = 0, **fields: object) -> View:
    return View(heartbeat("prefill", f"prefill-{number}", **{"tokens_per_s": RATE, **fields}), cached)


def known(*views: View, need: Need = NEED) -> KnownPrefix:
    """Return what the first of the workers knows of the prompt."""
    return KnownPrefixes(views, need).at(views[0])


def cheapest(*views: View, need: Need = NEED) -> str:
    return cheapest_instance(views, KnownPrefixes(views, need).cost, 0)


# ---- who lends ----


def test_the_worker_with_most_of_the_prompt_is_named_with_what_is_known_of_it() -> None:
    views = [view(0, 3), view(1, 20), view(2, 40, tokens_per_s=500.0, queued_tokens=7)]
    incarnation = views[2].heartbeat.incarnation
    assert known(*views).lender == PrefixLender("prefill-2", incarnation, 40, 7, 500.0)


def test_of_equals_the_one_with_least_in_its_queue_is_named() -> None:
    views = [view(0), view(1, 40, queued_tokens=90), view(2, 40, queued_tokens=10)]
    assert known(*views).lender.instance == "prefill-2"


@pytest.mark.parametrize(("more", "named"), [(LEAST_BLOCKS - 1, ""), (LEAST_BLOCKS, "prefill-1")])
def test_nobody_is_named_who_has_hardly_more_than_the_worker_itself(more: int, named: str) -> None:
    assert known(view(0, 10), view(1, 10 + more)).lender.instance == named


def test_nobody_lends_to_the_one_that_has_most_nor_a_prompt_that_is_computed_whole() -> None:
    assert known(view(0, 40), view(1, 30)) == KnownPrefix(40)
    scored = Need(NEED.block_hashes, TOKENS, 16, scored=True)
    assert known(view(0, fetch=FAST), view(1, 40), need=scored) == KnownPrefix(0)


def test_one_that_lends_nothing_is_looked_at_for_itself() -> None:
    """A worker that is shunned is not among those that lend, and may be chosen where nobody else is left."""
    assert KnownPrefixes([view(1, 40)], NEED).at(view(0, 30)).blocks == 30


# ---- what is fetched ----


def test_a_worker_that_fetches_knows_as_much_as_its_lender_a_little_later() -> None:
    there = known(view(0, 8, fetch=FAST), view(1, 40))
    assert (there.blocks, there.tokens, there.is_fetched) == (40, 640, True)
    assert there.ready_s == pytest.approx(0.005 + 32 * 16 / 16_000.0)


def test_only_so_much_is_fetched_at_a_time() -> None:
    few = FetchReport(5000, 16_000.0, most_tokens=16 * 10)
    assert known(view(0, 8, fetch=few), view(1, 40)).blocks == 18


@pytest.mark.parametrize(("share", "fetched"), [(0.99, True), (1.01, False)])
def test_the_margin_is_that_of_the_worker_itself(share: float, fetched: bool) -> None:
    seconds = share * 640 / RATE / MARGIN
    slow = FetchReport(0, 640 / seconds, 1 << 16)
    assert known(view(0, fetch=slow), view(1, 40)).is_fetched is fetched


@pytest.mark.parametrize(
    "fetch",
    [
        NO_FETCHES,
        FetchReport(5000, math.nan, 1 << 16),
        FetchReport(5000, -1.0, 1 << 16),
        FetchReport(5000, 16_000.0, -16),
    ],
    ids=["none", "nan", "negative", "no room"],
)
def test_a_worker_that_fetches_nothing_still_hears_who_has_more(fetch: FetchReport) -> None:
    there = known(view(0, 2, fetch=fetch), view(1, 40))
    assert (there.blocks, there.is_fetched, there.lender.instance) == (2, False, "prefill-1")


def test_a_worker_that_has_not_measured_is_taken_to_be_as_fast_as_its_lender() -> None:
    assert known(view(0, tokens_per_s=0.0, fetch=FAST), view(1, 40)).is_fetched
    unknown = known(view(0, tokens_per_s=0.0, fetch=FAST), view(1, 40, tokens_per_s=0.0))
    assert not unknown.is_fetched


# ---- what it costs ----


def test_an_idle_worker_that_fetches_is_sooner_than_the_queue_of_the_one_that_has_the_prefix() -> None:
    busy = view(1, 64, queued_tokens=900)
    assert cheapest(view(0), busy) == "prefill-1"
    assert cheapest(view(0, fetch=FAST), busy) == "prefill-0"


def test_a_prompt_goes_to_the_worker_that_has_its_prefix_while_that_is_free() -> None:
    assert cheapest(view(0, fetch=FAST), view(1, 64)) == "prefill-1"


def test_a_prefix_comes_while_what_is_queued_is_computed() -> None:
    views = [view(0, queued_tokens=500, fetch=FAST), view(1, 64)]
    assert KnownPrefixes(views, NEED).first_token_s(views[0]) == pytest.approx((500 + 4) / RATE)


def test_a_cost_may_be_asked_for_at_another_rate_than_the_measured_one() -> None:
    views = [view(0, 32)]
    prefixes = KnownPrefixes(views, NEED)
    assert prefixes.first_token_s(views[0], 2 * RATE) == pytest.approx((TOKENS - 512) / (2 * RATE))


def test_a_worker_without_a_rate_costs_as_much_as_one_of_the_usual_rate() -> None:
    views = [view(0, tokens_per_s=0.0)]
    assert KnownPrefixes(views, NEED).cost(views[0])[0] == round(TOKENS / DEFAULT_PREFILL_TOKENS_PER_S, 3)


def test_nobody_named_is_no_lender() -> None:
    assert known(view(0), view(1)).lender == NO_LENDER
