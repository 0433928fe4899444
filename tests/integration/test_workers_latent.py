"""A model with compressed KV on workers: what passes between them is one latent per token, on either way."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.workers_harness import Edge, Workers, edge_of
from tests.support.engine import oracle, oracle_greedy, save_random_model
from tests.support.engine_families import SHAPES
from tests.support.models import target_model
from tests.support.sampling import sampling

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(300),  # the first test waits for the processes, on whatever machine
]
PREFILL = "prefill-0"
DECODES = {"nats": "decode-nats", "shm": "decode-shm"}
WORKER = {"kv_blocks": 64, "max_sequences": 8}
LONG = sampling(max_tokens=60, ignore_eos=True)
VOCAB_SIZE = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shape, tokenizer = SHAPES["deepseek v3"], target_model(folder / "tokenizer")
    save_random_model(folder / "latent", shape.config_class, **{**shape.fields, "vocab_size": VOCAB_SIZE})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / "latent")
    assert json.loads((folder / "latent" / "config.json").read_text())["kv_lora_rank"]
    return folder / "latent"


@pytest.fixture(scope="module")
def workers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    running = Workers(tmp_path_factory.mktemp("logs"))
    try:
        running.start("prefill", PREFILL, model=model, **WORKER)
        for transport, instance in DECODES.items():
            running.start("decode", instance, model=model, kv_transport=transport, **WORKER)
        yield running
    finally:
        running.stop()


@pytest.fixture
async def edge(workers: Workers, model: Path) -> AsyncIterator[Edge]:
    async with edge_of(workers.nats_url, model.name) as edge:
        await edge.ready(PREFILL, *DECODES.values())
        yield edge
        await edge.until_idle(PREFILL, *DECODES.values())


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


@pytest.mark.parametrize("transport", DECODES)
async def test_streams_side_by_side_are_those_of_transformers(
    edge: Edge, model: Path, transport: str
) -> None:
    torch.set_num_threads(1)
    reference = oracle(model)
    prompts = [prompt_of(length) for length in (1, 16, 17, 90)]
    asks = (edge.generate(prompt, decode=DECODES[transport], how=LONG) for prompt in prompts)
    streams = [stream.token_ids for stream in await asyncio.gather(*asks)]
    expected = [
        oracle_greedy(reference, prompt, LONG.max_tokens, stream)
        for prompt, stream in zip(prompts, streams, strict=True)
    ]
    assert streams == expected


async def test_a_second_turn_goes_on_behind_the_kv_that_came_from_another_worker(
    edge: Edge, model: Path
) -> None:
    torch.set_num_threads(1)
    first = prompt_of(70)
    stream = await edge.generate(first, how=LONG)
    second = [*first, *stream.token_ids, *prompt_of(20)]
    request_id = edge.new_id()
    accepted = await edge.reserve(request_id, second, prefill="", how=LONG)
    assert accepted.cached_tokens >= len(first) + LONG.max_tokens - 16
    stream = await edge.ended(request_id)
    assert stream.token_ids == oracle_greedy(oracle(model), second, LONG.max_tokens, stream.token_ids)
