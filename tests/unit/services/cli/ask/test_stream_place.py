"""Up to where an answer has come, and when another gateway is asked to go on."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.cli.ask.stream_place import MAX_TRIES, MAX_WAIT_S, StreamPlace

SCORED = pb.GenerateRequest(text="x", sampling=pb.Sampling(prompt_logprobs=1))


def begun(token: str = "token-a") -> StreamPlace:
    """An answer of which two tokens have come."""
    place = StreamPlace(pb.GenerateRequest(text="hello"))
    place.take_event(pb.GenerateEvent(prompt=pb.PromptInfo(resume_token=token)))
    place.take_event(pb.GenerateEvent(text=pb.TextDelta(text="ab", token_ids=[1, 2])))
    return place


def failed(code: str, retry_after_ms: int = 0) -> pb.Terminal:
    return pb.Terminal(error=pb.Error(code=code, retry_after_ms=retry_after_ms))


@pytest.mark.parametrize(
    ("request_of", "resumable"),
    [(pb.GenerateRequest(text="x"), True), (pb.GenerateRequest(n=2), False), (SCORED, False)],
)
def test_what_a_gateway_keeps_is_asked_for_so(request_of: pb.GenerateRequest, resumable: bool) -> None:
    StreamPlace(request_of)
    assert request_of.resumable is resumable


def test_another_gateway_goes_on_after_what_has_come() -> None:
    place = begun()
    assert place.wait_s(unavailable=True, terminal=None) == 0.0
    asked = place.resume_request()
    assert (asked.token, asked.received_tokens, asked.request.text) == ("token-a", 2, "hello")


def test_it_is_tried_ever_less_soon_and_then_no_more() -> None:
    place = begun()
    waits = [place.wait_s(unavailable=True, terminal=None) for _ in range(MAX_TRIES + 1)]
    assert waits[:3] == [0.0, 0.1, 0.2]
    assert waits[-2:] == [MAX_WAIT_S, None]


@pytest.mark.parametrize(
    ("unavailable", "terminal", "goes_on"),
    [
        (False, None, False),
        (True, failed("unavailable"), False),
        (True, failed("unavailable", 250), False),
        (True, failed("gateway_stopping"), True),
    ],
)
def test_only_a_gateway_that_is_gone_is_left(
    unavailable: bool, terminal: pb.Terminal | None, goes_on: bool
) -> None:
    assert (begun().wait_s(unavailable=unavailable, terminal=terminal) is not None) is goes_on


def test_a_try_that_is_told_to_come_back_does() -> None:
    place = begun()
    place.wait_s(unavailable=True, terminal=None)
    assert place.wait_s(unavailable=True, terminal=failed("unavailable", 250)) == 0.1


def test_an_answer_without_a_token_ends_with_its_gateway() -> None:
    assert begun("").wait_s(unavailable=True, terminal=None) is None
