"""What was sent counts until a heartbeat behind the answer shows it."""

from __future__ import annotations

from services.gateway.fleet.sent_load import FORGOTTEN_AFTER_S, SentLoad
from shared.bus.fleet import InstanceView
from tests.integration.gateway_peers import heartbeat
from tests.support.clock import FakeClock


def view(clock: FakeClock) -> InstanceView:
    return InstanceView(
        heartbeat("decode", "d0", live=3, queued_tokens=10, kv_blocks_free=50), clock.monotonic_s()
    )


def test_what_was_sent_is_added_to_the_heartbeat() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), view(clock)
    sent.add("decode", "d0", tokens=7, blocks=4)
    sent.add("decode", "other", tokens=100, blocks=100)
    beat = sent.with_sent(seen).heartbeat
    assert (beat.live, beat.worker.queued_tokens, beat.worker.kv_blocks_free) == (4, 17, 46)


def test_a_heartbeat_behind_the_answer_counts_it_in() -> None:
    clock = FakeClock()
    sent = SentLoad(clock)
    load = sent.add("decode", "d0", blocks=4)
    clock.advance(0.01)
    sent.took(load)
    assert sent.with_sent(view(clock)).heartbeat.live == 4  # sent before the answer, perhaps
    clock.advance(0.01)
    assert sent.with_sent(view(clock)).heartbeat.live == 3


def test_a_heartbeat_before_the_answer_does_not() -> None:
    clock = FakeClock()
    sent = SentLoad(clock)
    sent.add("decode", "d0", blocks=4)
    clock.advance(1.0)
    assert sent.with_sent(view(clock)).heartbeat.live == 4


def test_what_was_refused_counts_no_more() -> None:
    clock = FakeClock()
    sent = SentLoad(clock)
    sent.drop(sent.add("decode", "d0", blocks=4))
    assert sent.with_sent(view(clock)).heartbeat.live == 3


def test_what_was_never_answered_is_forgotten() -> None:
    clock = FakeClock()
    sent = SentLoad(clock)
    sent.add("decode", "d0", blocks=4)
    clock.advance(FORGOTTEN_AFTER_S)
    assert sent.with_sent(view(clock)).heartbeat.live == 3


def test_a_view_is_made_once_until_something_has_changed() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), view(clock)
    load = sent.add("decode", "d0", blocks=4)
    made = sent.with_sent(seen)
    sent.add("decode", "other")
    sent.took(load)
    assert sent.with_sent(seen) is made
    sent.add("decode", "d0", blocks=4)
    assert sent.with_sent(seen).heartbeat.live == 5
    sent.drop(load)
    assert sent.with_sent(seen).heartbeat.live == 4
    sent.end("decode", "d0")
    assert sent.with_sent(seen).heartbeat.live == 3
    seen.heartbeat, seen.last_seen_s = view(clock).heartbeat, clock.monotonic_s() + 1.0
    assert sent.with_sent(seen).heartbeat.live == 4  # one is not answered yet, and that beat has the end


# ---- what has ended ----


def test_what_ended_counts_no_more_until_a_heartbeat_shows_it() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), view(clock)
    clock.advance(0.01)
    sent.end("decode", "d0")
    assert sent.with_sent(seen).heartbeat.live == 2
    clock.advance(0.01)
    assert sent.with_sent(view(clock)).heartbeat.live == 3


def test_what_came_and_ended_between_two_heartbeats_does_not_count() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), InstanceView(heartbeat("decode", "d0"), clock.monotonic_s())
    sent.took(sent.add("decode", "d0"))
    sent.end("decode", "d0")
    assert sent.with_sent(seen).heartbeat.live == 0


def test_an_end_that_the_heartbeat_had_already_does_not_hide_who_is_sent_next() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), InstanceView(heartbeat("decode", "d0", live=0), clock.monotonic_s())
    clock.advance(0.01)
    sent.end("decode", "d0")
    clock.advance(0.01)
    sent.add("decode", "d0")
    assert sent.with_sent(seen).heartbeat.live == 1


def test_when_the_last_one_has_ended_no_tokens_of_its_prompt_wait() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), view(clock)
    for left in (2, 1, 0):
        sent.end("decode", "d0")
        loaded = sent.with_sent(seen).heartbeat
        assert (loaded.live, loaded.worker.queued_tokens) == (left, 10 if left else 0)


def test_ends_of_an_instance_that_is_heard_no_more_are_forgotten() -> None:
    clock = FakeClock()
    sent, seen = SentLoad(clock), view(clock)
    sent.end("decode", "d0")
    clock.advance(FORGOTTEN_AFTER_S)
    sent.end("decode", "d0")
    assert sent.with_sent(seen).heartbeat.live == 2


def test_what_was_sent_is_before_every_prompt_however_soon_that_is_due() -> None:
    clock = FakeClock()
    sent = SentLoad(clock)
    seen = InstanceView(
        heartbeat("prefill", "prefill-0", queued_tokens=90, due_tokens=(0, 90)),
        last_seen_s=clock.monotonic_s(),
    )
    sent.add("prefill", "prefill-0", tokens=10)
    assert sent.with_sent(seen).heartbeat.worker.due_tokens == (10, 100)
