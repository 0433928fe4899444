"""Where a prompt is computed: what the cost model chooses, and the edge of each of its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from services.gateway.fleet.known_prefixes import KnownPrefixes
from services.gateway.fleet.prompt_path import (
    MAX_EXTRA_STEPS,
    MAX_LOCAL_S,
    PLANNED_SHARE,
    UNMEASURED_TOKENS,
    PromptRates,
    is_local_better,
    local_first_token_s,
    on_shorter_path,
    prompt_rates,
    uncached_tokens,
)
from services.gateway.fleet.routing import Need, RoutingDecision
from shared.messages import FetchReport, Heartbeat
from tests.integration.gateway_peers import heartbeat
from tests.support.block_hashes import numbered_hashes

RATE = 4000.0
STEP_US = 10_000
MOST_TOKENS = 512
FEW = round(RATE * MAX_EXTRA_STEPS * STEP_US / 1e6)
"""The tokens that fit into the bound of streams that run."""


@dataclass(frozen=True, slots=True)
class View:
    heartbeat: Heartbeat
    cached: int = 0

    def overlap(self, block_hashes: Sequence[bytes]) -> int:
        return min(self.cached, len(block_hashes))


def decode(cached: int = 0, **fields: object) -> View:
    return View(heartbeat("decode", "decode-0", **{"prompt_tokens_per_s": RATE, **fields}), cached)


def prefill(cached: int = 0, **fields: object) -> View:
    return View(heartbeat("prefill", "prefill-0", **{"tokens_per_s": RATE, **fields}), cached)


def prompt(tokens: int, *, scored: bool = False, left_s: float = math.inf) -> Need:
    return Need(tuple(numbered_hashes(range(1, 1 + tokens // 16))), tokens, 16, scored, left_s)


def is_local(
    at: View, other: View, tokens: int, *, most_tokens: int = MOST_TOKENS, left_s: float = math.inf
) -> bool:
    need = prompt(tokens, left_s=left_s)
    return is_local_better(at, other, need, KnownPrefixes([other], need), most_tokens=most_tokens)


def busy(cached: int = 0, **fields: object) -> View:
    """A decode worker with streams."""
    return decode(cached, **{"live": 4, "step_us": STEP_US, **fields})


# ---- nobody is disturbed ----


@pytest.mark.parametrize(("tokens", "local"), [(1, True), (MOST_TOKENS, True), (MOST_TOKENS + 1, False)])
def test_a_decode_worker_at_rest_computes_what_is_not_too_long(tokens: int, local: bool) -> None:
    assert is_local(decode(), prefill(), tokens) is local


def test_what_is_cached_at_the_decode_worker_does_not_count() -> None:
    assert is_local(decode(cached=96), prefill(), 2048)
    assert not is_local(decode(cached=95), prefill(), 2048)


def test_a_prompt_whose_prefix_is_at_the_prefill_worker_goes_there() -> None:
    assert not is_local(decode(), prefill(cached=16), 400)


def test_a_prompt_whose_prefix_the_prefill_worker_fetches_goes_there() -> None:
    need, rich = prompt(1600), View(heartbeat("prefill", "prefill-1", tokens_per_s=RATE), cached=95)

    def local(other: View) -> bool:
        return is_local_better(decode(), other, need, KnownPrefixes([other, rich], need), most_tokens=1 << 20)

    slow = prefill(queued_tokens=100)
    assert local(slow)
    fetch = FetchReport(answer_us=1000, tokens_per_s=40 * RATE, most_tokens=1 << 16)
    assert not local(prefill(queued_tokens=100, fetch=fetch))


def test_a_transfer_that_takes_longer_than_the_prefix_keeps_it_local() -> None:
    saved_us = round(16 * 16 / RATE * 1e6)
    assert not is_local(decode(transfer_us=saved_us - 1000), prefill(cached=16), 400)
    assert is_local(decode(transfer_us=saved_us + 1000), prefill(cached=16), 400)


def test_a_queue_at_the_prefill_worker_speaks_for_local() -> None:
    assert not is_local(decode(), prefill(cached=16), 400)
    assert is_local(decode(), prefill(cached=16, queued_tokens=300), 400)


@pytest.mark.parametrize(("rate", "local"), [(512 / MAX_LOCAL_S, True), (511 / MAX_LOCAL_S, False)])
def test_a_prompt_that_would_keep_who_joins_waiting_for_long_is_not_local(rate: float, local: bool) -> None:
    slow = decode(prompt_tokens_per_s=rate)
    assert is_local(slow, prefill(tokens_per_s=rate), 512) is local


@pytest.mark.parametrize(("tokens", "local"), [(UNMEASURED_TOKENS, True), (UNMEASURED_TOKENS + 1, False)])
def test_before_anything_was_measured_only_the_shortest_are_local(tokens: int, local: bool) -> None:
    assert is_local(decode(prompt_tokens_per_s=0.0), prefill(tokens_per_s=0.0), tokens) is local


def test_before_anything_was_measured_nothing_is_computed_beside_streams() -> None:
    assert not is_local(busy(prompt_tokens_per_s=0.0), prefill(tokens_per_s=0.0), 1)


# ---- streams run there ----


@pytest.mark.parametrize(("tokens", "local"), [(FEW, True), (FEW + 1, False)])
def test_beside_streams_a_prompt_may_cost_so_many_steps_of_theirs(tokens: int, local: bool) -> None:
    assert is_local(busy(), prefill(queued_tokens=1000), tokens) is local


def test_beside_streams_a_cold_long_prompt_is_never_local_however_long_prefill_would_take() -> None:
    waiting = prefill(queued_tokens=30_000)
    assert not is_local(busy(), waiting, 2048, most_tokens=1 << 20)


def test_the_next_turn_of_a_chat_is_local_beside_streams() -> None:
    assert is_local(busy(cached=125), prefill(), 2030)


def test_prompts_that_are_computed_there_already_count() -> None:
    assert is_local(busy(queued_tokens=FEW // 2), prefill(queued_tokens=1000), FEW // 2)
    assert not is_local(busy(queued_tokens=FEW // 2 + 1), prefill(queued_tokens=1000), FEW // 2)


def test_streams_whose_steps_nobody_has_seen_are_not_disturbed() -> None:
    assert not is_local(busy(step_us=0), prefill(queued_tokens=1000), 1)


def test_a_short_cold_prompt_does_not_wait_for_a_step_where_prefill_is_free() -> None:
    assert not is_local(busy(), prefill(), 16)
    assert is_local(busy(transfer_us=STEP_US), prefill(), 16)


# ---- a first token is wanted in time ----

FREE_US = 4 * STEP_US
"""The steps of patient streams: three quarters of them are for prompts."""
LOCAL_S = STEP_US / 1e6 + 300 / RATE / 0.75
"""When a prompt of 300 tokens has its first token beside them."""


@pytest.mark.parametrize(("times", "local"), [(1.01, True), (0.99, False)])
def test_a_prompt_that_is_late_at_the_prefill_worker_alone_is_local(times: float, local: bool) -> None:
    left_s = times * LOCAL_S / PLANNED_SHARE
    patient, waiting = busy(longest_step_us=FREE_US), prefill(queued_tokens=3000)
    assert is_local(patient, waiting, 300, left_s=left_s) is local
    assert not is_local(patient, waiting, 300)
    assert not is_local(patient, waiting, 300, left_s=left_s, most_tokens=299)


def test_a_prompt_that_is_in_time_at_the_prefill_worker_stays_away_from_streams() -> None:
    left_s = 300 / RATE / PLANNED_SHARE
    assert not is_local(busy(longest_step_us=FREE_US), prefill(), 300, left_s=1.01 * left_s)
    assert is_local(busy(longest_step_us=40 * STEP_US), prefill(queued_tokens=100), 300, left_s=1.2 * left_s)


def test_what_is_due_later_at_the_prefill_worker_keeps_no_prompt_from_it() -> None:
    queue = prefill(queued_tokens=3000, due_tokens=(0, 0, 100, 3000, 3000))
    left_s = 2.1 * 300 / RATE / PLANNED_SHARE
    assert not is_local(busy(longest_step_us=FREE_US), queue, 300, left_s=left_s)


@pytest.mark.parametrize("longest_us", [0, STEP_US])
def test_streams_that_can_spare_nothing_have_no_prompt_beside_them(longest_us: int) -> None:
    waiting = prefill(queued_tokens=30_000)
    assert not is_local(busy(longest_step_us=longest_us), waiting, 300, left_s=1.0)
    assert local_first_token_s(busy(longest_step_us=longest_us).heartbeat, 300, RATE) == math.inf


def test_prompts_that_wait_at_the_decode_worker_come_before() -> None:
    beat = busy(longest_step_us=FREE_US, queued_tokens=600).heartbeat
    assert local_first_token_s(beat, 300, RATE) == pytest.approx(STEP_US / 1e6 + 900 / RATE / 0.75)


@pytest.mark.parametrize("live", [0, 2])
def test_where_no_stream_runs_yet_the_prompt_alone_is_computed_while_that_is_short(live: int) -> None:
    beat = decode(live=live).heartbeat
    assert local_first_token_s(beat, 400, RATE) == pytest.approx(0.1)
    assert local_first_token_s(beat, round(1.1 * MAX_LOCAL_S * RATE), RATE) == math.inf
    assert local_first_token_s(beat, 1, 0.0) == math.inf


def test_a_prompt_does_not_wait_behind_a_long_one_whose_stream_is_only_to_come() -> None:
    assert is_local(decode(live=1), prefill(queued_tokens=3000), 300, left_s=0.6)
    assert not is_local(decode(live=1), prefill(queued_tokens=3000), 300)


# ---- what it goes by ----


def test_alike_workers_of_one_host_are_as_fast_as_the_faster_figure() -> None:
    assert prompt_rates(decode(prompt_tokens_per_s=100.0).heartbeat, prefill().heartbeat) == PromptRates(
        RATE, RATE
    )


@pytest.mark.parametrize("other", [prefill(host="elsewhere"), prefill(most_threads=7)])
def test_workers_that_differ_are_as_fast_as_each_has_measured(other: View) -> None:
    slow = decode(prompt_tokens_per_s=100.0)
    assert prompt_rates(slow.heartbeat, other.heartbeat) == PromptRates(100.0, RATE)


def test_who_has_not_measured_is_taken_to_be_as_fast_as_the_other() -> None:
    elsewhere = decode(prompt_tokens_per_s=0.0, host="elsewhere").heartbeat
    assert prompt_rates(elsewhere, prefill().heartbeat) == PromptRates(RATE, RATE)


def test_the_last_token_is_computed_even_when_all_is_cached() -> None:
    assert uncached_tokens(decode(cached=4), prompt(64)) == 16


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_whole() -> None:
    assert uncached_tokens(decode(cached=4), prompt(64, scored=True)) == 64


# ---- the route ----

PLACED = RoutingDecision("decode-0", "prefill-0", "detokenizer-0", "")


def shorter(
    route: RoutingDecision, fleet: Mapping[str, Sequence[View]], need: Need, *, most_tokens: int
) -> RoutingDecision:
    known = KnownPrefixes(fleet["prefill"], need)
    return on_shorter_path(route, fleet, need, known, most_tokens=most_tokens)


def test_a_local_placement_has_no_prefill_worker() -> None:
    fleet = {"decode": [decode()], "prefill": [prefill()]}
    assert shorter(PLACED, fleet, prompt(64), most_tokens=64) == replace(PLACED, prefill="")
    assert shorter(PLACED, fleet, prompt(64), most_tokens=63) == PLACED


def test_the_instances_that_were_chosen_are_compared() -> None:
    other = View(replace(decode().heartbeat, instance="decode-1", live=8))
    fleet = {"decode": [other, decode()], "prefill": [prefill()]}
    assert shorter(PLACED, fleet, prompt(64), most_tokens=64).prefill == ""
    assert shorter(replace(PLACED, decode="decode-1"), fleet, prompt(64), most_tokens=64).prefill


def test_with_no_tokens_allowed_nothing_is_local() -> None:
    fleet = {"decode": [decode(cached=4)], "prefill": [prefill(queued_tokens=1000)]}
    assert shorter(PLACED, fleet, prompt(64), most_tokens=0) == PLACED


@pytest.mark.parametrize(("path", "role"), [("prefill-0", "prefill"), ("", "decode")])
def test_the_first_token_comes_from_who_computes_the_prompt(path: str, role: str) -> None:
    assert replace(PLACED, prefill=path).prompt_role == role
