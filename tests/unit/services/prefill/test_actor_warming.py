"""A prefill worker that has nothing better to do computes what it is going to be asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.blocks.block_hash import BlockHasher
from shared.engine import StepResult
from shared.errors import Cancelled, InvalidRequest, Overloaded, StaleEpoch
from shared.messages import WARM_EPOCH, AdapterId, Cancel, CancelAck, Lost, Warm, pack_hashes, pack_ids
from tests.support.wait import until
from tests.unit.services.prefill.test_actor import CHUNK, PROMPT, Worker

GATEWAY = "gateway-0"
BLOCKS = len(PROMPT) // CHUNK


@pytest.fixture
async def worker(llm_dir: Path) -> AsyncIterator[Worker]:
    worker = Worker(llm_dir)
    await worker.on_start()
    yield worker
    await worker.on_stop()


def names(worker: Worker) -> list[bytes]:
    return BlockHasher().block_hashes(PROMPT, BlockHasher().seed(worker._driver.engine.layout.fingerprint()))


async def warm(worker: Worker, request_id: str = "r", *, adapter: str = "") -> None:
    message = Warm(pack_ids(PROMPT), pack_hashes(names(worker)), GATEWAY, AdapterId(adapter, ""))
    await worker.on_message(worker.sent.asked(message, request_id, WARM_EPOCH))


def cached_blocks(worker: Worker) -> int:
    return worker._mirror.overlap_blocks(names(worker))


async def until_over(worker: Worker) -> None:
    async def over() -> bool:
        await worker.step()
        return not list(worker.held())

    await until(over)


async def test_a_prefix_is_computed_part_by_part_and_then_held_by_nobody(worker: Worker) -> None:
    await warm(worker)
    found = []
    while list(worker.held()):
        await worker.step()
        found.append(cached_blocks(worker))
    assert found[:2] == [0, 1]  # a turn takes what the last one began
    assert (found[-1], worker._driver.snapshot.held) == (BLOCKS, {})


async def test_it_is_given_up_between_two_parts_for_any_prompt(worker: Worker) -> None:
    await warm(worker)
    await worker.step()
    await worker.place("other")
    await worker.until_first_token("other")
    assert cached_blocks(worker) == 1
    assert [held.request_id for held in worker.held() if held.kind == "warming"] == []


async def test_nothing_is_warmed_while_a_prompt_waits(worker: Worker) -> None:
    await worker.place("other")
    await warm(worker)
    assert [held.kind for held in worker.held()] == ["queued"]


async def test_it_goes_on_beside_kv_that_is_on_its_way(worker: Worker) -> None:
    await worker.place("other")
    await worker.until_first_token("other")
    await worker.step()
    await warm(worker)

    async def warmed() -> bool:
        await worker.step()
        return cached_blocks(worker) == BLOCKS

    await until(warmed)


async def test_a_cancel_ends_it_and_refuses_a_later_one(worker: Worker) -> None:
    await warm(worker)
    await worker.step()
    assert await worker.send(Cancel("replaced"), epoch=WARM_EPOCH) == CancelAck(held=True, phase="warming")
    assert list(worker.held()) == []
    await worker.step()
    assert cached_blocks(worker) == 1
    with pytest.raises(Cancelled):
        await warm(worker)
    await worker.place()  # its route comes after that


async def test_it_ends_with_its_gateway(worker: Worker) -> None:
    await warm(worker)
    await worker.on_instance_lost("gateway", GATEWAY, "suspect")
    assert list(worker.held()) != []
    await worker.on_instance_lost("gateway", GATEWAY, "stopped")
    assert list(worker.held()) == []


async def test_one_that_comes_behind_its_placement_is_stale(worker: Worker) -> None:
    await worker.place()
    with pytest.raises(StaleEpoch):
        await warm(worker)


async def test_another_gateways_is_refused(worker: Worker) -> None:
    message = Warm(pack_ids(PROMPT), b"", GATEWAY)
    delivery = worker.sent.asked(message, "r", WARM_EPOCH)
    with pytest.raises(InvalidRequest, match="gateway-1"):
        await worker.on_message(type(delivery)(delivery.envelope, message, "gateway-1"))


async def test_one_with_an_adapter_that_is_not_here_is_refused(worker: Worker) -> None:
    with pytest.raises(Overloaded, match="adapter"):
        await warm(worker, adapter="unknown")


async def test_a_worker_that_ends_takes_none(worker: Worker) -> None:
    worker._service.stopping.set()
    await warm(worker)
    assert list(worker.held()) == []


async def test_who_asked_for_what_the_engine_failed_over_hears_of_it(llm_dir: Path) -> None:
    worker = Worker(llm_dir)
    await worker.on_start()

    def fail() -> StepResult:
        raise ZeroDivisionError

    await warm(worker)
    worker._driver.engine.step = fail  # type: ignore[method-assign]
    await worker.step()
    with pytest.raises(ZeroDivisionError):
        await worker.turn()
    await worker.on_stop()
    (told,) = [sent for sent in worker.sent.noted.sent if isinstance(sent.message, Lost)]
    assert isinstance(told.message, Lost)
    assert (told.envelope.request_id, told.envelope.epoch, told.message.code) == (
        "r",
        WARM_EPOCH,
        "engine_fault",
    )


async def test_who_was_warmed_before_an_engine_failed_over_another_hears_nothing(llm_dir: Path) -> None:
    worker = Worker(llm_dir)
    await worker.on_start()

    def fail() -> StepResult:
        raise ZeroDivisionError

    await warm(worker)
    await worker.step()
    await worker.place("other")
    worker._driver.engine.step = fail  # type: ignore[method-assign]
    await worker.step()
    with pytest.raises(ZeroDivisionError):
        await worker.turn()
    await worker.on_stop()
    lost = [sent.envelope.request_id for sent in worker.sent.noted.sent if isinstance(sent.message, Lost)]
    assert lost == ["other"]
