"""An outcome has one event, one canonical status and a hint where trying again helps."""

from __future__ import annotations

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.scope.outcome import Outcome
from shared import errors
from tests.support.text_request import text_request

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


CONSTRAINED = (
    pb.Sampling(regex="a"),
    pb.Sampling(allowed_token_ids=[1]),
    pb.Sampling(bad_word_ids=[pb.TokenIds(ids=[1])]),
)


@pytest.mark.parametrize("sampling", CONSTRAINED)
def test_nothing_left_to_draw_is_the_fault_of_the_constraints(sampling: pb.Sampling) -> None:
    outcome = Outcome.ended("error", text_request(sampling=sampling).sampling)
    assert (outcome.word, outcome.finish, outcome.status) == ("failed", "", "INVALID_ARGUMENT")


def test_nothing_left_to_draw_without_constraints_is_a_broken_model() -> None:
    outcome = Outcome.ended("error", text_request(sampling=pb.Sampling()).sampling)
    assert (outcome.word, outcome.status) == ("failed", "INTERNAL")


def test_a_word_that_is_not_known_is_a_failure_by_name_with_one_terminal_event() -> None:
    outcome = Outcome.ended("content_filter_of_tomorrow", text_request(sampling=pb.Sampling()).sampling)
    terminal = outcome.terminal_event(pb.Usage(), pb.Timeline())
    assert (terminal.outcome, outcome.finish, outcome.status) == (pb.OUTCOME_FAILED, "", "INTERNAL")
    assert "'content_filter_of_to'" in terminal.error.message


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
