"""The watchdog: who is busy and does not move is found at the limit, and nobody else."""

from __future__ import annotations

import asyncio

import pytest

from shared.health import Activity, LoopActivity, Stall, Watchdog
from shared.health.watchdog import END_FACTOR, LOOK_S, MOST_PER_LOOK_S, REST_LOOK_S, WATCHDOG_S
from shared.ticks import seconds_to_tick
from tests.support.clock import FakeClock
from tests.support.wait import until

LIMIT_LOOKS = round(WATCHDOG_S / LOOK_S)


class Watched:
    """A watchdog over some activities, and what it ended the process for."""

    def __init__(self, *activities: Activity) -> None:
        self.clock = FakeClock()
        self.ended: list[Stall] = []
        self.watchdog = Watchdog(lambda: activities, self.ended.append, clock=self.clock)

    def check(self, count: int = 1, after_s: float = LOOK_S) -> None:
        for _ in range(count):
            self.clock.advance(after_s)
            self.watchdog.check()


@pytest.fixture
def engine() -> Activity:
    return Activity("the engine")


@pytest.fixture
def watched(engine: Activity) -> Watched:
    return Watched(engine)


def test_what_is_busy_and_does_not_move_is_stalled_at_the_limit_and_not_before(
    engine: Activity, watched: Watched
) -> None:
    engine.begin()
    watched.check(LIMIT_LOOKS)  # the first one saw it busy; its time counts from there
    assert watched.watchdog.worst == Stall("the engine", WATCHDOG_S - LOOK_S)
    assert watched.watchdog.why == ""
    watched.check()
    assert watched.watchdog.stalled
    assert watched.watchdog.why == "the engine has not moved for 5.0 s though it has work"


def test_the_process_ends_after_the_threefold_and_not_before(engine: Activity, watched: Watched) -> None:
    engine.begin()
    watched.check(END_FACTOR * LIMIT_LOOKS)
    assert watched.ended == []
    watched.check()
    assert watched.ended == [Stall("the engine", END_FACTOR * WATCHDOG_S)]


def test_what_moves_in_its_work_is_busy_and_well(engine: Activity, watched: Watched) -> None:
    engine.begin()
    for _ in range(3):
        watched.check(LIMIT_LOOKS)
        engine.move()
    assert not watched.watchdog.stalled


def test_a_piece_of_work_after_another_is_not_one_long_one(engine: Activity, watched: Watched) -> None:
    for _ in range(3):
        engine.begin()
        watched.check(LIMIT_LOOKS)
        engine.end()
    assert not watched.watchdog.stalled


def test_who_has_nothing_to_do_is_well(watched: Watched) -> None:
    watched.check(10 * LIMIT_LOOKS)
    assert watched.watchdog.worst.stalled_s == 0.0


def test_what_moves_again_is_well_again(engine: Activity, watched: Watched) -> None:
    engine.begin()
    watched.check(LIMIT_LOOKS + 1)
    engine.move()
    watched.check()
    assert watched.watchdog.why == ""


def test_the_time_of_a_stopped_process_is_not_counted(engine: Activity, watched: Watched) -> None:
    engine.begin()
    watched.check()
    watched.check(after_s=600.0)
    assert watched.watchdog.worst.stalled_s == MOST_PER_LOOK_S
    assert watched.ended == []


def test_on_a_starved_machine_everybody_gets_as_much_longer_as_the_watchdog(
    engine: Activity, watched: Watched
) -> None:
    engine.begin()
    watched.check()
    watched.check(LIMIT_LOOKS // 2 - 1, after_s=3.0)
    assert watched.watchdog.why == ""
    watched.check(after_s=3.0)
    assert watched.watchdog.stalled


def test_the_worst_of_several_is_named() -> None:
    early, late, well = Activity("early"), Activity("late"), Activity("well")
    watched = Watched(well, late, early)
    early.begin()
    watched.check(4)
    late.begin()
    watched.check(LIMIT_LOOKS)
    assert watched.watchdog.worst.name == "early"


def test_an_actor_that_was_started_anew_starts_without_a_past(engine: Activity) -> None:
    activities = [engine]
    clock = FakeClock()
    watchdog = Watchdog(lambda: activities, lambda _: None, clock=clock)
    for activity in (engine, Activity("its successor")):
        activities[:] = [activity]
        activity.begin()
        for _ in range(LIMIT_LOOKS):
            clock.advance(LOOK_S)
            watchdog.check()
    assert not watchdog.stalled


def test_several_pieces_of_work_keep_it_busy_until_the_last_has_ended(engine: Activity) -> None:
    engine.begin()
    engine.begin()
    engine.end()
    assert engine.busy
    engine.end()
    assert not engine.busy


async def test_a_loop_that_takes_turns_moves_at_each_look() -> None:
    loop = LoopActivity(asyncio.get_running_loop())
    watched = Watched(loop)
    for _ in range(LIMIT_LOOKS + 2):
        watched.check()
        await asyncio.sleep(0)
    assert not watched.watchdog.stalled
    assert loop.moved == LIMIT_LOOKS + 2


async def test_a_loop_that_takes_no_turn_is_stalled() -> None:
    watched = Watched(LoopActivity(asyncio.get_running_loop()))
    watched.check(LIMIT_LOOKS + 1)
    assert watched.watchdog.why.startswith("the event loop has not moved for 5.0 s")


async def test_a_loop_is_named_before_the_actor_that_it_keeps_from_moving(engine: Activity) -> None:
    watched = Watched(LoopActivity(asyncio.get_running_loop()), engine)
    engine.begin()
    watched.check(LIMIT_LOOKS + 1)
    assert watched.watchdog.why.startswith("the event loop has not moved for 5.0 s")


def test_a_process_at_rest_is_looked_at_less_often_until_something_is_busy(
    engine: Activity, watched: Watched
) -> None:
    watched.check()
    assert watched.watchdog.pause_s == seconds_to_tick(REST_LOOK_S, watched.clock)
    engine.begin()
    watched.check()
    assert watched.watchdog.pause_s == LOOK_S
    engine.end()
    watched.check()
    assert watched.watchdog.pause_s == seconds_to_tick(REST_LOOK_S, watched.clock)


async def test_a_loop_that_takes_its_turns_is_at_rest_and_one_that_is_held_up_is_not() -> None:
    watched = Watched(LoopActivity(asyncio.get_running_loop()))
    watched.check()
    watched.check()  # nobody has let the loop take the turn that the first one asked for
    assert watched.watchdog.pause_s == LOOK_S
    await asyncio.sleep(0)
    watched.check()
    assert watched.watchdog.pause_s == seconds_to_tick(REST_LOOK_S, watched.clock)


async def test_a_loop_that_stops_at_rest_is_found_within_the_limit_and_two_looks() -> None:
    watched = Watched(LoopActivity(asyncio.get_running_loop()))
    watched.check()
    await asyncio.sleep(0)  # its last turn
    passed_s = 0.0
    while not watched.watchdog.stalled:
        pause_s = watched.watchdog.pause_s
        watched.check(after_s=pause_s)
        passed_s += pause_s
    assert passed_s <= WATCHDOG_S + REST_LOOK_S


def test_a_process_that_was_stopped_at_rest_has_not_stood_still_meanwhile(
    engine: Activity, watched: Watched
) -> None:
    watched.check()
    engine.begin()
    watched.check(after_s=600.0)
    watched.check(after_s=600.0)
    assert watched.watchdog.worst.stalled_s <= REST_LOOK_S


@pytest.mark.parametrize("limit_s", [0.5, 1.0, 4.0, 5.0, 3600.0])
def test_there_are_two_looks_at_least_within_a_limit(limit_s: float) -> None:
    clock = FakeClock()
    watchdog = Watchdog(lambda: (), lambda _: None, limit_s=limit_s, clock=clock)
    watchdog.check()
    assert watchdog.pause_s == min(REST_LOOK_S, limit_s / 2)


async def test_a_started_watchdog_looks_until_it_is_stopped_whatever_a_look_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.health.watchdog.LOOK_S", 0.001)
    looks: list[int] = []

    def activities() -> list[Activity]:
        looks.append(len(looks))
        if len(looks) == 1:
            raise ValueError("once")
        return []

    watchdog = Watchdog(activities, lambda _: None, limit_s=0.005)
    watchdog.start()
    await until(lambda: len(looks) > 3)
    watchdog.stop()
    count = len(looks)
    watchdog.stop()
    assert len(looks) == count
