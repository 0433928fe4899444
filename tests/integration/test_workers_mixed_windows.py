"""A model of which some layers have a window, on workers whose pools hold what these keep and no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.blocks.layer_groups import KvGroups
from shared.blocks.window import KvWindow
from tests.integration.workers_harness import Edge, Workers, edge_of
from tests.support.engine import oracle, oracle_greedy
from tests.support.models import mixed_of, target_model
from tests.support.sampling import sampling

pytestmark = pytest.mark.timeout(300)  # the first test waits for the processes, on whatever machine
PREFILL, DECODE = "prefill-0", "decode-nats"
WINDOW = KvWindow(40)
STEP_ROWS = 64
POOL_BLOCKS = 32  # of each group
WORKER = {"kv_blocks": POOL_BLOCKS, "max_batch_tokens": STEP_ROWS, "max_sequences": 8}
LONG = sampling(max_tokens=160, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return mixed_of(target_model(folder), folder / "mixed", WINDOW.tokens)


@pytest.fixture(scope="module")
def workers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    running = Workers(tmp_path_factory.mktemp("logs"))
    try:
        running.start("prefill", PREFILL, model=model, **WORKER)
        running.start("decode", DECODE, model=model, kv_transport="nats", **WORKER)
        yield running
    finally:
        running.stop()


@pytest.fixture
async def edge(workers: Workers, model: Path) -> AsyncIterator[Edge]:
    async with edge_of(workers.nats_url, model.name) as edge:
        await edge.ready(PREFILL, DECODE)
        yield edge
        await edge.until_idle(PREFILL, DECODE)


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 300, (length,), generator=generator).tolist()


async def test_answers_and_second_turns_that_no_pool_holds_in_all_layers_are_those_of_transformers(
    edge: Edge, model: Path
) -> None:
    torch.set_num_threads(1)
    reference = oracle(model)
    first = prompt_of(700)
    assert len(first) > POOL_BLOCKS * HASH_BLOCK_TOKENS
    stream = await edge.generate(first, how=LONG)
    assert stream.token_ids == oracle_greedy(reference, first, LONG.max_tokens, stream.token_ids)
    second = [*first, *stream.token_ids, *prompt_of(20)]
    request_id = edge.new_id()
    accepted = await edge.reserve(request_id, second, prefill="", how=LONG)
    assert accepted.cached_tokens >= len(first) + LONG.max_tokens - HASH_BLOCK_TOKENS
    stream = await edge.ended(request_id)
    assert stream.token_ids == oracle_greedy(reference, second, LONG.max_tokens, stream.token_ids)


async def test_workers_say_in_which_groups_they_keep_kv(edge: Edge, model: Path) -> None:
    num_layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    groups = KvGroups(1, num_layers - 1, WINDOW.tokens)
    beats = [view.heartbeat for view in edge.fleet.all() if view.heartbeat.role in ("prefill", "decode")]
    assert {(beat.worker.kv_groups, beat.worker.kv_blocks) for beat in beats} == {
        (groups, groups.count * POOL_BLOCKS)
    }
    turning = groups.windowed * (WINDOW.most_blocks(STEP_ROWS) + WINDOW.most_blocks(0))
    longest = (groups.count * POOL_BLOCKS - turning) * HASH_BLOCK_TOKENS
    assert {beat.context_tokens for beat in beats} == {longest}
