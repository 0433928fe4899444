from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest

from shared.actor.idle_looks import LOOK_AFTER_S
from shared.engine import BLOCK_TOKENS, NO_STEP, Engine, EngineConfig, StepResult
from shared.errors import InternalError, InvalidRequest
from shared.messages import unpack_hashes
from shared.worker.driver import CHECK_EVERY_S, EngineDriver
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.clock import FakeClock
from tests.support.engine import admit, make_engine
from tests.support.wait import until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def driver(model_dir: Path, clock: FakeClock) -> AsyncIterator[EngineDriver[StepResult]]:
    driver: EngineDriver[StepResult] = EngineDriver(
        "test-engine", lambda: make_engine(model_dir), PrefixMirror(), lambda: None, clock
    )
    await driver.load_engine()
    yield driver
    await driver.close_engine()


async def test_an_idle_engine_with_a_lost_reference_fails_its_worker(
    driver: EngineDriver[StepResult], clock: FakeClock
) -> None:
    await driver.between_steps(lambda engine: engine.blocks.allocate(1))
    clock.advance(CHECK_EVERY_S)
    with pytest.raises(InternalError, match="1 references, 0 explained"):
        await driver.flush_releases()


async def test_an_engine_is_not_checked_again_before_the_time(
    driver: EngineDriver[StepResult], clock: FakeClock
) -> None:
    await driver.between_steps(lambda engine: engine.blocks.allocate(1))
    clock.advance(CHECK_EVERY_S / 2)
    await driver.flush_releases()


async def test_an_engine_with_work_is_not_held_up_by_checks(
    driver: EngineDriver[StepResult], clock: FakeClock
) -> None:
    def work(engine: Engine) -> None:
        admit(engine, "a", [1, 2, 3])
        engine.blocks.allocate(1)

    await driver.between_steps(work)
    clock.advance(CHECK_EVERY_S)
    await driver.flush_releases()


async def test_an_engine_that_nobody_touched_is_not_checked_twice(
    driver: EngineDriver[StepResult], clock: FakeClock
) -> None:
    clock.advance(CHECK_EVERY_S)
    await driver.flush_releases()
    driver.engine.blocks.allocate(1)  # behind the driver's back
    clock.advance(CHECK_EVERY_S)
    await driver.flush_releases()


async def test_an_engine_is_busy_for_as_long_as_a_step_takes_and_counts_those_that_were_taken(
    driver: EngineDriver[StepResult],
) -> None:
    go_on = threading.Event()
    moved = driver.activity.moved

    def step(engine: Engine) -> StepResult:
        assert go_on.wait(60)
        return engine.step()

    driver.begin_step(step)
    assert (driver.activity.busy, driver.activity.moved) == (True, moved)
    go_on.set()
    await until(driver.take_result)
    assert (driver.activity.busy, driver.activity.moved, driver.steps) == (False, moved + 1, 1)


async def test_what_is_given_back_after_a_step_was_begun_is_given_back_after_it(
    driver: EngineDriver[StepResult],
) -> None:
    go_on = threading.Event()
    waiting = driver._thread.start(go_on.wait, 5.0)  # the step cannot begin before what follows is said

    def step(engine: Engine) -> StepResult:
        admit(engine, "a", [1, 2, 3])
        return engine.step()

    driver.begin_step(step)
    driver.release_later("a")
    go_on.set()
    assert await waiting
    await until(driver.take_result)
    assert "a" in driver.snapshot.held
    await driver.flush_releases()
    assert driver.snapshot.held == {}


async def test_a_call_between_steps_that_fails_is_over(driver: EngineDriver[StepResult]) -> None:
    with pytest.raises(ZeroDivisionError):
        await driver.between_steps(lambda _: 1 // 0)
    assert not driver.activity.busy


PART = 4
"""Blocks that an idle engine checks at a time, here."""


@pytest.fixture
def parts(driver: EngineDriver[StepResult], monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The pool in parts, filled with what was looked at."""
    seen: list[range] = []
    check = driver.engine.blocks.check

    def spy(holders: Iterable[Sequence[int]], blocks: range | None = None) -> None:
        assert blocks is not None
        seen.append(blocks)
        check(holders, blocks)

    monkeypatch.setattr(driver.engine.blocks, "check", spy)
    monkeypatch.setattr("shared.engine.engine.CHECK_BLOCKS", PART)
    return seen


async def test_an_idle_engine_is_checked_in_parts_of_bounded_size_and_once(
    driver: EngineDriver[StepResult], clock: FakeClock, parts: list[range]
) -> None:
    clock.advance(CHECK_EVERY_S)
    num_blocks = driver.engine.config.kv_blocks
    for _ in range(num_blocks):
        await driver.flush_releases()
    assert max(map(len, parts)) == PART
    assert [block for part in parts for block in part] == list(range(num_blocks))


async def test_what_happens_between_two_parts_is_checked_too(
    driver: EngineDriver[StepResult], clock: FakeClock, parts: list[range]
) -> None:
    async def idle(turns: int) -> None:
        for _ in range(turns):
            await driver.flush_releases()

    clock.advance(CHECK_EVERY_S)
    await idle(3)
    await driver.between_steps(lambda engine: engine.blocks.allocate(1))  # of the part that came first
    clock.advance(CHECK_EVERY_S)
    with pytest.raises(InternalError, match="1 references, 0 explained"):
        await idle(driver.engine.config.kv_blocks)


async def test_an_engine_whose_sequences_hold_more_than_a_part_is_checked_later(
    driver: EngineDriver[StepResult], clock: FakeClock, parts: list[range]
) -> None:
    num_tokens = (PART + 1) * BLOCK_TOKENS
    await driver.between_steps(lambda engine: engine.reserve("a", num_tokens, []))
    clock.advance(CHECK_EVERY_S)
    await driver.flush_releases()
    assert parts == []
    driver.release_later("a")
    await driver.flush_releases()
    clock.advance(CHECK_EVERY_S)
    await driver.flush_releases()
    assert parts == [range(PART)]


async def test_a_call_waits_for_the_step_that_runs_and_gets_its_answer(
    driver: EngineDriver[StepResult],
) -> None:
    go_on = threading.Event()
    driver.begin_step(lambda engine: engine.step() if go_on.wait(60) else NO_STEP)
    answer = driver.call_soon(lambda engine: engine.config.kv_blocks)
    refused = driver.call_soon(lambda engine: engine.lend("nobody", "loan"))
    go_on.set()
    await until(lambda: driver.take_result() is not None)
    assert not answer.done()
    await driver.flush_releases()
    assert await answer == driver.engine.config.kv_blocks
    with pytest.raises(InvalidRequest, match="is not running here"):
        await refused


async def test_a_call_between_layers_waits_for_no_step_and_is_made_once(
    driver: EngineDriver[StepResult],
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def step(_: Engine) -> StepResult:
        asked.wait(60)
        driver.carry_out_between_layers()
        answered.wait(60)
        return NO_STEP

    driver.begin_step(step)
    calls: list[int] = []
    soon = driver.call_soon(lambda _: calls.append(1), between_layers=True)
    later = driver.call_soon(lambda _: calls.append(2))
    asked.set()
    async with asyncio.timeout(60):
        await soon
    assert (calls, driver.stepping) == ([1], True)
    answered.set()
    await until(lambda: driver.take_result() is not None)
    await driver.flush_releases()
    await later
    assert calls == [1, 2]


async def test_a_call_that_nobody_waits_for_any_more_is_made_all_the_same(
    driver: EngineDriver[StepResult],
) -> None:
    driver.call_soon(lambda engine: admit(engine, "a", [1, 2, 3])).cancel()
    await driver.flush_releases()
    assert driver.snapshot.held == {"a": 1}


IDLE_S = 60.0


@pytest.fixture
async def idle_driver(model_dir: Path, clock: FakeClock) -> AsyncIterator[EngineDriver[StepResult]]:
    """An engine that gives idle memory back, with a prompt in its prefix cache."""
    config = EngineConfig(str(model_dir), kv_blocks=64, max_sequences=16, kv_idle_s=IDLE_S)
    driver: EngineDriver[StepResult] = EngineDriver(
        "test-engine", lambda: Engine(config, clock=clock), PrefixMirror(), lambda: None, clock
    )

    def cache_a_prompt(engine: Engine) -> None:
        admit(engine, "a", list(range(3, 3 + 2 * BLOCK_TOKENS + 1)))
        while engine.has_work:
            engine.step()
        engine.release("a")

    await driver.load_engine()
    await driver.between_steps(cache_a_prompt)
    assert driver.engine.blocks.num_cached > 1
    yield driver
    await driver.close_engine()


async def test_an_idle_engine_gives_memory_back_and_others_hear_what_it_has_no_more(
    idle_driver: EngineDriver[StepResult], clock: FakeClock
) -> None:
    added = unpack_hashes(idle_driver._mirror.drain().added)
    clock.advance(LOOK_AFTER_S)
    await idle_driver.flush_releases()  # a look: not idle yet
    assert idle_driver.snapshot.resident_blocks > len(added)
    clock.advance(IDLE_S)
    await idle_driver.flush_releases()
    assert idle_driver.snapshot.resident_blocks == 0
    assert set(unpack_hashes(idle_driver._mirror.drain().removed)) == set(added)
    clock.advance(10 * IDLE_S)
    await idle_driver.flush_releases()  # nothing is left to look for: counts are checked instead
    assert idle_driver._unchecked_blocks == 0


async def test_an_engine_with_work_gives_nothing_back(
    idle_driver: EngineDriver[StepResult], clock: FakeClock
) -> None:
    cached = idle_driver.engine.blocks.num_cached
    await idle_driver.between_steps(lambda engine: admit(engine, "b", [1, 2, 3]))
    clock.advance(10 * IDLE_S)
    await idle_driver.flush_releases()
    assert idle_driver.engine.blocks.num_cached == cached
    idle_driver.release_later("b")
    await idle_driver.flush_releases()
    await idle_driver.flush_releases()
    assert idle_driver.engine.blocks.num_cached == 0
    assert idle_driver.snapshot.resident_blocks == 1  # what "b" had is not idle yet
