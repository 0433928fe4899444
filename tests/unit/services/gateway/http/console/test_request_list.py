"""The console's list of requests: what has ended stands in it once, under each reason to show it."""

from __future__ import annotations

import json

from services.gateway.http.console.request_list import request_list
from services.gateway.session.console_report import (
    MAX_SHOWN_LATEST,
    MAX_SHOWN_LIVE,
    MAX_SHOWN_TAIL,
    ended_requests,
)
from services.gateway.tracing.ended_requests import SENTENCE_CHARS, VIEWS, EndedRequests
from shared.messages import ConsoleReport, RunningRow
from shared.telemetry.timeline import MAX_PHASES, Phase
from tests.support.clock import FakeClock
from tests.support.records import make_record

MAX_ANSWER_BYTES = 1 << 20
"""The largest answer that there can be: a browser reads one every second."""


def shown(*gateways: EndedRequests) -> list[dict[str, object]]:
    reports = [ConsoleReport(0, (), tuple(ended_requests(ended)), ()) for ended in gateways]
    return request_list(reports)["ended"]  # type: ignore[no-any-return]  # as it is written


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


def test_requests_of_all_gateways_are_one_list() -> None:
    clock = FakeClock()
    gateways = [EndedRequests(clock=clock), EndedRequests(clock=clock)]
    for number in range(2 * MAX_SHOWN_LATEST):
        gateways[number % 2].add(make_record(request_id=str(number), began_unix_us=number * 10**6))
    gateways[1].add(make_record(request_id="slow", began_unix_us=0, total_us=10**9))
    requests = shown(*gateways)
    latest = [request["id"] for request in requests if "latest" in request["views"]]  # type: ignore[operator]  # names
    assert latest == ["slow", *(str(number) for number in range(99, 50, -1))]
    assert next(r["id"] for r in requests if "slow" in r["views"]) == "slow"  # type: ignore[operator]  # as above


def test_all_running_requests_are_counted_and_the_first_are_shown() -> None:
    row = RunningRow("one", "acme", "model", "decode", 7, 3, 0)
    list_ = request_list([ConsoleReport(40, (row,) * 40, (), ())] * 2)
    assert (list_["live"], len(list_["running"])) == (80, MAX_SHOWN_LIVE)
    assert list_["running"][0]["phase"] == "decode"
