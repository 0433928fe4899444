"""The trace of a call has whom it asked, within bounds, and times that no clock's steps move."""

from __future__ import annotations

from contextlib import suppress

from services.gateway.asks.call_trace import MAX_CALL_ASKS, CallTrace
from shared.errors import Unavailable
from shared.telemetry.trace_sampler import TraceSampler
from tests.support.clock import FakeClock


def test_the_first_questions_of_a_call_are_kept() -> None:
    trace = CallTrace("embeddings", "acme", TraceSampler(), FakeClock())
    for number in range(MAX_CALL_ASKS + 1):
        with trace.asking("retriever", f"retriever-{number}"):
            pass
    asks = trace.record("gateway-0.a", 7).asks
    assert [ask.instance for ask in asks] == [f"retriever-{number}" for number in range(MAX_CALL_ASKS)]


def test_times_are_the_gateways_own_and_an_error_is_the_questions() -> None:
    clock = FakeClock()
    trace = CallTrace("rerank", "", TraceSampler(), clock)
    began_unix_us = clock.unix_us()
    clock.advance(0.001)
    with suppress(Unavailable), trace.asking("retriever", "retriever-0"):
        clock.advance(0.002)
        raise Unavailable("gone", hop="retriever")
    clock.advance(0.003)
    trace.fail(Unavailable("nobody is left", hop="retriever"))
    record = trace.record("gateway-0.a", 0)
    (ask,) = record.asks
    assert (ask.start_us, ask.end_us, ask.error) == (1000, 3000, "unavailable")
    assert (record.began_unix_us, record.total_us) == (began_unix_us, 6000)
    assert (record.error, record.hop) == ("unavailable", "retriever")
