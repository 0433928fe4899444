"""The fleet as heartbeats tell it: joins, silence, new lives, prefix events."""

from __future__ import annotations

import pytest

from shared.blocks.layer_groups import KvGroups
from shared.bus.fleet_state import (
    FORGET_AFTER_S,
    HEARTBEAT_S,
    MAX_INSTANCES,
    MAX_NEXT_S,
    SUSPECT_AFTER_S,
    FleetState,
)
from shared.deadline import MAX_SKEW_US, ClockReading, Deadline
from shared.messages import Heartbeat, Snapshot
from tests.support.block_hashes import numbered_hashes, packed_hashes
from tests.support.clock import FakeClock
from tests.support.heartbeats import heartbeat_with, make_heartbeat


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lost() -> list[tuple[str, str, str]]:
    return []


@pytest.fixture
def fleet(clock: FakeClock, lost: list[tuple[str, str, str]]) -> FleetState:
    state = FleetState(clock, keeps_prefixes=True)
    state.on_lost(lambda role, instance, why: lost.append((role, instance, why)))
    return state


def beat(
    instance: str = "decode-0", *, role: str = "decode", incarnation: int = 1, **fields: object
) -> Heartbeat:
    blank = make_heartbeat(
        role, instance, incarnation=incarnation, sent_unix_us=1700000000000000, host="host", pid=1
    )
    return heartbeat_with(blank, **fields)


def names(fleet: FleetState, role: str = "decode") -> list[str]:
    return [view.heartbeat.instance for view in fleet.instances(role)]


def test_only_ready_instances_of_the_role_take_work(fleet: FleetState) -> None:
    fleet.observe(beat("decode-0"))
    fleet.observe(beat("decode-1", state="loading"))
    fleet.observe(beat("decode-2", state="draining"))
    fleet.observe(beat("prefill-0", role="prefill"))
    assert names(fleet) == ["decode-0"]
    assert len(fleet.all()) == 4


def test_the_latest_heartbeat_is_kept(fleet: FleetState) -> None:
    fleet.observe(beat(live=1))
    fleet.observe(beat(live=2))
    view = fleet.get("decode", "decode-0")
    assert view is not None
    assert view.heartbeat.live == 2


def test_a_heartbeat_that_was_held_back_says_nothing_new(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat(state="draining", sent_steady_us=2_000))
    clock.advance(0.1)
    assert fleet.observe(beat(state="ready", sent_steady_us=1_000)) is None
    view = fleet.get("decode", "decode-0")
    assert view is not None
    assert (view.heartbeat.state, names(fleet)) == ("draining", [])
    assert view.last_seen_s == clock.monotonic_s() - 0.1


@pytest.mark.parametrize(
    ("next_ms", "silent_s"),
    [(250, 0.75), (2000, 2.5), (0, 0.75), (int(MAX_NEXT_S * 1e3) + 1, MAX_NEXT_S + 0.5)],
)
def test_a_suspect_has_missed_the_beat_that_it_promised_and_two_more(
    fleet: FleetState, clock: FakeClock, next_ms: int, silent_s: float
) -> None:
    fleet.observe(beat(next_ms=next_ms))
    clock.advance(silent_s - 0.001)
    assert not fleet.anyone_silent()
    clock.advance(0.002)
    assert fleet.anyone_silent()


def test_three_missed_beats_make_a_suspect_and_it_is_told_once(
    fleet: FleetState, clock: FakeClock, lost: list[tuple[str, str, str]]
) -> None:
    fleet.observe(beat())
    clock.advance(SUSPECT_AFTER_S - 0.01)
    fleet.sweep()
    assert lost == []
    clock.advance(0.02)
    fleet.sweep()
    fleet.sweep()
    assert lost == [("decode", "decode-0", "suspect")]
    assert names(fleet) == []


def test_a_suspect_that_speaks_again_takes_work_again(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat())
    clock.advance(1)
    fleet.sweep()
    fleet.observe(beat())
    assert names(fleet) == ["decode-0"]


def test_a_suspect_that_stays_silent_is_forgotten(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat())
    clock.advance(FORGET_AFTER_S)
    fleet.sweep()
    assert fleet.all() == []


def test_a_new_incarnation_means_the_old_life_is_lost(
    fleet: FleetState, lost: list[tuple[str, str, str]]
) -> None:
    fleet.observe(beat(incarnation=1, prefix_event_id=1, added=packed_hashes(7)))
    fleet.observe(beat(incarnation=2))
    assert lost == [("decode", "decode-0", "restarted")]
    view = fleet.get("decode", "decode-0")
    assert view is not None
    assert view.prefix == set()


def test_a_heartbeat_of_a_former_life_is_ignored(fleet: FleetState, lost: list[tuple[str, str, str]]) -> None:
    fleet.observe(beat(incarnation=2, live=5))
    assert fleet.observe(beat(incarnation=1, state="stopped")) is None
    assert names(fleet) == ["decode-0"]
    assert lost == []


def test_a_life_with_an_earlier_clock_replaces_a_suspect(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat(incarnation=2))
    clock.advance(1)
    fleet.sweep()
    fleet.observe(beat(incarnation=1))
    assert names(fleet) == ["decode-0"]


def test_a_stopped_instance_leaves_at_once(fleet: FleetState, lost: list[tuple[str, str, str]]) -> None:
    fleet.observe(beat())
    fleet.observe(beat(state="stopped"))
    assert fleet.all() == []
    assert lost == [("decode", "decode-0", "stopped")]


def test_who_says_that_it_is_stalled_takes_no_work_and_is_reported_once(
    fleet: FleetState, lost: list[tuple[str, str, str]]
) -> None:
    fleet.observe(beat())
    fleet.observe(beat(state="stalled", stalled_ms=5000))
    fleet.observe(beat(state="stalled", stalled_ms=5250))
    assert names(fleet) == []
    assert lost == [("decode", "decode-0", "suspect")]
    fleet.observe(beat())
    assert names(fleet) == ["decode-0"]
    fleet.observe(beat(state="stalled", stalled_ms=5000))
    assert len(lost) == 2


def test_silence_while_we_could_not_listen_blames_nobody(
    fleet: FleetState, clock: FakeClock, lost: list[tuple[str, str, str]]
) -> None:
    fleet.observe(beat())
    clock.advance(5)
    fleet.excuse(5)
    fleet.sweep()
    assert lost == []
    clock.advance(SUSPECT_AFTER_S)
    fleet.sweep()
    assert lost == [("decode", "decode-0", "suspect")]


def test_an_excuse_is_not_taken_for_a_heartbeat(fleet: FleetState, clock: FakeClock) -> None:
    view = fleet.observe(beat())
    assert view is not None
    came_s = view.last_seen_s
    clock.advance(5)
    fleet.excuse(5)
    assert (view.last_seen_s, view.silent_since_s) == (came_s, came_s + 5)
    fleet.observe(beat())
    assert view.last_seen_s == view.silent_since_s == came_s + 5


def test_who_would_be_suspected_next_is_known_before(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat())
    clock.advance(SUSPECT_AFTER_S - 0.001)
    assert not fleet.anyone_silent()
    clock.advance(0.001)
    assert fleet.anyone_silent()
    fleet.sweep()
    assert not fleet.anyone_silent()  # a suspect is known already


def test_an_excuse_never_lies_in_the_future(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat())
    fleet.excuse(100)
    clock.advance(1)
    fleet.sweep()
    assert names(fleet) == []


def test_a_failing_listener_does_not_keep_the_next_from_hearing(fleet: FleetState) -> None:
    heard: list[str] = []

    def broken(_role: str, _instance: str, _why: str) -> None:
        raise ValueError("listener")

    fleet.on_lost(broken)
    fleet.on_lost(lambda _role, instance, _why: heard.append(instance))
    fleet.observe(beat())
    fleet.observe(beat(state="stopped"))
    assert heard == ["decode-0"]


def test_the_table_is_bounded(fleet: FleetState) -> None:
    for number in range(MAX_INSTANCES + 5):
        fleet.observe(beat(f"decode-{number}"))
    assert len(fleet.all()) == MAX_INSTANCES


def test_a_clock_far_off_is_named(fleet: FleetState, clock: FakeClock) -> None:
    fleet.observe(beat("decode-0", sent_unix_us=clock.unix_us() - 300))
    fleet.observe(beat("decode-1", sent_unix_us=clock.unix_us() + MAX_SKEW_US + 1000))
    assert fleet.skewed() == ("decode-1",)


@pytest.mark.parametrize("step_s", [120.0, -7.0, -120.0])
def test_a_time_of_day_that_is_set_is_told_at_the_next_heartbeat_and_moves_no_deadline(
    fleet: FleetState, clock: FakeClock, step_s: float
) -> None:
    gateway = FakeClock(unix_us=clock.unix_us() + 7_000_000)

    def heard() -> Deadline:
        """A deadline of the gateway in 5 s, as it is here, after a heartbeat that took 300 µs."""
        sent = ClockReading.now(gateway)
        stamped_us = Deadline.after(5.0, gateway).to_steady_us(0, gateway)
        for each in (gateway, clock):
            each.advance(0.0003)
        fleet.observe(
            beat(
                "gateway-0",
                role="gateway",
                sent_unix_us=sent.unix_us,
                sent_steady_us=sent.steady_us,
            )
        )
        return Deadline.from_steady_us(stamped_us, fleet.origins.offset_us("gateway-0"), clock)

    heard()
    for stepped in (gateway, clock):
        stepped.set_on(step_s)
        assert heard().remaining_s(clock) == pytest.approx(5.0, abs=0.001)
        apart_us = clock.unix_us() - gateway.unix_us()
        assert fleet.offsets.skew_us("gateway-0") == pytest.approx(apart_us, abs=1000)


def test_who_has_its_connection_again_is_told_of_once(fleet: FleetState) -> None:
    reconnected: list[tuple[str, str]] = []
    fleet.on_reconnected = lambda role, instance: reconnected.append((role, instance))
    fleet.observe(beat(reconnects=3))  # whoever is new has missed nothing of ours
    fleet.observe(beat(reconnects=4))
    fleet.observe(beat(reconnects=4))
    assert reconnected == [("decode", "decode-0")]


# ---- prefix events -----------------------------------------------------------------------------


def prefix_of(fleet: FleetState) -> tuple[set[int], bool]:
    view = fleet.get("decode", "decode-0")
    assert view is not None
    return {int.from_bytes(name, "big") for name in view.prefix}, view.prefix_stale


def events(event_id: int, added: list[int], removed: list[int] | None = None) -> Heartbeat:
    return beat(
        prefix_event_id=event_id, added=packed_hashes(*added), removed=packed_hashes(*(removed or []))
    )


def test_events_without_a_gap_build_the_prefix_set(fleet: FleetState) -> None:
    fleet.observe(events(2, [1, 2]))
    fleet.observe(events(4, [3], [1]))
    assert prefix_of(fleet) == ({2, 3}, False)


def test_a_missed_event_makes_the_set_stale_until_a_snapshot(fleet: FleetState) -> None:
    fleet.observe(events(2, [1, 2]))
    fleet.observe(events(4, [4]))
    assert prefix_of(fleet)[1]
    fleet.apply_snapshot("decode", "decode-0", 1, Snapshot(4, packed_hashes(1, 2, 3, 4)))
    assert prefix_of(fleet) == ({1, 2, 3, 4}, False)


def test_joining_an_instance_with_a_past_asks_for_a_snapshot(fleet: FleetState) -> None:
    fleet.observe(events(9, []))
    assert prefix_of(fleet)[1]


def test_events_that_a_snapshot_already_holds_may_come_again(fleet: FleetState) -> None:
    fleet.observe(events(9, []))
    fleet.apply_snapshot("decode", "decode-0", 1, Snapshot(11, packed_hashes(1, 2)))
    fleet.observe(events(12, [2, 3], [1]))
    assert prefix_of(fleet) == ({2, 3}, False)


def test_a_snapshot_of_a_former_life_is_ignored(fleet: FleetState) -> None:
    fleet.observe(beat(incarnation=2))
    fleet.apply_snapshot("decode", "decode-0", 1, Snapshot(1, packed_hashes(5)))
    assert prefix_of(fleet) == (set(), False)


@pytest.mark.parametrize(("keeps", "role"), [(False, "decode"), (False, "prefill"), (True, "speculator")])
def test_who_places_nothing_there_keeps_no_prefixes(clock: FakeClock, keeps: bool, role: str) -> None:
    fleet = FleetState(clock, keeps_prefixes=keeps)
    for event_id in (2, 40):  # with a gap
        view = fleet.observe(beat(role=role, prefix_event_id=event_id, added=packed_hashes(1, 2)))
        assert view is not None
        assert (view.prefix, view.prefix_stale) == (set(), False)


# ---- pages of a snapshot -----------------------------------------------------------------------


def page(event_id: int, numbers: list[int], next_bucket: int = 0) -> Snapshot:
    return Snapshot(event_id, packed_hashes(*numbers), next_bucket)


def apply_page(fleet: FleetState, snapshot: Snapshot, bucket: int = 0) -> int | None:
    return fleet.apply_snapshot("decode", "decode-0", 1, snapshot, bucket)


def test_a_set_is_stale_until_the_last_page_has_come(fleet: FleetState) -> None:
    fleet.observe(events(9, []))
    assert apply_page(fleet, page(9, [1], next_bucket=5)) == 5
    assert prefix_of(fleet) == ({1}, True)
    assert apply_page(fleet, page(9, [2]), 5) is None
    assert prefix_of(fleet) == ({1, 2}, False)


def test_events_between_pages_change_what_has_come_and_later_pages_have_them_already(
    fleet: FleetState,
) -> None:
    fleet.observe(events(9, []))
    apply_page(fleet, page(9, [1, 2], next_bucket=5))
    fleet.observe(events(12, [3, 6], [1]))
    assert apply_page(fleet, page(14, [6, 7], next_bucket=8), 5) == 8  # two events more than we have heard
    fleet.observe(events(14, [7], [2]))
    assert apply_page(fleet, page(14, [9]), 8) is None
    assert prefix_of(fleet) == ({3, 6, 7, 9}, False)


def test_a_page_that_events_have_overtaken_is_asked_for_again(fleet: FleetState) -> None:
    fleet.observe(events(9, []))
    apply_page(fleet, page(9, [1], next_bucket=5))
    fleet.observe(events(10, [], [7]))
    assert apply_page(fleet, page(9, [7]), 5) == 5
    assert apply_page(fleet, page(10, []), 5) is None
    assert prefix_of(fleet) == ({1}, False)


def test_a_gap_between_pages_begins_anew(fleet: FleetState) -> None:
    fleet.observe(events(9, []))
    apply_page(fleet, page(9, [1], next_bucket=5))
    fleet.observe(events(20, []))
    assert apply_page(fleet, page(20, [2]), 5) == 0
    assert apply_page(fleet, page(20, [3])) is None
    assert prefix_of(fleet) == ({3}, False)


def test_overlap_counts_leading_blocks_only(fleet: FleetState) -> None:
    view = fleet.observe(events(3, [1, 2, 4]))
    assert view is not None
    assert view.overlap(numbered_hashes([1, 2, 3, 4])) == 2
    assert view.overlap(numbered_hashes([9, 1])) == 0
    assert view.overlap(numbered_hashes([1, 2])) == 2


def test_overlap_with_a_window_needs_that_alone(fleet: FleetState) -> None:
    view = fleet.observe(heartbeat_with(events(2, [5, 6]), kv_groups=KvGroups(0, 1, 17)))
    assert view is not None
    assert view.overlap(numbered_hashes([1, 2, 3, 4, 5, 6, 7])) == 6


def test_a_suspect_is_declared_after_three_beats() -> None:
    assert pytest.approx(3 * HEARTBEAT_S) == SUSPECT_AFTER_S
