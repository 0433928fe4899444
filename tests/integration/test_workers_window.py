"""A model whose layers all have windows, on workers whose pools hold no half of what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.layer_groups import KvGroups
from shared.blocks.window import KvWindow
from tests.integration.workers_harness import WAIT_S, Edge, Workers, edge_of
from tests.support.engine import oracle, oracle_greedy
from tests.support.models import target_model, windowed_of
from tests.support.sampling import sampling
from tests.support.wait import until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(300),  # the first test waits for the processes, on whatever machine
]
PREFILL = "prefill-0"
DECODES = ("decode-nats", "decode-shm")
WINDOW = KvWindow(40)
POOL_BLOCKS = 24
WORKER = {"kv_blocks": POOL_BLOCKS, "max_batch_tokens": 64, "max_sequences": 8}
LONG = sampling(max_tokens=160, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return windowed_of(target_model(folder), folder / "windowed", WINDOW.tokens)


@pytest.fixture(scope="module")
def workers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    running = Workers(tmp_path_factory.mktemp("logs"))
    try:
        running.start("prefill", PREFILL, model=model, **WORKER)
        for name in DECODES:
            running.start("decode", name, model=model, kv_transport=name.partition("-")[2], **WORKER)
        yield running
    finally:
        running.stop()


@pytest.fixture
async def edge(workers: Workers, model: Path) -> AsyncIterator[Edge]:
    async with edge_of(workers.nats_url, model.name) as edge:
        await edge.ready(PREFILL, *DECODES)
        yield edge
        await edge.until_idle(PREFILL, *DECODES)


@pytest.fixture(scope="module")
def reference(model: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    return oracle(model)


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 300, (length,), generator=generator).tolist()


@pytest.mark.parametrize("decode", DECODES)
async def test_prompts_and_answers_that_no_pool_holds_are_those_of_transformers(
    edge: Edge, reference: PreTrainedModel, decode: str
) -> None:
    lengths = [700, 90, 17]
    assert POOL_BLOCKS * HASH_BLOCK_TOKENS < 700
    for length in lengths:
        stream = await edge.generate(prompt_of(length), decode=decode, how=LONG)
        assert stream.token_ids == oracle_greedy(
            reference, prompt_of(length), LONG.max_tokens, stream.token_ids
        )


async def test_a_decode_worker_computes_a_prompt_that_its_pool_does_not_hold(
    edge: Edge, reference: PreTrainedModel
) -> None:
    stream = await edge.generate(prompt_of(600), prefill="", decode=DECODES[0], how=LONG)
    assert stream.token_ids == oracle_greedy(reference, prompt_of(600), LONG.max_tokens, stream.token_ids)


async def test_workers_say_which_window_they_keep(edge: Edge) -> None:
    beats = [view.heartbeat for view in edge.fleet.all() if view.heartbeat.role in ("prefill", "decode")]
    assert {beat.worker.kv_groups for beat in beats} == {KvGroups(0, 1, WINDOW.tokens)}
    assert {beat.context_tokens for beat in beats} == {2048}


async def test_a_second_turn_finds_the_window_of_the_first(edge: Edge, reference: PreTrainedModel) -> None:
    first = prompt_of(400)
    stream = await edge.generate(first, how=LONG)
    second = [*first, *stream.token_ids, *prompt_of(20)]
    request_id = edge.new_id()
    accepted = await edge.reserve(request_id, second, prefill="", how=LONG)
    assert accepted.cached_tokens >= len(first) + LONG.max_tokens - HASH_BLOCK_TOKENS
    stream = await edge.ended(request_id)
    assert stream.token_ids == oracle_greedy(reference, second, LONG.max_tokens, stream.token_ids)


async def test_what_a_killed_decode_worker_had_goes_on_exactly_elsewhere(
    edge: Edge, workers: Workers, model: Path, reference: PreTrainedModel
) -> None:
    doomed, prompt = "decode-doomed", prompt_of(500)
    workers.start("decode", doomed, model=model, **WORKER)
    await edge.ready(doomed)
    request_id = edge.new_id()
    await asyncio.gather(
        edge.prefill(request_id, prompt, decode=doomed, how=LONG),
        edge.reserve(request_id, prompt, decode=doomed, how=LONG),
    )
    before = edge.streams[request_id, 1]
    await until(lambda: len(before.ids) > 2 * WINDOW.tokens, timeout_s=WAIT_S)
    workers.kill(doomed)
    come = before.token_ids[: 2 * WINDOW.tokens]  # and the rest was lost with it
    known = [*prompt, *come]
    await asyncio.gather(
        edge.prefill(request_id, known, how=LONG, epoch=2, prompt_len=len(prompt)),
        edge.reserve(request_id, known, how=LONG, epoch=2, prompt_len=len(prompt)),
    )
    after = await edge.ended(request_id, 2)
    assert after.lost is None
    drawn = [*come, *after.token_ids]
    assert drawn == oracle_greedy(reference, prompt, LONG.max_tokens, drawn)
