"""The console's list of requests: what has ended stands in it once, under each reason to show it."""

from __future__ import annotations

import json

from services.gateway.http.console.request_list import MAX_SHOWN_LATEST, MAX_SHOWN_TAIL, request_list
from services.gateway.tracing.ended_requests import SENTENCE_CHARS, VIEWS, EndedRequests
from shared.telemetry.timeline import MAX_PHASES, Phase
from tests.support.clock import FakeClock
from tests.support.records import make_record

MAX_ANSWER_BYTES = 1 << 20
"""The largest answer that there can be: a browser reads one every second."""


def shown(ended: EndedRequests) -> list[dict[str, object]]:
    return request_list(0, (), ended)["ended"]  # type: ignore[no-any-return]  # as it is written


def test_a_request_of_several_views_stands_there_once() -> None:
    ended = EndedRequests(clock=FakeClock())
    ended.add(make_record(request_id="one"))
    ended.add(make_record(request_id="two", outcome="failed", finish="", error="unavailable"))
    assert {request["id"]: request["views"] for request in shown(ended)} == {
        "one": ["latest", "slow_start", "slow"],
        "two": ["latest", "failed"],
    }


def test_each_view_has_its_limit_and_so_has_the_whole_answer() -> None:
    clock = FakeClock()
    ended = EndedRequests(clock=clock)
    phases = tuple(Phase("prefill.compute", 10**9, 10**9) for _ in range(MAX_PHASES))
    for number in range(400):
        name = f"gateway-0.{number:012x}"
        ended.add(make_record(request_id=name, phases=phases, ttft_us=number, total_us=10**6 - number))
        ended.add(
            make_record(
                request_id=f"{name}f", phases=phases, outcome="failed", finish="", error_text="é" * 2000
            )
        )
        clock.advance(1.0)
    requests = shown(ended)
    counts = {view: sum(view in request["views"] for request in requests) for view in VIEWS}  # type: ignore[operator]  # names
    assert counts == {
        "latest": MAX_SHOWN_LATEST,
        "failed": MAX_SHOWN_TAIL,
        "slow_start": MAX_SHOWN_TAIL,
        "slow": MAX_SHOWN_TAIL,
    }
    assert max(len(str(request["error"])) for request in requests) == SENTENCE_CHARS
    assert len(json.dumps(requests)) < MAX_ANSWER_BYTES
