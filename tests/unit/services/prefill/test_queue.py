"""The prefill queue: urgency, bounds, expiry."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from services.prefill.queue import MAX_GUESTS, MIN_RETRY_MS, PATIENCE_S, DeadlineQueue, Entry
from shared.deadline import Deadline
from shared.errors import Overloaded
from shared.fairness.service_counters import ServiceCounters
from shared.fairness.share import TenantShare
from tests.support.clock import FakeClock


def make_queue(clock: FakeClock, max_entries: int = 8, max_tokens: int = 1000) -> DeadlineQueue:
    return DeadlineQueue(max_entries=max_entries, max_tokens=max_tokens, clock=clock)


def entry(key: str, at_s: float = 200.0, tokens: int = 10, priority: int = 0) -> Entry:
    return Entry(key, tokens, Deadline(at_s), priority)


def drain(queue: DeadlineQueue) -> list[str]:
    keys = []
    while (taken := queue.take_entry()).entry is not None:
        keys.append(taken.entry.key)
    return keys


def test_the_earliest_deadline_goes_first() -> None:
    queue = make_queue(FakeClock(100.0))
    for key, at_s in (("late", 300.0), ("soon", 150.0), ("middle", 200.0)):
        queue.push(entry(key, at_s), 0.0)
    assert drain(queue) == ["soon", "middle", "late"]


def test_a_higher_class_goes_before_any_deadline_of_a_lower_one() -> None:
    queue = make_queue(FakeClock(100.0))
    queue.push(entry("low", 110.0, priority=-1), 0.0)
    queue.push(entry("normal", 120.0), 0.0)
    queue.push(entry("high", 900.0, priority=1), 0.0)
    assert drain(queue) == ["high", "normal", "low"]


def test_the_shortest_of_a_class_goes_for_as_many_tokens_as_the_most_urgent_one_has() -> None:
    queue = make_queue(FakeClock(100.0))
    queue.push(entry("high", 150.0, tokens=90, priority=1), 0.0)
    queue.push(entry("urgent", 150.0, tokens=60), 0.0)
    for number in range(4):
        queue.push(entry(f"short {number}", 300.0, tokens=20), 0.0)
    queue.push(entry("low", 150.0, tokens=1, priority=-1), 0.0)
    assert drain(queue) == ["high", "short 0", "urgent", "short 1", "short 2", "short 3", "low"]


def test_the_shortest_of_a_tenant_does_not_go_before_anothers_turn() -> None:
    queue, counters = counted(FakeClock(100.0))
    counters.charge(B, 10.0)
    queue.push(of(A, "a", tokens=60), 0.0)
    queue.push(of(B, "b", tokens=10), 0.0)
    assert drain(queue) == ["a", "b"]


def test_an_entry_put_back_has_not_had_its_turn() -> None:
    queue = make_queue(FakeClock(100.0))
    queue.push(entry("long", 150.0, tokens=60), 0.0)
    for number in range(2):
        queue.push(entry(f"short {number}", tokens=20), 0.0)
    for _ in range(3):
        taken = queue.take_entry()
        assert taken.entry is not None
        queue.put_back(taken.entry, taken.lead)
    assert drain(queue) == ["short 0", "long", "short 1"]


def test_equal_deadlines_keep_the_order_of_arrival() -> None:
    queue = make_queue(FakeClock(100.0))
    for key in "abc":
        queue.push(entry(key), 0.0)
    assert drain(queue) == ["a", "b", "c"]


def test_expired_entries_are_handed_out_as_expired_and_not_as_work() -> None:
    clock = FakeClock(100.0)
    queue = make_queue(clock)
    queue.push(entry("dead", 101.0), 0.0)
    queue.push(entry("alive", 200.0), 0.0)
    clock.advance(2.0)
    taken = queue.take_entry()
    assert taken.entry is not None
    assert taken.entry.key == "alive"
    assert [late.key for late in taken.expired] == ["dead"]
    assert queue.queued_tokens == 0


def test_expiry_can_be_collected_without_taking_work() -> None:
    clock = FakeClock(100.0)
    queue = make_queue(clock)
    queue.push(entry("dead", 101.0), 0.0)
    queue.push(entry("alive", 200.0), 0.0)
    clock.advance(50.0)
    assert [late.key for late in queue.expired()] == ["dead"]
    assert len(queue) == 1


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    queue = make_queue(FakeClock(100.0), max_tokens=100)
    queue.push(entry("a", tokens=90), 1000.0)
    with pytest.raises(Overloaded) as refused:
        queue.push(entry("b", tokens=510), 1000.0)
    assert refused.value.retry_after_ms == 500
    assert refused.value.hop == "prefill"
    assert len(queue) == 1


def test_without_a_measured_rate_the_hint_is_the_least_one() -> None:
    queue = make_queue(FakeClock(100.0), max_entries=1)
    queue.push(entry("a"), 0.0)
    with pytest.raises(Overloaded) as refused:
        queue.push(entry("b"), 0.0)
    assert refused.value.retry_after_ms == MIN_RETRY_MS


def test_an_empty_queue_takes_a_prompt_longer_than_its_token_bound() -> None:
    queue = make_queue(FakeClock(100.0), max_tokens=100)
    queue.push(entry("long", tokens=500), 0.0)
    assert queue.queued_tokens == 500


def test_a_removed_entry_gives_its_room_back() -> None:
    queue = make_queue(FakeClock(100.0))
    queue.push(entry("a", tokens=7), 0.0)
    removed = queue.remove("a")
    assert removed is not None
    assert queue.queued_tokens == 0
    assert queue.remove("a") is None


def test_an_entry_that_becomes_shorter_keeps_its_place_and_leaves_room() -> None:
    queue = make_queue(FakeClock(100.0), max_tokens=100)
    queue.push(entry("first", tokens=80), 0.0)
    queue.push(entry("second", tokens=20), 0.0)
    queue.shorten(entry("first", tokens=5))
    queue.shorten(entry("unknown", tokens=5))
    assert (queue.queued_tokens, len(queue)) == (25, 2)
    assert drain(queue) == ["first", "second"]


def test_an_entry_put_back_is_first_among_its_equals() -> None:
    queue = make_queue(FakeClock(100.0))
    queue.push(entry("a"), 0.0)
    queue.push(entry("b"), 0.0)
    taken = queue.take_entry().entry
    assert taken is not None
    queue.put_back(taken)
    assert drain(queue) == ["a", "b"]


def refused(queue: DeadlineQueue, key: str, clock: FakeClock) -> None:
    """The first in turn, which must be `key`, finds no room."""
    taken = queue.take_entry().entry
    assert taken is not None
    assert taken.key == key
    queue.put_back(dataclasses.replace(taken, refused_s=clock.monotonic_s()))


@pytest.mark.parametrize(
    ("priority", "waited", "first"),
    [
        (0, 0.99, "newcomer"),
        (0, 1.0, "refused"),
        (-1, 1.0, "newcomer"),
        (-1, 1.99, "newcomer"),
        (-1, 2.0, "refused"),
        (1, 1.0, "refused"),
    ],
)
def test_who_found_no_room_claims_it_after_its_patience_and_later_against_higher_classes(
    priority: int, waited: float, first: str
) -> None:
    clock = FakeClock(100.0)
    queue = make_queue(clock)
    queue.push(entry("refused", at_s=900.0, priority=priority), 0.0)
    refused(queue, "refused", clock)
    clock.advance(waited * PATIENCE_S)
    queue.push(entry("newcomer", at_s=150.0, priority=max(0, priority)), 0.0)
    assert drain(queue)[0] == first


def test_of_two_that_claim_room_the_first_refused_goes_first() -> None:
    clock = FakeClock(100.0)
    queue = make_queue(clock)
    queue.push(entry("a", at_s=900.0), 0.0)
    refused(queue, "a", clock)
    queue.push(entry("b", at_s=150.0), 0.0)
    clock.advance(0.5)
    refused(queue, "b", clock)
    clock.advance(2 * PATIENCE_S - 0.6)
    assert drain(queue) == ["a", "b"]


def test_who_cannot_start_yet_is_passed_over_but_expires() -> None:
    clock = FakeClock(100.0)
    queue = make_queue(clock)
    for key, at_s in (("compiling", 110.0), ("ready", 120.0)):
        queue.push(entry(key, at_s), 0.0)
    taken = queue.take_entry(lambda key: key != "compiling").entry
    assert taken is not None
    assert taken.key == "ready"
    assert queue.take_entry(lambda _: False).entry is None
    clock.advance(20.0)
    assert [late.key for late in queue.take_entry(lambda _: False).expired] == ["compiling"]
    assert queue.queued_tokens == 0


A, B = TenantShare("a"), TenantShare("b")


def counted(clock: FakeClock, max_entries: int = 8) -> tuple[DeadlineQueue, ServiceCounters]:
    """A queue in which two tenants have something to do."""
    counters = ServiceCounters()
    for share in (A, B):
        counters.join(share.tenant)
    queue = DeadlineQueue(max_entries=max_entries, max_tokens=1000, counters=counters, clock=clock)
    return queue, counters


def of(share: TenantShare, key: str, **fields: Any) -> Entry:
    return dataclasses.replace(entry(key, **fields), share=share)


def test_the_tenant_that_has_had_less_goes_first_whatever_class_and_deadline_the_other_names() -> None:
    queue, counters = counted(FakeClock(100.0))
    queue.push(of(A, "a urgent", at_s=101.0, priority=1), 0.0)
    queue.push(of(B, "b late", at_s=300.0, priority=-1), 0.0)
    queue.push(of(B, "b soon", at_s=200.0, priority=-1), 0.0)
    counters.charge(A, 10.0)
    assert drain(queue) == ["b soon", "b late", "a urgent"]


def test_a_prompt_that_claims_room_claims_it_against_its_own_tenant() -> None:
    clock = FakeClock(100.0)
    queue, counters = counted(clock)
    queue.push(of(A, "a big", at_s=900.0), 0.0)
    refused(queue, "a big", clock)
    clock.advance(PATIENCE_S)
    queue.push(of(A, "a small", at_s=150.0, priority=0), 0.0)
    queue.push(of(B, "b", at_s=800.0, priority=-1), 0.0)
    counters.charge(A, 10.0)
    assert drain(queue) == ["b", "a big", "a small"]


def test_a_queue_that_one_tenant_has_filled_takes_a_prompt_of_another_and_one_only() -> None:
    queue, _ = counted(FakeClock(100.0), max_entries=2)
    for number in range(2):
        queue.push(of(A, f"a{number}"), 0.0)
    for over in (of(A, "a over"), of(B, "b"), of(B, "b over")):
        if over.key == "b":
            queue.push(over, 0.0)
        else:
            with pytest.raises(Overloaded):
                queue.push(over, 0.0)
    assert len(queue) == 3


def test_a_full_queue_takes_no_more_guests_than_it_says() -> None:
    queue = make_queue(FakeClock(100.0), max_entries=1)
    for number in range(1 + MAX_GUESTS):
        queue.push(of(TenantShare(f"t{number}"), f"t{number}"), 0.0)
    with pytest.raises(Overloaded):
        queue.push(of(TenantShare("one more"), "one more"), 0.0)
    assert len(queue) == 1 + MAX_GUESTS
