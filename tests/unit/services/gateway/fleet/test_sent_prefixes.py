"""Calls that begin alike and come together meet at one prefill worker, where that makes none of them late."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.fleet.known_prefixes import KnownPrefixes
from services.gateway.fleet.prompt_path import beside_shared_prefix
from services.gateway.fleet.routing import Need, RoutingDecision
from services.gateway.fleet.sent_prefixes import (
    LEAST_SHARED_BLOCKS,
    PROMPTS_REMEMBERED,
    REMEMBERED_S,
    SentPrefixes,
)
from shared.bus.fleet import InstanceView
from shared.messages import NO_FETCHES, FetchReport
from tests.integration.gateway_peers import heartbeat
from tests.support.block_hashes import numbered_hashes
from tests.support.clock import FakeClock

SHARED = numbered_hashes(range(40))
ONE, OTHER = ((*SHARED, *numbered_hashes([last])) for last in (100, 200))
TOKENS = 16 * len(ONE)
ROUTE = RoutingDecision("decode-0", "prefill-1", "detokenizer-0", "")


def sent(clock: FakeClock | None = None) -> SentPrefixes:
    """A worker was asked for ONE."""
    prefixes = SentPrefixes(clock or FakeClock())
    prefixes.add("prefill-0", ONE)
    return prefixes


def chosen(prefixes: SentPrefixes, queued: int = TOKENS, need: Need | None = None, **fields: object) -> str:
    """Return where OTHER is computed, which alone would be at prefill-1; at prefill-0 so many tokens wait."""
    views = [
        InstanceView(heartbeat("prefill", "prefill-0", queued_tokens=queued, **fields), 0.0),
        InstanceView(heartbeat("prefill", "prefill-1"), 0.0),
    ]
    return beside(views, need or Need(OTHER, TOKENS + 5, 9), prefixes).prefill


def beside(views: Sequence[InstanceView], need: Need, prefixes: SentPrefixes) -> RoutingDecision:
    return beside_shared_prefix(ROUTE, {"prefill": views}, need, KnownPrefixes(views, need), prefixes)


def test_a_call_goes_where_its_prefix_is_computed_for_another_one() -> None:
    assert chosen(sent()) == "prefill-0"


def test_it_does_not_wait_there_for_much_else() -> None:
    assert chosen(sent(), queued=2 * TOKENS) == "prefill-1"


def test_what_lays_out_its_kv_otherwise_or_shares_little_is_no_reason() -> None:
    assert chosen(sent(), layout="other") == "prefill-1"
    few = Need((*SHARED[: LEAST_SHARED_BLOCKS - 1], *OTHER[-1:]), 99, 9)
    assert chosen(sent(), queued=0, need=few) == "prefill-1"
    assert chosen(sent(), queued=0, need=Need(OTHER, TOKENS + 5, 9, scored=True)) == "prefill-1"


def test_what_was_asked_for_long_ago_is_computed_or_never_will_be() -> None:
    clock = FakeClock()
    prefixes = sent(clock)
    clock.advance(REMEMBERED_S)
    assert prefixes.shared_blocks("prefill-0", OTHER) == len(SHARED)
    clock.advance(0.1)
    assert prefixes.shared_blocks("prefill-0", OTHER) == 0


def test_so_many_prompts_of_a_worker_are_remembered() -> None:
    prefixes = sent()
    for number in range(PROMPTS_REMEMBERED):
        prefixes.add("prefill-0", numbered_hashes(range(1000 * number + 500, 1000 * number + 510)))
    assert prefixes.shared_blocks("prefill-0", OTHER) == 0


def test_where_there_is_one_worker_nothing_is_chosen() -> None:
    views = [InstanceView(heartbeat("prefill", "prefill-1"), 0.0)]
    assert beside(views, Need(OTHER, TOKENS, 9), sent()) == ROUTE


def test_a_worker_that_fetches_the_prefix_does_not_wait_where_it_is_computed() -> None:
    rich = InstanceView(heartbeat("prefill", "prefill-2", tokens_per_s=1000.0), 0.0)
    rich.prefix.update(SHARED)
    fetch = FetchReport(answer_us=1000, tokens_per_s=100_000.0, most_tokens=1 << 16)
    for told, at in ((NO_FETCHES, "prefill-0"), (fetch, "prefill-1")):
        views = [
            InstanceView(heartbeat("prefill", "prefill-0", queued_tokens=TOKENS // 2), 0.0),
            InstanceView(heartbeat("prefill", "prefill-1", tokens_per_s=1000.0, fetch=told), 0.0),
            rich,
        ]
        assert beside(views, Need(OTHER, TOKENS + 5, 9), sent()).prefill == at
