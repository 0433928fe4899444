from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.engine import Engine, StepResult
from shared.errors import InternalError
from shared.worker.driver import CHECK_EVERY_S, EngineDriver
from shared.worker.prefix_mirror import PrefixMirror
from tests.support.clock import FakeClock
from tests.support.engine import admit, make_engine, save_random_model


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
