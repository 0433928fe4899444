"""Models of more than a billion parameters through a whole stack, prefill and decode apart."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.client import Answer, connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.engine import oracle_greedy
from tests.support.served_checkpoints import save_served
from tests.support.served_shapes import SERVED
from tests.support.stack import Stack, metrics_of

LAYERS = {"Llama-3.2-1B": 16, "Qwen3-1.7B": 28}
PROMPT_LENGTHS = (1, 11, 12, 13, 16, 63, 65, 300)
NEW_TOKENS = 12
START_TIMEOUT_S = 900.0
CALL_TIMEOUT_S = 600.0
TOKENIZER = REPOSITORY / "shared" / "demo" / "models" / "target"
"""Prompts are ids: what text stands for them is no matter here."""

Served = tuple[Path, list[list[int]], list[list[int]]]
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module", params=LAYERS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A checkpoint, prompts, and the greedy answers of transformers in float32."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("real")
    save_served(folder, SERVED[name].config(layers=LAYERS[name]))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / file, folder)
    prompts = [[(7919 * place + 31 * length) % 1000 for place in range(length)] for length in PROMPT_LENGTHS]
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = [oracle_greedy(model, prompt, NEW_TOKENS) for prompt in prompts]
    del model
    torch.set_num_threads(1)
    yield folder, prompts, answers
    shutil.rmtree(folder)


@pytest.mark.parametrize("transport", ["nats", "shm"])
async def test_streams_side_by_side_equal_transformers(
    served: Served, transport: str, tmp_path: Path
) -> None:
    folder, prompts, right = served
    with real_stack(folder, transport, tmp_path, "float32") as stack:
        answers = await ask_all(stack, prompts)
        assert [answer.ids for answer in answers] == right
        assert transfers(stack, transport) >= len(prompts)  # a busy machine may place one anew
        await stack.until_idle()
    shutil.rmtree(tmp_path)


async def test_in_bfloat16_a_stream_among_others_is_what_it_is_alone(served: Served, tmp_path: Path) -> None:
    folder, prompts, _ = served
    with real_stack(folder, "auto", tmp_path, "bfloat16") as stack:
        together = await ask_all(stack, prompts)
        alone = [(await ask_all(stack, [prompt]))[0] for prompt in prompts]
        assert [answer.ids for answer in together] == [answer.ids for answer in alone]
    shutil.rmtree(tmp_path)


def transfers(stack: Stack, transport: str) -> float:
    """How many prompts' KV came over `transport` and was verified."""
    lines = [line for each in stack.instances("decode") for line in metrics_of(each).splitlines()]
    counted = [line for line in lines if line.startswith("penstock_kv_transfers_total{")]
    landed = [line for line in counted if f'transport="{transport}"' in line and 'outcome="received"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in landed)


def real_stack(folder: Path, transport: str, scratch: Path, dtype: str) -> Stack:
    """Every prompt is computed by the prefill worker; both workers map one file of packed weights."""
    environ = {
        "PENSTOCK_GATEWAY_LOCAL_PREFILL_TOKENS": "0",
        "PENSTOCK_MODEL_DTYPE": dtype,
        "PENSTOCK_PREFILL_WEIGHT_CACHE_DIR": str(scratch),
        "PENSTOCK_DECODE_WEIGHT_CACHE_DIR": str(scratch),
    }
    options = ["--model", str(folder), "--draft", "none", "--speculator", "0", "--corpus", "none"]
    options += ["--retriever", "0", "--kv-transport", transport, "--start-timeout", str(START_TIMEOUT_S)]
    return Stack(*options, environ=environ, start_timeout_s=START_TIMEOUT_S)


async def ask_all(stack: Stack, prompts: list[list[int]]) -> list[Answer]:
    async with connect(stack.grpc) as stub:

        async def ask(prompt: list[int]) -> Answer:
            message = request(prompt, max_tokens=NEW_TOKENS, ignore_eos=True)
            message.deadline_ms = message.ttft_deadline_ms = int(CALL_TIMEOUT_S * 1000)
            message.inter_token_deadline_ms = int(CALL_TIMEOUT_S * 1000)
            return await generate(stub, message, CALL_TIMEOUT_S)

        answers = await asyncio.gather(*(ask(prompt) for prompt in prompts))
    for answer in answers:
        assert answer.outcome == "finished", (answer.status, answer.details, stack.tail())
    return answers
