"""Outcomes, what waits for the client, budgets and the timeline."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.config import GatewayConfig
from services.gateway.prompt.preprocessor import tokenize_message
from services.gateway.request.request import Request, validate_request
from services.gateway.scope.budget import Budget
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.request_timeline import RequestTimeline
from services.gateway.scope.response_buffer import ResponseBuffer
from shared import errors
from shared.messages import ChatTurn, Mark, ScoredPassage, unpack_ids
from shared.sampling.parameters import TokenLogprob
from tests.support.clock import FakeClock

CASES = {
    errors.DeadlineExpired: (pb.OUTCOME_EXPIRED, "DEADLINE_EXCEEDED"),
    errors.Overloaded: (pb.OUTCOME_SHED, "RESOURCE_EXHAUSTED"),
    errors.Cancelled: (pb.OUTCOME_CANCELLED, "CANCELLED"),
    errors.InvalidRequest: (pb.OUTCOME_FAILED, "INVALID_ARGUMENT"),
    errors.TooLarge: (pb.OUTCOME_FAILED, "INVALID_ARGUMENT"),
    errors.NotFound: (pb.OUTCOME_FAILED, "NOT_FOUND"),
    errors.Unavailable: (pb.OUTCOME_FAILED, "UNAVAILABLE"),
    errors.InternalError: (pb.OUTCOME_FAILED, "INTERNAL"),
    errors.ProtocolError: (pb.OUTCOME_FAILED, "INTERNAL"),
    errors.StaleEpoch: (pb.OUTCOME_FAILED, "INTERNAL"),
}


def request(**fields: object) -> Request:
    message = pb.GenerateRequest(**{"text": "hi", **fields})  # type: ignore[arg-type]  # its fields
    return validate_request(message, drawn_seed=1)


CONSTRAINED = (
    pb.Sampling(regex="a"),
    pb.Sampling(allowed_token_ids=[1]),
    pb.Sampling(bad_word_ids=[pb.TokenIds(ids=[1])]),
)


@pytest.mark.parametrize("sampling", CONSTRAINED)
def test_nothing_left_to_draw_is_the_fault_of_the_constraints(sampling: pb.Sampling) -> None:
    outcome = Outcome.ended("error", request(sampling=sampling).sampling)
    assert (outcome.word, outcome.finish, outcome.status) == ("failed", "", "INVALID_ARGUMENT")


def test_nothing_left_to_draw_without_constraints_is_a_broken_model() -> None:
    outcome = Outcome.ended("error", request(sampling=pb.Sampling()).sampling)
    assert (outcome.word, outcome.status) == ("failed", "INTERNAL")


@pytest.mark.parametrize("error_type", CASES)
def test_an_error_has_one_outcome_and_one_canonical_status(error_type: type[errors.PenstockError]) -> None:
    event, status = CASES[error_type]
    outcome = Outcome.of(error_type("it says why", hop="decode", retry_after_ms=5))
    terminal = outcome.terminal_event(pb.Usage(), pb.Timeline())
    assert (terminal.outcome, outcome.status) == (event, status)
    assert status in grpc.StatusCode.__members__
    assert (terminal.error.message, terminal.error.hop, terminal.error.retry_after_ms) == (
        "it says why",
        "decode",
        5,
    )
    assert terminal.error.code == error_type.code


@pytest.mark.parametrize("error_type", CASES)
def test_of_the_errors_without_a_hint_only_a_full_fleet_gets_one(
    error_type: type[errors.PenstockError],
) -> None:
    terminal = Outcome.of(error_type("it says why")).terminal_event(pb.Usage(), pb.Timeline())
    assert (terminal.error.retry_after_ms > 0) == (error_type is errors.Overloaded)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", pb.FINISH_REASON_STOP),
        ("stop_string", pb.FINISH_REASON_STOP),
        ("length", pb.FINISH_REASON_LENGTH),
    ],
)
def test_a_finish_has_its_reason_and_no_error(finish: str, reason: pb.FinishReason) -> None:
    outcome = Outcome.finished(finish)
    terminal = outcome.terminal_event(pb.Usage(), pb.Timeline())
    assert (terminal.outcome, terminal.finish_reason, outcome.status) == (pb.OUTCOME_FINISHED, reason, "OK")
    assert not terminal.HasField("error")


# ---- response buffer -----------------------------------------------------------------------------


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


# ---- budget ---------------------------------------------------------------------------------------


def seconds(budget: Budget, clock: FakeClock) -> tuple[float, float]:
    return round(budget.first_token.remaining_s(clock), 3), round(budget.total.remaining_s(clock), 3)


CONFIG = GatewayConfig(default_deadline_s=100.0, default_ttft_deadline_s=50.0)


@pytest.mark.parametrize(
    ("fields", "call_s", "expected"),
    [
        ({}, None, (50.0, 100.0)),
        ({"deadline_ms": 10_000}, None, (10.0, 10.0)),
        ({"deadline_ms": 200_000}, None, (50.0, 200.0)),
        ({"ttft_deadline_ms": 3000}, None, (3.0, 100.0)),
        ({"ttft_deadline_ms": 30_000, "deadline_ms": 20_000}, None, (20.0, 20.0)),
        ({"deadline_ms": 10_000}, 5.0, (4.9, 4.9)),
        ({"deadline_ms": 4000}, 5.0, (4.0, 4.0)),
        ({}, 500.0, (50.0, 499.9)),
        ({}, 0.04, (0.03, 0.03)),
    ],
)
def test_the_earliest_deadline_wins(
    fields: dict[str, int], call_s: float | None, expected: tuple[float, float]
) -> None:
    clock = FakeClock()
    assert seconds(Budget.of(request(**fields), CONFIG, call_s, clock), clock) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"deadline_ms": 10_000}, 10.0),
        ({"deadline_ms": 10_000, "inter_token_deadline_ms": 500}, 4.525),
        ({"deadline_ms": 10_000, "inter_token_deadline_ms": 8000}, 10.0),
    ],
)
def test_the_next_token_is_due_its_time_after_the_last_or_at_the_end(
    fields: dict[str, int], expected: float
) -> None:
    clock = FakeClock(1000.0)
    budget = Budget.of(request(**fields), CONFIG, None, clock)
    assert round(budget.next_token(1004.0).at_s - 1000.0, 3) == expected


# ---- request timeline ----------------------------------------------------------------------------


def durations(timeline: RequestTimeline) -> list[tuple[str, int]]:
    return [(phase.name, phase.duration_us) for phase in timeline.phases()]


def test_the_phases_partition_the_request() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(clock.unix_us() - 500, clock)
    for phase in ("admit", "tokenize", "route"):
        clock.advance(0.001)
        timeline.mark_phase(phase)
    clock.advance(0.010)
    timeline.add_row((Mark("detokenize", 100), Mark("prefill.queue", 2000), Mark("prefill.compute", 5000)))
    clock.advance(0.001)
    timeline.mark_delivered()
    clock.advance(0.020)
    timeline.add_row((Mark("kv.transfer", 3000), Mark("decode.queue", 1000)))
    timeline.mark_last_row()
    clock.advance(0.001)
    timeline.close_timeline()
    assert durations(timeline) == [
        ("client", 500),
        ("admit", 1000),
        ("tokenize", 1000),
        ("route", 1000),
        ("prefill.queue", 2000),
        ("prefill.compute", 5000),
        ("detokenize", 100),
        ("bus", 2900),
        ("deliver", 1000),
        ("kv.transfer", 3000),
        ("decode.queue", 1000),
        ("decode", 16_000),
        ("finish", 1000),
    ]
    assert (timeline.ttft_us, timeline.total_us) == (14_500, 35_500)
    event = timeline.to_event()
    assert sum(p.duration_us for p in event.phases) == event.total_us
    assert (
        sum(p.duration_us for p in event.phases if p.start_us + p.duration_us <= event.ttft_us)
        == event.ttft_us
    )


@pytest.mark.parametrize("offset_us", [1, 61_000_000])
def test_a_client_time_that_cannot_be_is_left_out(offset_us: int) -> None:
    clock = FakeClock()
    sent_us = clock.unix_us() + 1 if offset_us == 1 else clock.unix_us() - offset_us
    timeline = RequestTimeline(sent_us, clock)
    timeline.close_timeline()
    assert "client" not in dict(durations(timeline))


def test_an_answer_that_ends_with_its_first_row_is_delivered_before_it_finishes() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(0, clock)
    timeline.mark_phase("route")
    clock.advance(0.002)
    timeline.add_row(())
    timeline.mark_last_row()
    clock.advance(0.001)
    timeline.mark_delivered()
    timeline.close_timeline()
    assert durations(timeline)[1:] == [("bus", 2000), ("deliver", 1000), ("decode", 0), ("finish", 0)]


def test_a_lost_placement_is_a_phase_and_the_next_one_starts_anew() -> None:
    clock = FakeClock()
    timeline = RequestTimeline(0, clock)
    timeline.mark_phase("route")
    clock.advance(0.002)
    timeline.mark_lost()
    timeline.mark_phase("route")
    clock.advance(0.003)
    timeline.add_row((Mark("prefill.compute", 1000),))
    timeline.mark_delivered()
    clock.advance(0.004)
    timeline.mark_lost()
    timeline.mark_phase("route")
    clock.advance(0.005)
    timeline.add_row((Mark("prefill.compute", 2000),))
    timeline.mark_last_row()
    timeline.close_timeline()
    assert [entry for entry in durations(timeline) if entry[1]] == [
        ("lost", 2000),
        ("prefill.compute", 1000),
        ("bus", 2000),
        ("decode", 4000),
        ("prefill.compute", 2000),
        ("bus", 3000),
    ]


def test_counts_are_not_phases() -> None:
    timeline = RequestTimeline(0, FakeClock())
    timeline.add_row((Mark("count:draft_proposed", 4),))
    timeline.add_row((Mark("count:draft_proposed", 3), Mark("count:draft_accepted", 2)))
    timeline.close_timeline()
    assert (timeline.counts["draft_proposed"], timeline.counts["draft_accepted"]) == (7, 2)
    assert not any(name.startswith("count:") for name, _ in durations(timeline))


# ---- what a tokenizer is asked ------------------------------------------------------------------------


def test_a_plain_prompt_is_tokenized_as_it_is() -> None:
    assert tokenize_message(request(), ()).text == "hi"
    packed = tokenize_message(
        validate_request(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[3, 4])), drawn_seed=1), ()
    ).token_ids
    assert packed is not None
    assert unpack_ids(packed) == [3, 4]


def test_passages_go_to_the_tokenizer_beside_the_question() -> None:
    message = pb.GenerateRequest(retrieval=pb.Retrieval(enabled=True))
    message.chat.messages.add(role="system", content="be brief")
    message.chat.messages.add(role="user", content="why?")
    asked = tokenize_message(validate_request(message, drawn_seed=1), (ScoredPassage("a", "Because.", 1.0),))
    assert asked.chat[0] == ChatTurn("system", "be brief")
    assert (asked.chat[1], asked.passages) == (ChatTurn("user", "why?"), ("Because.",))


@pytest.mark.parametrize("optional", [False, True])
def test_a_chat_says_whether_it_needs_a_template(optional: bool) -> None:
    message = pb.GenerateRequest(chat=pb.ChatPrompt(template_optional=optional))
    message.chat.messages.add(role="user", content="why?")
    assert tokenize_message(validate_request(message, drawn_seed=1), ()).template_optional == optional


def test_a_chat_with_retrieval_needs_no_template() -> None:
    message = pb.GenerateRequest(retrieval=pb.Retrieval(enabled=True))
    message.chat.messages.add(role="user", content="why?")
    assert tokenize_message(validate_request(message, drawn_seed=1), ()).template_optional


def test_without_passages_the_question_stands_alone() -> None:
    asked = tokenize_message(request(retrieval=pb.Retrieval(enabled=True)), ())
    assert (asked.chat, asked.template_optional) == ((ChatTurn("user", "hi"),), True)
