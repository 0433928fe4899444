"""Strikes, turns and the poison request: who is struck by an engine's end, and who is not."""

from __future__ import annotations

import asyncio

import pytest

from services.gateway.fleet.crash_record import PROVEN_TOKENS, STAYS_REMEMBERED, SUDDEN_S, CrashRecord
from services.gateway.fleet.poison_requests import MAX_TURN_S, TURN_S, PoisonRequests
from shared.bus.fleet import InstanceView
from tests.integration.gateway_peers import heartbeat
from tests.support.clock import FakeClock
from tests.support.wait import until


class Court:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.suspects = PoisonRequests(self.clock)

    def view(self, role: str, **fields: object) -> InstanceView:
        """Heard of now."""
        return InstanceView(heartbeat(role, f"{role}-0", **fields), self.clock.monotonic_s())

    def stay(self, record: CrashRecord, role: str, tokens: int, **fields: object) -> InstanceView:
        view = self.view(role, **fields)
        record.begin_epoch([view])
        self.suspects.record_tokens(record, 1, tokens)
        return view

    def is_struck(self, role: str, tokens: int, **fields: object) -> bool:
        record = self.suspects.open_record("r")
        self.stay(record, role, tokens, **fields)
        self.suspects.record_death(role, f"{role}-0")
        return record.strikes == 1


@pytest.fixture
def court() -> Court:
    return Court()


@pytest.mark.parametrize(
    ("role", "tokens", "struck"),
    [
        ("prefill", 0, True),
        ("prefill", 1, False),
        ("decode", 0, False),
        ("decode", 1, True),
        ("decode", 2, False),
        ("detokenizer", 0, False),
    ],
)
def test_a_silent_death_strikes_whom_the_engine_had_just_begun_to_compute(
    court: Court, role: str, tokens: int, struck: bool
) -> None:
    assert court.is_struck(role, tokens) is struck


@pytest.mark.parametrize(
    ("queued", "live", "struck"), [(0, 5, True), (1, 0, True), (1, 1, False), (3, 0, False)]
)
def test_where_others_waited_at_prefill_nobody_knows_whose_turn_it_was(
    court: Court, queued: int, live: int, struck: bool
) -> None:
    assert court.is_struck("prefill", 0, queued=queued, live=live) is struck


@pytest.mark.parametrize(
    ("tokens", "queued", "struck"), [(0, 1, True), (0, 2, False), (1, 2, True), (2, 0, False)]
)
def test_a_decode_worker_may_have_died_of_the_prompt_that_it_computed_alone(
    court: Court, tokens: int, queued: int, struck: bool
) -> None:
    record = court.suspects.open_record("r")
    record.begin_epoch([court.view("decode", queued=queued)], "decode")
    court.suspects.record_tokens(record, 1, tokens)
    court.suspects.record_death("decode", "decode-0")
    assert (record.strikes == 1) is struck


@pytest.mark.parametrize(("lived_s", "struck"), [(0.0, True), (SUDDEN_S, True), (SUDDEN_S + 0.1, False)])
def test_a_death_long_after_the_placement_is_no_strike(court: Court, lived_s: float, struck: bool) -> None:
    record = court.suspects.open_record("r")
    view = court.stay(record, "decode", 1)
    court.clock.advance(lived_s)
    view.last_seen_s = court.clock.monotonic_s()
    court.suspects.record_death("decode", "decode-0")
    assert (record.strikes == 1) is struck


@pytest.mark.parametrize(("rested_s", "struck"), [(2.0, True), (2.1, False)])
def test_one_that_had_rested_may_have_died_before_it_could_tell_of_the_request(
    court: Court, rested_s: float, struck: bool
) -> None:
    record, view = court.suspects.open_record("r"), court.view("prefill", next_ms=2000)
    court.clock.advance(rested_s)
    record.begin_epoch([view])
    court.suspects.record_death("prefill", "prefill-0")
    assert (record.strikes == 1) is struck


def test_an_engine_that_hung_ended_when_it_stalled(court: Court) -> None:
    record = court.suspects.open_record("r")
    view = court.stay(record, "decode", 1)
    court.clock.advance(15.0)
    view.heartbeat = heartbeat("decode", "decode-0", stalled_ms=14_000)
    view.last_seen_s = court.clock.monotonic_s()
    court.suspects.record_death("decode", "decode-0")
    assert record.strikes == 1


def test_who_had_left_before_is_not_struck_and_who_left_because_of_it_is(court: Court) -> None:
    for early in (True, False):
        record = court.suspects.open_record("r")
        view = court.stay(record, "decode", 1)
        court.clock.advance(0.1)
        if early:
            record.begin_epoch([])
            court.clock.advance(0.1)
        view.last_seen_s = court.clock.monotonic_s()
        court.clock.advance(1.0)
        record.begin_epoch([])
        court.suspects.record_death("decode", "decode-0")
        assert record.strikes == (0 if early else 1)


def test_the_one_that_alone_was_struck_twice_is_the_culprit(court: Court) -> None:
    poison, neighbour = court.suspects.open_record("poison request"), court.suspects.open_record("neighbour")
    court.stay(poison, "decode", 1)
    assert court.suspects.record_death("decode", "decode-0") == ""
    for record in (poison, neighbour):
        court.stay(record, "decode", 1)
    assert court.suspects.record_death("decode", "decode-0") == "poison request"


def test_of_several_that_were_struck_twice_none_is_the_culprit_before_they_took_turns(court: Court) -> None:
    records = [court.suspects.open_record(name) for name in ("a", "b")]
    for _ in range(2):
        for record in records:
            court.stay(record, "decode", 1)
        assert court.suspects.record_death("decode", "decode-0") == ""
    assert [record.strikes for record in records] == [2, 2]


def test_progress_takes_strikes_back_but_not_that_of_the_same_placement(court: Court) -> None:
    record = court.suspects.open_record("r")
    court.stay(record, "decode", PROVEN_TOKENS)
    court.suspects.record_fault(record, 1)
    court.suspects.record_tokens(record, 1, PROVEN_TOKENS + 1)
    assert record.strikes == 1
    court.suspects.record_tokens(record, 2, PROVEN_TOKENS - 1)
    assert record.strikes == 1
    court.suspects.record_tokens(record, 2, PROVEN_TOKENS)
    assert (record.strikes, record.named) == (0, False)


def test_last_words_count_once_per_placement(court: Court) -> None:
    record = court.suspects.open_record("r")
    for _ in range(3):
        assert not court.suspects.record_fault(record, 1)
    assert record.strikes == 1


async def test_suspects_are_placed_one_after_another(court: Court) -> None:
    first, second, other = (court.suspects.open_record(name) for name in ("first", "second", "other"))
    for record in (first, second):
        court.suspects.record_fault(record, 1)
    await court.suspects.take_turn(first)
    waiting = asyncio.create_task(court.suspects.take_turn(second))
    await court.suspects.take_turn(other)  # no suspect, so it does not wait
    assert not waiting.done()
    court.suspects.record_tokens(first, 2, PROVEN_TOKENS)
    await waiting
    assert court.suspects.record_fault(second, 2)
    assert not court.suspects.record_fault(first, 2)


@pytest.mark.parametrize(("is_routed", "turn_s"), [(True, TURN_S), (False, MAX_TURN_S)])
async def test_a_turn_is_bounded(court: Court, is_routed: bool, turn_s: float) -> None:
    first, second = (court.suspects.open_record(name) for name in ("first", "second"))
    for record in (first, second):
        court.suspects.record_fault(record, 1)
    await court.suspects.take_turn(first)
    if is_routed:
        first.begin_epoch([])
    waiting = asyncio.create_task(court.suspects.take_turn(second))
    court.clock.advance(turn_s - 0.01)
    await asyncio.sleep(0)
    assert not waiting.done()
    court.clock.advance(0.01)
    await until(waiting.done)
    assert not court.suspects.record_fault(first, 2)  # it is not alone any more


def test_a_record_is_bounded_and_gone_with_its_request(court: Court) -> None:
    record = court.suspects.open_record("r")
    for _ in range(3 * STAYS_REMEMBERED):
        court.stay(record, "decode", 0)
    assert len(record._stays) == STAYS_REMEMBERED
    court.suspects.close_record(record)
    assert not court.suspects._records
