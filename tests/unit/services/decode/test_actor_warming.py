"""A decode worker without streams computes what it is going to be asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.messages import WARM_EPOCH, Warm, pack_hashes, pack_ids
from tests.support.wait import until
from tests.unit.services.decode.test_actor import Worker

IDS, OTHER_IDS = range(1, 50), range(2, 51)
BLOCKS = 3


@pytest.fixture
async def worker(llm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr("services.decode.driver.MAX_UNTAKEN_REPORTS", 1)  # a step a turn
    worker = Worker(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


def names(worker: Worker, ids: range = IDS) -> list[bytes]:
    return BlockHasher().block_hashes(ids, BlockHasher().seed(worker._driver.engine.layout.fingerprint()))


async def warm(
    worker: Worker, request_id: str = "warmed", ids: range = IDS, *, patient: bool = False
) -> None:
    message = Warm(pack_ids(ids), pack_hashes(names(worker, ids)), "gateway-0", patient=patient)
    await worker.send(message, request_id, WARM_EPOCH)


def is_warming(worker: Worker) -> bool:
    return any(held.kind == "warming" for held in worker.held())


def cached_blocks(worker: Worker) -> int:
    return worker._mirror.overlap_blocks(names(worker))


async def test_a_prefix_is_computed_part_by_part_and_then_held_by_nobody(worker: Worker) -> None:
    await warm(worker)

    async def over() -> bool:
        await worker.step()
        return not list(worker.held())

    await until(over)
    assert (cached_blocks(worker), worker._driver.snapshot.held) == (BLOCKS, {})


async def test_nothing_is_warmed_beside_a_stream(worker: Worker) -> None:
    await worker.decode()
    await warm(worker)
    assert not is_warming(worker)


async def test_it_is_given_up_for_the_first_reservation(worker: Worker) -> None:
    await warm(worker)
    await worker.turn()
    assert worker._driver.computes_part
    await worker.decode()
    assert not is_warming(worker)
    assert cached_blocks(worker) == 2  # of the part that was under way


async def test_the_next_prefix_that_waits_is_begun_in_the_turn_in_which_one_ends(worker: Worker) -> None:
    """There may be nothing that wakes the worker for another turn."""
    await warm(worker, "one", patient=True)
    await warm(worker, "other", OTHER_IDS, patient=True)
    while is_warming(worker):
        await worker.step()
        assert worker._driver.computes_part == is_warming(worker)
    assert worker._mirror.overlap_blocks(names(worker, OTHER_IDS)) == BLOCKS


async def test_an_engine_without_a_prefix_cache_warms_nothing(llm_dir: Path) -> None:
    worker = Worker(llm_dir, prefix_cache=False)
    await worker.on_start()
    await warm(worker)
    assert not is_warming(worker)
    await worker.on_stop()
