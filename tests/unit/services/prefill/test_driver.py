"""How the prefill worker drives its engine."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from services.prefill.driver import PrefillDriver
from services.prefill.job import PrefillJob, read_job
from services.prefill.step_events import StepEvents
from shared.blocks.block_hash import BlockHasher
from shared.deadline import Deadline
from shared.fairness.share import OPEN_SHARE
from shared.messages import Envelope, Prefill, pack_hashes, pack_ids
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.warming.warm_part import WarmPart, WarmPrefix
from tests.support.block_hashes import hashes_of
from tests.support.engine import make_engine
from tests.support.sampling import sampling
from tests.support.wait import until

IDS = list(range(1, 40))


def job_of(ids: list[int], names: bytes) -> PrefillJob:
    prefill = Prefill(pack_ids(ids), len(ids), names, sampling(), "g", "d", "decode-0", 0)
    envelope = Envelope(f"r{ids[0]}", 1)
    return read_job(envelope, prefill, Deadline.after(60.0), vocab_size=64, max_model_len=64, now_s=0.0)


async def test_every_layer_of_a_chunk_is_a_move_of_the_engine(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    job = job_of(IDS, b"")
    heard: list[int] = []
    await driver.admit([job], [lambda layer, *_: heard.append(layer)])
    moved = driver.activity.moved
    driver.begin_step(lambda engine: engine.step())
    await until(driver.take_result)
    layers = driver.engine.layout.num_layers
    assert heard == list(range(layers))
    assert driver.activity.moved == moved + layers + 1
    await driver.close_engine()


async def test_what_is_given_back_goes_with_the_next_chunk_to_the_engine(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    gone, goes_on = job_of(IDS, b""), job_of([7, *IDS], b"")
    await driver.admit([gone, goes_on], [lambda *_: None] * 2)
    driver.release_later(gone.key)
    moved = driver.activity.moved
    await driver.step_on(StepEvents(), computing=True)
    await until(driver.take_result)
    assert set(driver.snapshot.held) == {goes_on.key}
    assert driver.activity.moved == moved + driver.engine.layout.num_layers + 1  # one call, of one chunk
    await driver.close_engine()


async def test_where_no_prompt_is_left_what_is_given_back_begins_no_step(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    job = job_of(IDS, b"")
    await driver.admit([job], [lambda *_: None])
    driver.release_later(job.key)
    await driver.step_on(StepEvents(), computing=False)
    assert (driver.stepping, driver.snapshot.held) == (False, {})
    await driver.close_engine()


async def test_a_prefix_is_lent_between_two_layers_of_a_chunk(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    names = hashes_of(IDS)
    job = job_of(IDS, pack_hashes(names))
    await driver.admit([job], [lambda *_: None])
    driver.begin_step(lambda engine: engine.step())
    await until(driver.take_result)
    driver.release_later(job.key)
    first_layer, lent = threading.Event(), threading.Event()

    def on_layer(*_: int) -> None:
        first_layer.set()
        lent.wait(60)

    await driver.admit([job_of([7, *IDS], b"")], [on_layer])
    driver.begin_step(lambda engine: engine.step())
    await until(first_layer.is_set)
    answer = driver.call_soon(
        lambda engine: engine.lend_prefix("loan", names, OPEN_SHARE), between_layers=True
    )
    lent.set()
    async with asyncio.timeout(60):
        loan = await answer
    assert (loan.end_block, driver.stepping) == (len(names), True)
    await until(driver.take_result)
    driver.engine.check()
    await driver.close_engine()


async def test_a_part_that_is_warmed_is_no_result_and_moves_layer_by_layer_too(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    hashes = tuple(BlockHasher().block_hashes(IDS, BlockHasher().seed(driver.engine.layout.fingerprint())))
    prefix = WarmPrefix("r", "gateway-0", Deadline.after(60.0), tuple(IDS), hashes)
    driver.order_part(prefix, 0)
    moved = driver.activity.moved
    driver.begin_next_step(StepEvents())
    await until(driver.take_result)
    assert driver.activity.moved == moved + driver.engine.layout.num_layers + 1
    assert driver.take_part() == WarmPart(prefix, 32)
    assert not driver.has_work
    await driver.close_engine()
