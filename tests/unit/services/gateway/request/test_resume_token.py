"""Tokens of streams: nobody makes one without the fleet's key, and one fits its own key and request alone."""

from __future__ import annotations

import dataclasses

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.resume_token import (
    MAX_RESUMES,
    MAX_TOKEN_CHARS,
    ResumeClaim,
    ResumePoint,
    ResumeTokens,
    StreamThinking,
)
from shared.errors import InvalidRequest
from shared.files.api_key_file import ApiKey
from shared.messages import PromptThinking
from tests.support.clock import FakeClock

FLEET_KEY = "ab" * 32
KEY = ApiKey(name="web", tenant="acme", hash="sha256:1")
ENDS_US = 1_700_000_060_000_000


def asked(text: str = "hello", **fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, resumable=True, **fields)  # type: ignore[arg-type]  # its fields


def tokens(
    fleet_key: str = FLEET_KEY, key: ApiKey = KEY, message: pb.GenerateRequest | None = None, salt: str = ""
) -> ResumeTokens:
    return ResumeTokens.of(fleet_key, key, message or asked(), salt)


def claim(token: str, of: ResumeTokens | None = None) -> ResumeClaim:
    return (of or tokens()).read(ResumePoint(token, 5))


TOKEN = tokens().make("gateway-0.abcdef", ENDS_US)


def test_any_gateway_of_the_fleet_reads_what_another_has_made() -> None:
    assert claim(TOKEN) == ResumeClaim("gateway-0.abcdef", "gateway-0.abcdef", ENDS_US, 0, 5)


def test_a_token_carries_the_changes_of_settings_that_the_stream_has() -> None:
    token = tokens().make("gateway-0.abcdef", ENDS_US, flags=("12@gateway-0", "3@gateway-1"))
    assert claim(token).flags == (12, 3)
    assert claim(TOKEN).flags == ()
    with pytest.raises(InvalidRequest):
        claim(token.replace("~12.3~", "~12.4~"))


def test_a_token_carries_how_the_text_of_its_stream_is_read() -> None:
    how = PromptThinking("think", True, opening_id=-1, closing_id=151668)
    thinking = StreamThinking(how, (151667, 151668), ENDS_US)
    token = tokens().make("gateway-0.abcdef", ENDS_US, flags=("12@gateway-0",), thinking=thinking)
    assert (claim(token).thinking, claim(token).flags) == (thinking, (12,))
    assert claim(tokens().make("gateway-0.abcdef", ENDS_US, thinking=thinking)).thinking == thinking
    assert claim(TOKEN).thinking == StreamThinking()
    with pytest.raises(InvalidRequest):
        claim(token.replace("~think.1.", "~think.0."))


def test_a_token_fits_into_an_event_id() -> None:
    assert TOKEN.isascii()
    assert len(TOKEN) < 100
    assert not set(TOKEN) & set("\r\n ")


def test_deadlines_and_the_time_it_is_sent_may_differ() -> None:
    again = asked(deadline_ms=5, ttft_deadline_ms=4, client_sent_unix_us=1)
    assert claim(TOKEN, tokens(message=again)).request_id == "gateway-0.abcdef"


@pytest.mark.parametrize(
    "other",
    [
        tokens("cd" * 32),
        tokens(key=dataclasses.replace(KEY, tenant="other")),
        tokens(key=dataclasses.replace(KEY, hash="sha256:2")),
        tokens(message=asked("hello!")),
        tokens(message=asked(sampling=pb.Sampling(seed=1))),
        tokens(salt="salt"),
    ],
    ids=["fleet", "tenant", "key", "prompt", "sampling", "salt"],
)
def test_a_token_is_refused_where_anything_else_differs(other: ResumeTokens) -> None:
    with pytest.raises(InvalidRequest, match="none of this key and request"):
        claim(TOKEN, other)


@pytest.mark.parametrize("place", range(0, len(TOKEN), 3))
def test_a_token_that_was_changed_is_refused(place: int) -> None:
    changed = "0" if TOKEN[place] != "0" else "1"
    with pytest.raises(InvalidRequest):
        claim(TOKEN[:place] + changed + TOKEN[place + 1 :])


@pytest.mark.parametrize("token", ["", "~~~~", "a~b", TOKEN + "~", "x" * (MAX_TOKEN_CHARS + 1), "ü" * 20])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest):
        claim(token)


def test_a_stream_keeps_its_first_name_however_often_it_goes_on() -> None:
    once = claim(tokens().make("gateway-1.fedcba", ENDS_US, claim(TOKEN)))
    twice = claim(tokens().make("gateway-2.aaaaaa", ENDS_US, once))
    assert (twice.request_id, twice.stream_id, twice.resumes) == ("gateway-2.aaaaaa", "gateway-0.abcdef", 2)


def test_a_stream_goes_on_so_often_and_no_more() -> None:
    token, made = TOKEN, 0
    while token:
        before = claim(token)
        token, made = tokens().make("gateway-1.fedcba", ENDS_US, before), made + 1
    assert made == MAX_RESUMES


def test_time_counts_from_the_first_arrival() -> None:
    clock = FakeClock(unix_us=ENDS_US - 3_000_000)
    assert claim(TOKEN).deadline(clock).remaining_s(clock) == pytest.approx(3.0)
