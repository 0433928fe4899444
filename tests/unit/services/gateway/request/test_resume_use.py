"""Which requests can be resumed, and from where."""

from __future__ import annotations

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.keys.keys_in_force import NOBODY
from services.gateway.request.request import Request, validate_request
from services.gateway.request.resume_token import ResumePoint, ResumeTokens
from services.gateway.request.resume_use import resumable_request
from shared.deadline import SYSTEM_CLOCK
from shared.errors import DeadlineExpired, InvalidRequest

CHAT = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hello")])
TOOLS = pb.ChatPrompt(messages=CHAT.messages, tools=[pb.Tool(name="weather")])


def read(
    message: pb.GenerateRequest, choices: int = 1, received: int | None = None, left_s: int = 60
) -> Request:
    tokens = ResumeTokens.of("", NOBODY, message, "")
    token = tokens.make("gateway-0.abcdef", SYSTEM_CLOCK.unix_us() + left_s * 1_000_000)
    point = None if received is None else ResumePoint(token, received)
    return resumable_request(validate_request(message, drawn_seed=1), choices, tokens, point)


def asked(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"text": "hello", "sampling": pb.Sampling(max_tokens=16), **fields})  # type: ignore[arg-type]  # its fields


def test_a_new_request_can_be_resumed() -> None:
    request = read(asked())
    assert request.resumable
    assert request.resumed is None


@pytest.mark.parametrize("received", [0, 16])
def test_a_stream_is_resumed_after_what_has_come(received: int) -> None:
    request = read(asked(), received=received)
    assert request.resumed is not None
    assert (request.resumed.request_id, request.resumed.received_tokens) == ("gateway-0.abcdef", received)


def test_more_tokens_than_a_stream_has_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"received_tokens is 17: .* at most 16 tokens"):
        read(asked(), received=17)


def test_a_stream_whose_time_is_up_has_expired() -> None:
    with pytest.raises(DeadlineExpired):
        read(asked(), received=3, left_s=-1)


@pytest.mark.parametrize(
    ("message", "choices", "told"),
    [
        (asked(), 2, "send n 1"),
        (asked(text=None, chat=TOOLS), 1, "chat.tools"),
        (asked(sampling=pb.Sampling(prompt_logprobs=0)), 1, "sampling.prompt_logprobs"),
    ],
    ids=["n", "tools", "prompt_logprobs"],
)
def test_what_cannot_be_resumed_is_refused_by_name(
    message: pb.GenerateRequest, choices: int, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^resumable .*{told}"):
        read(message, choices)


@pytest.mark.parametrize(
    "sampling",
    [
        pb.Sampling(logprobs=2),
        pb.Sampling(regex="[a-z]+"),
        pb.Sampling(json_object=True),
        pb.Sampling(stop=["x"]),
    ],
)
def test_what_follows_from_the_drawn_tokens_is_carried(sampling: pb.Sampling) -> None:
    assert read(asked(sampling=sampling)).resumable
