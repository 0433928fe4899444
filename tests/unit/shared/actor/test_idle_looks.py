"""When a worker with nothing to do looks for idle memory."""

from __future__ import annotations

import asyncio
import math

import pytest

from shared.actor import idle_looks
from shared.actor.idle_looks import LOOK_AFTER_S, IdleLooks
from tests.support.clock import FakeClock


async def test_a_look_is_due_some_time_after_something_was_used_first() -> None:
    clock = FakeClock()
    looks, due = IdleLooks(lambda: None, clock), list[bool]()
    clock.advance(LOOK_AFTER_S)
    due.append(looks.due)
    looks.used()
    clock.advance(LOOK_AFTER_S - 1.0)
    looks.used()
    due.append(looks.due)
    clock.advance(1.0)
    due.append(looks.due)
    assert due == [False, False, True]
    looks.cancel()


async def test_no_look_is_due_once_all_is_given_back() -> None:
    clock = FakeClock()
    looks = IdleLooks(lambda: None, clock)
    looks.used()
    looks.look_in(math.inf)
    clock.advance(10 * LOOK_AFTER_S)
    assert not looks.due


async def test_the_worker_is_woken_for_the_look_and_not_for_one_that_was_given_up() -> None:
    woken = asyncio.Event()
    given_up: list[int] = []
    other = IdleLooks(lambda: given_up.append(1), FakeClock())
    other.look_in(0.0)
    other.cancel()
    looks = IdleLooks(woken.set, FakeClock())
    looks.look_in(0.0)
    async with asyncio.timeout(60):
        await woken.wait()
    assert (looks.due, given_up) == (True, [])


async def test_a_worker_that_was_busy_when_a_look_was_due_is_woken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_looks, "LOOK_AFTER_S", 0.0)
    woken, often = 0, asyncio.Event()

    def wake() -> None:
        nonlocal woken
        woken += 1
        if woken == 3:
            often.set()

    looks = IdleLooks(wake, FakeClock())
    looks.look_in(0.0)
    async with asyncio.timeout(60):
        await often.wait()
    looks.cancel()
    assert woken == 3
