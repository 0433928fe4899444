"""The latest requests are kept, found by both their names, and compared with those like them."""

from __future__ import annotations

from services.gateway.scope.request_record import RequestRecord
from services.gateway.tracing.ended_requests import MAX_ENDED_REQUESTS, EndedRequests
from shared.messages import PhaseAccount
from shared.telemetry.timeline import Phase
from tests.support.records import make_record


def timed(decode_us: int, **changes: object) -> RequestRecord:
    phases = (Phase("admit", 0, 100), Phase("decode", 100, decode_us))
    return make_record(phases=phases, total_us=100 + decode_us, **changes)


def decode_of(ended: EndedRequests, record: RequestRecord) -> PhaseAccount:
    return next(phase for phase in ended.account(record).phases if phase.name == "decode")


def test_a_request_is_found_by_our_id_and_by_its_clients_the_latest_first() -> None:
    ended = EndedRequests()
    first, second = (make_record(request_id=f"g.{n}", client_id="theirs") for n in (1, 2))
    ended.add(first)
    ended.add(second)
    assert ended.find("g.1") is first
    assert ended.find("theirs") is second
    assert ended.find("g.3") is None


def test_of_more_than_are_kept_the_oldest_is_forgotten() -> None:
    ended = EndedRequests()
    for number in range(MAX_ENDED_REQUESTS + 9):
        ended.add(make_record(request_id=f"g.{number}"))
    assert ended.kept == MAX_ENDED_REQUESTS
    assert ended.find("g.8") is None
    assert ended.find("g.9") is not None


def test_a_phase_is_compared_with_that_of_others_and_not_with_itself() -> None:
    ended = EndedRequests()
    for number in range(1, 11):
        ended.add(timed(number * 1000, output_tokens=2))
    slow = timed(500_000, output_tokens=2)
    ended.add(slow)
    decode = decode_of(ended, slow)
    assert (decode.samples, decode.p50_us, decode.p95_us) == (10, 5000, 10_000)
    assert decode.compared_us == 500_000


def test_decoding_is_compared_by_the_token() -> None:
    ended = EndedRequests()
    ended.add(timed(9_000, output_tokens=10))
    long = timed(90_000, output_tokens=91)
    ended.add(long)
    decode = decode_of(ended, long)
    assert (decode.per_token, decode.compared_us, decode.p50_us) == (True, 1000, 1000)


def test_only_answered_requests_of_the_same_model_and_length_are_compared() -> None:
    ended = EndedRequests()
    record = timed(1000)
    for other in (
        timed(1000, model="another"),
        timed(1000, prompt_tokens=5000),
        timed(1000, outcome="failed", finish=""),
        record,
    ):
        ended.add(other)
    assert ended.account(record).compared == 0
    ended.add(timed(1000))
    assert ended.account(record).compared == 1


def test_a_phase_of_several_attempts_is_summed() -> None:
    phases = (Phase("prefill.compute", 0, 10), Phase("lost", 10, 5), Phase("prefill.compute", 15, 20))
    account = EndedRequests().account(make_record(phases=phases))
    assert {phase.name: phase.duration_us for phase in account.phases} == {"prefill.compute": 30, "lost": 5}
