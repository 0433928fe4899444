from __future__ import annotations

import asyncio

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.response_buffer import MAX_EVENT_LOGPROBS, ResponseBuffer
from shared.sampling.parameters import MAX_TOP_LOGPROBS, TokenLogprob

TOP = tuple((200_000 + number, -1.5) for number in range(MAX_TOP_LOGPROBS))
GRPC_RECEIVES_BYTES = 4 << 20
"""What clients of gRPC take at most where nobody has changed it."""


async def test_a_long_prompt_is_told_in_events_that_clients_take_and_before_all_else() -> None:
    buffer = ResponseBuffer(max_tokens=8)
    buffer.put_prompt(pb.PromptInfo(prompt_tokens=2 * MAX_EVENT_LOGPROBS + 1))
    for token_id in range(2 * MAX_EVENT_LOGPROBS + 1):
        buffer.put_prompt_logprobs([TokenLogprob(token_id, -1.0, TOP)])
    buffer.put_text(2 * MAX_EVENT_LOGPROBS + 1, (7,), "a", ())
    buffer.put_end(Outcome.finished("stop"))
    parts = [await buffer.take_response() for _ in range(3)]
    told = [part.prompt_logprobs for part in parts]
    assert [(each.position, len(each.logprobs)) for each in told if each] == [
        (0, MAX_EVENT_LOGPROBS),
        (MAX_EVENT_LOGPROBS, MAX_EVENT_LOGPROBS),
        (2 * MAX_EVENT_LOGPROBS, 1),
    ]
    assert max(each.ByteSize() for each in told if each) < GRPC_RECEIVES_BYTES
    assert [part.prompt is not None for part in parts] == [True, False, False]
    assert [part.end is not None for part in parts] == [False, False, True]
    assert [part.delta is not None for part in parts] == [False, False, True]


async def test_what_is_told_of_a_prompt_goes_out_with_text_that_comes_at_once() -> None:
    buffer = ResponseBuffer(max_tokens=8)
    buffer.put_prompt(pb.PromptInfo(prompt_tokens=1))
    taking = asyncio.ensure_future(buffer.take_response())
    await asyncio.sleep(0)
    buffer.put_text(1, (7,), "a", ())
    part = await taking
    assert (part.prompt is not None, part.delta is not None) == (True, True)


async def test_what_is_told_of_a_prompt_waits_for_nothing_else() -> None:
    buffer = ResponseBuffer(max_tokens=8)
    buffer.put_prompt(pb.PromptInfo(prompt_tokens=1))
    async with asyncio.timeout(10):
        part = await buffer.take_response()
    assert (part.prompt is not None, part.delta) == (True, None)
