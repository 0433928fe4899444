"""Streamed deltas are exactly the text of all ids, in every language, for any ids, cut exactly at stops."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.e2e.conftest import GetStack
from tests.support.client import connect, generate, request
from tests.support.data import data_dir
from tests.support.oracle import Oracle

LANGUAGES = ("en", "de", "zh", "ar", "hi", "th", "ru")
SAMPLES = {
    "en": "Quiet water runs deep.",
    "de": "Über größere Straßen fährt man früh.",
    "zh": "北京的春天很美。",
    "ar": "السماء زرقاء اليوم.",
    "hi": "आज आसमान नीला है।",
    "th": "วันนี้ท้องฟ้าเป็นสีฟ้า",
    "ru": "Сегодня небо синее.",
}
EMOJI = "🙂🚀 👩‍👩‍👧‍👦 🇺🇳 ok"


def texts(language: str) -> list[str]:
    """A few passages of the language: real ones where the data is, else a sentence."""
    data = data_dir()
    if data is None:
        return [SAMPLES[language]]
    articles = json.loads((data / "xquad" / f"xquad.{language}.json").read_text())["data"]
    return [paragraph["context"][:80] for article in articles[:3] for paragraph in article["paragraphs"][:1]]


@pytest.mark.thorough(but="zh | hi")
@pytest.mark.parametrize("language", LANGUAGES)
async def test_deltas_after_a_prompt_in_any_language_are_the_decode_of_all_ids(
    get_stack: GetStack, oracle: Oracle, language: str
) -> None:
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        for text in [*texts(language), EMOJI]:
            prompt = oracle.encode(text)[: oracle.context_tokens - 40]
            answer = await generate(stub, request(prompt, max_tokens=32, temperature=1.0, seed=5))
            assert answer.text == oracle.continuation(prompt, answer.ids)


async def test_deltas_of_random_ids_that_are_invalid_utf8_are_the_decode_of_all_ids(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        # At temperature 100 the draw is nearly uniform over the vocabulary, bytes included.
        messages = [
            request("Once", max_tokens=120, temperature=100.0, seed=seed, ignore_eos=True)
            for seed in range(8)
        ]
        answers = await asyncio.gather(*(generate(stub, message) for message in messages))
    prompt = oracle.encode("Once")
    for answer in answers:
        assert len(answer.ids) == 120
        assert answer.text == oracle.continuation(prompt, answer.ids)


async def test_a_prompt_that_ends_inside_a_character_continues_it(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack()
    whole = oracle.encode("The sign says 東")
    async with connect(stack.grpc) as stub:
        for cut in (1, 2):
            prompt = whole[:-cut]
            message = request(prompt, max_tokens=24, temperature=100.0, seed=3, ignore_eos=True)
            answer = await generate(stub, message)
            assert answer.text == oracle.continuation(prompt, answer.ids)


async def test_a_stop_string_across_tokens_cuts_the_text_exactly(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        free = await generate(stub, request("Once upon a time", max_tokens=60))
        for start in (5, 17, 40):
            stop = free.text[start : start + 7]
            answer = await generate(stub, request("Once upon a time", max_tokens=60, stop=[stop]))
            assert answer.text == free.text[: free.text.index(stop)]
            assert answer.finish_reason == "stop"
    await stack.until_idle()


async def test_positions_are_absolute_and_without_gap(get_stack: GetStack, oracle: Oracle) -> None:
    stack = get_stack()
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request("Once upon a time", max_tokens=30))
    assert answer.prompt is not None
    first = answer.prompt.prompt_tokens
    assert answer.positions == list(range(first, first + len(answer.ids)))
