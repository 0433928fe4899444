"""Earlier answers in a whole stack on its closed bus: the same ones, from no worker."""

from __future__ import annotations

from protos.penstock.v1 import inference_pb2 as pb
from tests.e2e.conftest import WITH_RETRIEVER, GetStack
from tests.support.client import Answer, connect, generate, request
from tests.support.stack import Stack
from tests.support.wait import until


def wanting(text: str, mode: pb.CacheMode, **sampling: object) -> pb.GenerateRequest:
    message = request(text, max_tokens=12, ignore_eos=True, **sampling)
    message.cache.mode = mode
    return message


async def until_cached(stack: Stack, message: pb.GenerateRequest) -> list[Answer]:
    """Ask until an answer is an earlier one, the last of the list: what has ended is kept a moment later.

    Those before it were computed, and the latest of them is kept in place of the one before.
    """
    answers: list[Answer] = []

    async def cached() -> bool:
        async with connect(stack.grpc) as stub:
            answers.append(await generate(stub, message))
        prompt = answers[-1].prompt
        assert prompt is not None
        return prompt.HasField("cached")

    await until(cached)
    return answers


async def test_the_same_request_gets_its_earlier_answer_to_the_last_token(get_stack: GetStack) -> None:
    stack = get_stack(*WITH_RETRIEVER)
    message = wanting("An answer that comes again", pb.CACHE_MODE_EXACT, temperature=0.9, seed=3)
    async with connect(stack.grpc) as stub:
        first = await generate(stub, message)
    *computed, cached = [first, *await until_cached(stack, message)]
    assert (cached.ids, cached.text, cached.finish_reason) == (first.ids, first.text, first.finish_reason)
    assert cached.positions == first.positions
    assert cached.prompt is not None
    asked = {answer.prompt.request_id for answer in computed if answer.prompt is not None}
    assert cached.prompt.cached.request_id in asked
    assert cached.end is not None
    phases = {phase.name.split(".")[0] for phase in cached.end.timeline.phases}
    assert phases.isdisjoint({"prefill", "decode", "kv"})


async def test_a_question_in_other_words_gets_the_answer_and_a_different_one_does_not(
    get_stack: GetStack,
) -> None:
    stack = get_stack(*WITH_RETRIEVER)
    first = wanting("Where is the gate of the old canal in Oslo?", pb.CACHE_MODE_SEMANTIC)
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, first)
    await until_cached(stack, first)
    reworded = wanting("Please tell me: where is the gate of the old canal in Oslo?", pb.CACHE_MODE_SEMANTIC)
    cached = (await until_cached(stack, reworded))[-1]
    assert cached.ids == answer.ids
    assert cached.prompt is not None
    assert 0.95 <= cached.prompt.cached.similarity < 1.0
    async with connect(stack.grpc) as stub:
        other = await generate(
            stub, wanting("Where is the gate of the old canal in Rome?", pb.CACHE_MODE_SEMANTIC)
        )
    assert other.prompt is not None
    assert not other.prompt.HasField("cached")
