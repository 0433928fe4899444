from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.engine import Engine, StepResult
from shared.errors import InternalError
from shared.worker.driver import CHECK_EVERY_S, EngineDriver
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.clock import FakeClock
from tests.support.engine import admit, make_engine, save_random_model
from tests.support.wait import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def driver(folder: Path, clock: FakeClock) -> AsyncIterator[EngineDriver[StepResult]]:
    driver: EngineDriver[StepResult] = EngineDriver(
        "test-engine", lambda: make_engine(folder), PrefixMirror(), lambda: None, clock
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
        assert go_on.wait(5.0)
        return engine.step()

    driver.begin_step(step)
    assert (driver.activity.busy, driver.activity.moved) == (True, moved)
    go_on.set()
    await until(driver.take_result)
    assert (driver.activity.busy, driver.activity.moved, driver.steps) == (False, moved + 1, 1)


async def test_a_call_between_steps_that_fails_is_over(driver: EngineDriver[StepResult]) -> None:
    with pytest.raises(ZeroDivisionError):
        await driver.between_steps(lambda _: 1 // 0)
    assert not driver.activity.busy
