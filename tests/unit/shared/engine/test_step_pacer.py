from __future__ import annotations

import pytest

from shared.engine.step_pacer import (
    LEAST_SHARE,
    REMEMBERED_STEPS,
    OwnRequests,
    StepPacer,
    WaitingPrompts,
)
from tests.support.clock import FakeClock

STEP_S = 0.01
TARGET_S = 0.25


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def paced(clock: FakeClock, prompt_weight: float, *, step_s: float = STEP_S) -> StepPacer:
    """That has seen enough steps to know what one takes, the last of them just ended."""
    pacer = StepPacer(prompt_weight, clock, itl_target_s=TARGET_S)
    for _ in range(REMEMBERED_STEPS):
        step(pacer, clock, step_s)
    return pacer


def step(pacer: StepPacer, clock: FakeClock, took_s: float) -> None:
    pacer.begin_step()
    clock.advance(took_s)
    pacer.end_step()


@pytest.mark.parametrize(
    ("prompt_weight", "requests", "prompts", "interval"),
    [(1.0, 1, 1, 2), (1.0, 4, 1, 1.25), (2.0, 4, 1, 1.5), (2.0, 1, 1, 3), (2.0, 2, 3, 4), (0.5, 1, 2, 2)],
)
def test_steps_take_the_share_of_their_requests(
    clock: FakeClock, prompt_weight: float, requests: int, prompts: int, interval: float
) -> None:
    pacer = paced(clock, prompt_weight)
    assert pacer.pause_s(OwnRequests(requests), WaitingPrompts(prompts)) == pytest.approx(
        (interval - 1) * STEP_S
    )


def test_a_prompt_of_its_own_weighs_as_much_as_one_that_waits(clock: FakeClock) -> None:
    pause_s = paced(clock, 2.0).pause_s(OwnRequests(streams=0, prompts=1), WaitingPrompts(1))
    assert pause_s == pytest.approx(STEP_S)


def test_where_no_prompt_waits_there_is_no_pause(clock: FakeClock) -> None:
    assert paced(clock, 2.0).pause_s(OwnRequests(4), WaitingPrompts()) == 0.0


def test_prompts_that_weigh_nothing_get_no_pause(clock: FakeClock) -> None:
    assert paced(clock, 0.0).pause_s(OwnRequests(4), WaitingPrompts(8)) == 0.0


def test_an_engine_without_requests_has_no_pause(clock: FakeClock) -> None:
    assert paced(clock, 2.0).pause_s(OwnRequests(0), WaitingPrompts(8)) == 0.0


def test_steps_get_their_least_share_however_many_prompts_wait(clock: FakeClock) -> None:
    pause_s = paced(clock, 2.0).pause_s(OwnRequests(1), WaitingPrompts(1000))
    assert pause_s == pytest.approx(STEP_S / LEAST_SHARE - STEP_S)


@pytest.mark.parametrize(("step_s", "pause_s"), [(0.2, 0.05), (TARGET_S, 0.0), (0.3, 0.0)])
def test_no_pause_makes_tokens_come_later_than_their_target(
    clock: FakeClock, step_s: float, pause_s: float
) -> None:
    pacer = paced(clock, 2.0, step_s=step_s)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1)) == pytest.approx(pause_s)


def test_a_step_that_may_be_as_slow_as_one_before_still_ends_in_time(clock: FakeClock) -> None:
    pacer = paced(clock, 2.0, step_s=0.1)
    step(pacer, clock, 0.2)
    step(pacer, clock, 0.1)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1000)) == pytest.approx(TARGET_S - 0.2)


def test_what_held_a_step_up_is_taken_from_the_pause_behind_it(clock: FakeClock) -> None:
    pacer = paced(clock, 2.0)
    step(pacer, clock, 2.5 * STEP_S)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1)) == pytest.approx(0.5 * STEP_S)


def test_the_pause_ends_at_its_time(clock: FakeClock) -> None:
    pacer = paced(clock, 1.0)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves=1)) == pytest.approx(STEP_S)
    clock.advance(0.75 * STEP_S)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves=2)) == pytest.approx(0.25 * STEP_S)
    clock.advance(0.25 * STEP_S)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves=3)) == 0.0


def paused(pacer: StepPacer, clock: FakeClock, moves: int, moves_after: int) -> bool:
    """Whether there is a pause behind one more step; prompts move from `moves` to `moves_after` in it."""
    step(pacer, clock, STEP_S)
    pause_s = pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves))
    clock.advance(pause_s)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves_after)) == 0.0
    return pause_s > 0.0


def test_prompts_that_stand_still_are_waited_for_once(clock: FakeClock) -> None:
    pacer = paced(clock, 2.0)
    assert paused(pacer, clock, 7, 7)
    assert not paused(pacer, clock, 7, 7)


def test_prompts_that_move_again_are_waited_for_again(clock: FakeClock) -> None:
    pacer = paced(clock, 2.0)
    assert paused(pacer, clock, 7, 7)
    assert paused(pacer, clock, 8, 9)
    assert paused(pacer, clock, 9, 10)


def test_a_step_that_took_as_long_as_the_interval_says_nothing_about_prompts(clock: FakeClock) -> None:
    pacer = paced(clock, 2.0)
    step(pacer, clock, 5 * STEP_S)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves=7)) == 0.0
    step(pacer, clock, STEP_S)
    assert pacer.pause_s(OwnRequests(1), WaitingPrompts(1, moves=7)) > 0.0
