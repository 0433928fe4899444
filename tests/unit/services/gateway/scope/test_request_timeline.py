"""The timeline of a request: every microsecond belongs to one phase."""

from __future__ import annotations

import pytest

from services.gateway.scope.request_timeline import (
    MAX_ASKED,
    MAX_ATTEMPTS,
    MAX_CLIENT_US,
    MAX_MARK,
    RequestTimeline,
)
from shared.messages import Mark
from tests.support.clock import FakeClock
from tests.support.metric import value


def durations(timeline: RequestTimeline) -> list[tuple[str, int]]:
    return [(phase.name, phase.duration_us) for phase in timeline.phases()]


def test_the_phases_partition_the_request() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(clock.unix_us() - 500, clock)
    for phase in ("admit", "tokenize", "route"):
        clock.advance(0.001)
        timeline.mark_phase(phase)
    clock.advance(0.010)
    timeline.add_row((Mark("detokenize", 100), Mark("prefill.queue", 2000), Mark("prefill.compute", 5000)))
    clock.advance(0.001)
    timeline.mark_delivered()
    clock.advance(0.020)
    timeline.add_row((Mark("kv.transfer", 3000), Mark("decode.queue", 1000)))
    timeline.mark_last_row()
    clock.advance(0.001)
    timeline.close_timeline()
    assert durations(timeline) == [
        ("client", 500),
        ("admit", 1000),
        ("tokenize", 1000),
        ("route", 1000),
        ("prefill.queue", 2000),
        ("prefill.compute", 5000),
        ("detokenize", 100),
        ("bus", 2900),
        ("deliver", 1000),
        ("kv.transfer", 3000),
        ("decode.queue", 1000),
        ("decode", 16_000),
        ("finish", 1000),
    ]
    assert (timeline.ttft_us, timeline.total_us) == (14_500, 35_500)
    event = timeline.to_event()
    assert sum(p.duration_us for p in event.phases) == event.total_us
    assert (
        sum(p.duration_us for p in event.phases if p.start_us + p.duration_us <= event.ttft_us)
        == event.ttft_us
    )


def test_what_a_client_says_of_its_way_is_in_its_own_timeline_alone() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(clock.unix_us() - 59_000_000, clock)
    clock.advance(0.002)
    timeline.add_row(())
    timeline.mark_delivered()
    clock.advance(0.001)
    timeline.close_timeline()
    assert (timeline.ttft_us, timeline.total_us) == (59_002_000, 59_003_000)
    assert (timeline.measured_ttft_us, timeline.measured_total_us) == (2000, 3000)
    assert [phase.name for phase in timeline.measured_phases()] == ["bus", "deliver", "decode", "finish"]


@pytest.mark.parametrize(
    ("ago_us", "counted"), [(-1, False), (1, True), (MAX_CLIENT_US, True), (MAX_CLIENT_US + 1, False)]
)
def test_a_client_time_that_cannot_be_is_left_out(ago_us: int, counted: bool) -> None:
    clock = FakeClock()
    timeline = RequestTimeline(clock.unix_us() - ago_us, clock)
    timeline.close_timeline()
    assert dict(durations(timeline)).get("client") == (ago_us if counted else None)


@pytest.mark.parametrize(
    ("mark", "counted"), [(-1, False), (0, True), (MAX_MARK, True), (MAX_MARK + 1, False)]
)
def test_a_mark_of_a_worker_that_cannot_be_is_left_out_and_counted(mark: int, counted: bool) -> None:
    before = value("penstock_dropped_messages_total", reason="wrong_mark")
    timeline = RequestTimeline(0, FakeClock())
    timeline.add_row((Mark("count:draft_proposed", mark),))
    assert timeline.counts["draft_proposed"] == (mark if counted else 0)
    assert value("penstock_dropped_messages_total", reason="wrong_mark") - before == (not counted)


def test_the_first_instances_that_were_asked_are_kept() -> None:
    timeline = RequestTimeline(0, FakeClock())
    for number in range(MAX_ASKED + 1):
        timeline.note_asked("tokenizer", f"tokenizer-{number}")
    assert [each.instance for each in timeline.asked] == [f"tokenizer-{n}" for n in range(MAX_ASKED)]


def test_an_answer_that_ends_with_its_first_row_is_delivered_before_it_finishes() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(0, clock)
    timeline.mark_phase("route")
    clock.advance(0.002)
    timeline.add_row(())
    timeline.mark_last_row()
    clock.advance(0.001)
    timeline.mark_delivered()
    timeline.close_timeline()
    assert durations(timeline)[1:] == [("bus", 2000), ("deliver", 1000), ("decode", 0), ("finish", 0)]


def test_a_lost_placement_is_a_phase_and_the_next_one_starts_anew() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(0, clock)
    timeline.mark_phase("route")
    clock.advance(0.002)
    timeline.mark_lost("unavailable")
    timeline.mark_phase("route")
    clock.advance(0.003)
    timeline.add_row((Mark("prefill.compute", 1000),))
    timeline.mark_delivered()
    clock.advance(0.004)
    timeline.mark_lost("unavailable")
    timeline.mark_phase("route")
    clock.advance(0.005)
    timeline.add_row((Mark("prefill.compute", 2000),))
    timeline.mark_last_row()
    timeline.close_timeline()
    assert [entry for entry in durations(timeline) if entry[1]] == [
        ("lost", 2000),
        ("prefill.compute", 1000),
        ("bus", 2000),
        ("decode", 4000),
        ("prefill.compute", 2000),
        ("bus", 3000),
    ]


def test_counts_are_not_phases() -> None:
    timeline = RequestTimeline(0, FakeClock())
    timeline.add_row((Mark("count:draft_proposed", 4),))
    timeline.add_row((Mark("count:draft_proposed", 3), Mark("count:draft_accepted", 2)))
    timeline.close_timeline()
    assert (timeline.counts["draft_proposed"], timeline.counts["draft_accepted"]) == (7, 2)
    assert not any(name.startswith("count:") for name, _ in durations(timeline))


def test_a_timeline_begins_where_its_call_came_and_what_was_before_is_the_clients() -> None:
    clock = FakeClock(1000.0)
    timeline = RequestTimeline(clock.unix_us() - 2_500_000, clock, began_s=998.0)
    timeline.mark_phase("admit")
    assert [(phase.name, phase.duration_us) for phase in timeline.phases()] == [
        ("client", 500_000),
        ("admit", 2_000_000),
    ]
    assert timeline.total_us == 2_500_000


def test_the_first_routes_and_the_last_are_kept() -> None:
    timeline = RequestTimeline(0, FakeClock())
    for epoch in range(1, MAX_ATTEMPTS + 4):
        timeline.begin_attempt(epoch, (("decode", f"decode-{epoch}"),))
        timeline.mark_lost("unavailable")
    timeline.begin_attempt(99, (("decode", "decode-99"),))
    timeline.close_timeline()
    assert [attempt.epoch for attempt in timeline.attempts] == [*range(1, MAX_ATTEMPTS), 99]
    assert [attempt.why for attempt in timeline.attempts[-2:]] == ["unavailable", ""]


def test_a_timeline_tells_the_other_region_of_the_latest_route_alone() -> None:
    timeline = RequestTimeline(0, FakeClock())
    timeline.begin_attempt(1, (("decode", "decode-1"),), "us")
    assert timeline.to_event().region == "us"
    timeline.mark_lost("unavailable")
    timeline.begin_attempt(2, (("decode", "decode-2"),))
    assert timeline.to_event().region == ""
