"""What waits for the client: joined into one delta, bounded, handed out once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.answer_format import AnswerFormat
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.response_buffer import MAX_EVENT_LOGPROBS, ResponseBuffer, ResponsePart
from shared import errors
from shared.messages import PromptThinking
from shared.sampling.parameters import MAX_TOP_LOGPROBS, TokenLogprob

TOP = tuple((200_000 + number, -1.5) for number in range(MAX_TOP_LOGPROBS))
GRPC_RECEIVES_BYTES = 4 << 20
"""The most that clients of gRPC take where nobody has changed it."""


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
    async with asyncio.timeout(60):
        part = await buffer.take_response()
    assert (part.prompt is not None, part.delta) == (True, None)


async def test_what_queued_goes_out_as_one_delta() -> None:
    response = ResponseBuffer(100)
    response.put_prompt(pb.PromptInfo(model="m"))
    response.put_text(5, (1, 2), "ab", (TokenLogprob(1, -1.0, ()),))
    response.put_text(7, (3,), "c", ())
    response.put_end(Outcome.finished("stop"))
    part = await response.take_response()
    assert part.prompt is not None
    assert part.delta is not None
    assert (part.delta.position, list(part.delta.token_ids), part.delta.text) == (
        5,
        [1, 2, 3],
        "abc",
    )
    assert [logprob.token_id for logprob in part.delta.logprobs] == [1]
    assert part.end == Outcome.finished("stop")


async def test_nothing_is_handed_out_twice() -> None:
    response = ResponseBuffer(100)
    response.put_text(5, (1,), "a", ())
    await response.take_response()
    response.put_text(6, (2,), "b", ())
    part = await response.take_response()
    assert part.delta is not None
    assert (part.prompt, part.delta.position, part.end) == (None, 6, None)


async def test_an_empty_buffer_waits() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ResponseBuffer(1).take_response(), 0.01)


def test_a_client_may_leave_so_many_tokens_unread_and_no_more() -> None:
    response = ResponseBuffer(3)
    response.put_text(5, (1, 2, 3), "abc", ())
    with pytest.raises(errors.Cancelled, match="3 tokens unread"):
        response.put_text(8, (4,), "d", ())


async def test_the_first_end_stands() -> None:
    response = ResponseBuffer(3)
    response.put_end(Outcome.finished("stop"))
    response.put_end(Outcome.of(errors.Cancelled("late")))
    assert (await response.take_response()).end == Outcome.finished("stop")


THINKS = AnswerFormat(PromptThinking("think", begun=True))
WRITTEN = "I see.\n</think>\n\nYes. "


@pytest.mark.parametrize("cut", range(len(WRITTEN) + 1))
async def test_text_that_the_client_has_is_read_in_silence(cut: int) -> None:
    first, second = ResponseBuffer(100), ResponseBuffer(100)
    heard = pb.TextDelta()
    for response, text in ((first, WRITTEN[:cut]), (second, WRITTEN[cut:])):
        response.read_answer(THINKS)
        if response is second:
            response.skip_text(WRITTEN[:cut], whole=not text)
        response.put_text(5, (1,), text, (), whole=response is second or cut == len(WRITTEN))
        if response is second:
            response.put_end(Outcome.finished("stop"))
        part = await response.take_response()
        assert part.delta is not None
        heard.reasoning += part.delta.reasoning
        heard.text += part.delta.text
    assert (heard.reasoning, heard.text) == ("I see.", "Yes. ")


async def test_what_was_kept_back_goes_out_with_the_last_tokens() -> None:
    response = ResponseBuffer(100)
    response.read_answer(THINKS)
    response.put_text(5, (1,), "Hm. ", (), whole=True)
    part = await response.take_response()
    assert part.delta is not None
    assert (part.delta.reasoning, list(part.delta.token_ids)) == ("Hm. ", [1])
    response.put_end(Outcome.finished("stop"))
    assert (await response.take_response()).delta is None


class Client:
    """Takes rows at once while it has `room`."""

    def __init__(self) -> None:
        self.room = True
        self.rows: list[tuple[int, tuple[int, ...], str]] = []

    def put_text(self, position: int, token_ids: tuple[int, ...], text: str) -> bool:
        if self.room:
            self.rows.append((position, token_ids, text))
        return self.room


async def read_through(response: ResponseBuffer) -> tuple[Client, asyncio.Task[ResponsePart]]:
    """A client that takes rows at once, and the reader of `response`, which waits."""
    client = Client()
    response.write_through(client.put_text)
    reading = asyncio.ensure_future(response.take_response())
    await asyncio.sleep(0)
    return client, reading


async def test_a_row_that_comes_while_the_reader_waits_is_written_at_once() -> None:
    response = ResponseBuffer(100)
    client, reading = await read_through(response)
    response.put_text(5, (1, 2), "ab", ())
    response.put_text(7, (3,), "", (), whole=True)
    response.put_end(Outcome.finished("stop"))
    assert client.rows == [(5, (1, 2), "ab"), (7, (3,), "")]
    assert await reading == ResponsePart(None, None, None, Outcome.finished("stop"))


async def test_rows_behind_one_that_had_no_room_wait_with_it() -> None:
    response = ResponseBuffer(100)
    client, reading = await read_through(response)
    client.room = False
    response.put_text(5, (1,), "a", ())
    client.room = True
    response.put_text(6, (2,), "b", ())
    assert client.rows == []
    part = await reading
    assert part.delta is not None
    assert (part.delta.position, part.delta.text) == (5, "ab")
    response.put_text(7, (3,), "c", ())  # nobody waits for it: what was taken is still being written
    assert client.rows == []


def hold(response: ResponseBuffer) -> None:
    response.hold()


def put_prompt(response: ResponseBuffer) -> None:
    response.put_prompt(pb.PromptInfo(), may_change=True)


def put_prompt_logprobs(response: ResponseBuffer) -> None:
    response.put_prompt_logprobs([TokenLogprob(1, -1.0, ())])


def read_thoughts(response: ResponseBuffer) -> None:
    response.read_answer(THINKS)


def write_no_more(response: ResponseBuffer) -> None:
    response.write_through(None)


@pytest.mark.parametrize("first", [hold, put_prompt, put_prompt_logprobs, read_thoughts, write_no_more])
async def test_a_row_that_is_not_all_there_is_to_write_waits(first: Callable[[ResponseBuffer], None]) -> None:
    response = ResponseBuffer(100)
    client, reading = await read_through(response)
    first(response)
    response.put_text(5, (1,), "a", ())
    assert client.rows == []
    response.release()
    await reading


async def test_a_row_with_log_probabilities_waits() -> None:
    response = ResponseBuffer(100)
    client, reading = await read_through(response)
    response.put_text(5, (1,), "a", (TokenLogprob(1, -1.0, ()),))
    assert client.rows == []
    await reading
