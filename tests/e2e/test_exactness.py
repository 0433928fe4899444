"""Invariant 5: the output is a function of model, prompt, sampling parameters and seed alone."""

from __future__ import annotations

import asyncio

import pytest

from shared.engine import LLM, SamplingParams
from tests.e2e.conftest import GetStack
from tests.support.client import Answer, connect, generate, request
from tests.support.oracle import Oracle
from tests.support.stack import metrics_of, value_of

NEW_TOKENS = 64
CONCURRENT = 16
SEED = 1234

# Every value of workers, drafts and transport meets every value of the others.
STACKS = [(1, False, "nats"), (1, True, "shm"), (3, False, "auto"), (3, True, "nats")]

OPENINGS = [
    "Once upon a time",
    "Once upon a time there was a little girl named Lily. She",
    "The dog ran",
    "One day, a boy named Tim went to the park.",
    "Mom said",
    "It was raining and the cat",
    "Sara had a big red ball.",
    "In the forest lived a bear who",
    "Ben and his sister",
    "The sun was",
    "A frog jumped over",
]


def prompts(oracle: Oracle) -> list[list[int]]:
    """22 prompts from one token to the context limit."""
    story = oracle.encode(" ".join(OPENINGS) * 20)
    lengths = [1, 2, 15, 16, 17, 31, 100, 255, 400, oracle.context_tokens - 17, oracle.context_tokens - 1]
    return [oracle.encode(opening) for opening in OPENINGS] + [story[:length] for length in lengths]


async def ask_all(address: str, asked: list[list[int]], **sampling: object) -> list[Answer]:
    gate = asyncio.Semaphore(CONCURRENT)
    async with connect(address) as stub:

        async def one(prompt: list[int]) -> Answer:
            async with gate:
                return await generate(stub, request(prompt, max_tokens=NEW_TOKENS, **sampling))

        return await asyncio.gather(*(one(prompt) for prompt in asked))


@pytest.mark.thorough(but="1-True-shm | 3-True-nats")
@pytest.mark.parametrize(("decode", "drafts", "transport"), STACKS)
async def test_greedy_ids_and_text_equal_transformers_16_at_once(
    get_stack: GetStack, oracle: Oracle, decode: int, drafts: bool, transport: str
) -> None:
    asked = prompts(oracle)
    stack = get_stack(decode, drafts, transport)
    answers = await ask_all(stack.grpc, asked)
    for prompt, answer in zip(asked, answers, strict=True):
        assert answer.outcome == "finished", (answer.status, answer.details, stack.tail())
        assert answer.ids == oracle.greedy(prompt, NEW_TOKENS, answer.ids)
        assert answer.text == oracle.continuation(prompt, answer.ids)
    await stack.until_idle()


@pytest.fixture(scope="module")
def alone(oracle: Oracle) -> list[list[int]]:
    """OPENINGS with a seed, through the engine alone, one after the other: no bus, no batch, no drafts."""
    llm = LLM(oracle.model_dir)
    params = SamplingParams(temperature=1.0, seed=SEED, max_tokens=NEW_TOKENS)
    asked = [oracle.encode(opening) for opening in OPENINGS]
    return [list(llm.generate([prompt], params)[0].token_ids) for prompt in asked]


@pytest.mark.thorough(but="1-False-nats | 3-True-nats")
@pytest.mark.parametrize(("decode", "drafts", "transport"), STACKS)
async def test_a_seed_gives_the_same_text_at_temperature_1_whichever_worker_batch_or_drafter(
    get_stack: GetStack, oracle: Oracle, alone: list[list[int]], decode: int, drafts: bool, transport: str
) -> None:
    asked = [oracle.encode(opening) for opening in OPENINGS]
    stack = get_stack(decode, drafts, transport)
    answers = await ask_all(stack.grpc, asked, temperature=1.0, seed=SEED)
    assert [answer.ids for answer in answers] == alone
    assert len({tuple(ids) for ids in alone}) == len(asked)


async def test_log_probabilities_of_prompts_equal_transformers_cached_or_not(
    get_stack: GetStack, oracle: Oracle
) -> None:
    story = oracle.encode(" ".join(OPENINGS) * 20)
    asked = [story[:length] for length in (1, 2, 17, 400)] * 2
    stack = get_stack(*STACKS[0])
    async with connect(stack.grpc) as stub:
        for prompt in asked:
            answer = await generate(stub, request(prompt, max_tokens=3, prompt_logprobs=2))
            assert answer.outcome == "finished", (answer.status, answer.details, stack.tail())
            told, expected = answer.prompt_logprobs, oracle.logprobs(prompt)
            assert [each.token_id for each in told] == prompt
            for place, each in enumerate(told[1:]):
                assert each.logprob == pytest.approx(float(expected[place, each.token_id]), abs=1e-2)
                assert each.top[0].logprob == pytest.approx(float(expected[place].max()), abs=1e-2)
            assert answer.ids == oracle.greedy(prompt, 3, answer.ids)
    await stack.until_idle()


async def test_another_seed_gives_another_text(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack(*STACKS[0])
    asked = [oracle.encode(OPENINGS[0])]
    first = await ask_all(stack.grpc, asked, temperature=1.0, seed=1)
    second = await ask_all(stack.grpc, asked, temperature=1.0, seed=2)
    assert first[0].ids != second[0].ids


async def test_drafts_reach_the_decode_worker(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack(1, True, "shm")
    answers = await ask_all(stack.grpc, [oracle.encode(opening) for opening in OPENINGS])
    used = sum(answer.end.usage.draft_tokens for answer in answers if answer.end is not None)
    # A draft that comes after its step is late: which of the two a draft is depends on the machine.
    late = sum(value_of(instance, "penstock_draft_late_total") for instance in stack.instances("decode"))
    assert used + late > 0


@pytest.mark.thorough
async def test_shared_memory_is_chosen_by_itself_on_one_host(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack(3, False, "auto")
    await ask_all(stack.grpc, [oracle.encode(opening) for opening in OPENINGS])
    carried = [metrics_of(instance) for instance in stack.instances("decode")]
    assert any('penstock_kv_transfer_bytes_total{transport="shm"}' in text for text in carried)
    assert not any('penstock_kv_transfer_bytes_total{transport="nats"}' in text for text in carried)
