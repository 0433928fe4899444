"""How the prefill worker drives its engine."""

from __future__ import annotations

from pathlib import Path

from services.prefill.driver import PrefillDriver
from services.prefill.job import read_job
from services.prefill.step_events import StepEvents
from shared.blocks.block_hash import BlockHasher
from shared.deadline import Deadline
from shared.messages import Envelope, Prefill, pack_ids
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.warm_part import WarmPart, WarmPrefix
from tests.support.engine import make_engine
from tests.support.sampling import sampling
from tests.support.wait import until

IDS = list(range(1, 40))


async def test_every_layer_of_a_chunk_is_a_move_of_the_engine(model_dir: Path) -> None:
    driver = PrefillDriver(lambda: make_engine(model_dir), PrefixMirror(), lambda: None)
    await driver.load_engine()
    prefill = Prefill(pack_ids(IDS), len(IDS), b"", sampling(), "g", "d", "decode-0", 0)
    job = read_job(
        Envelope("r", 1), prefill, Deadline.after(60.0), vocab_size=64, max_model_len=64, now_s=0.0
    )
    heard: list[int] = []
    await driver.admit([job], [lambda layer, *_: heard.append(layer)])
    moved = driver.activity.moved
    driver.begin_step(lambda engine: engine.step())
    await until(driver.take_result)
    layers = driver.engine.layout.num_layers
    assert heard == list(range(layers))
    assert driver.activity.moved == moved + layers + 1
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
