"""Show the requests that run and those that have ended, for the console, with their timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

from services.gateway.session.console_report import MAX_SHOWN_LATEST, MAX_SHOWN_LIVE, MAX_SHOWN_TAIL
from services.gateway.tracing.ended_requests import VIEWS
from shared.messages import ConsoleReport, EndedRow


def _ended_last(request: EndedRow) -> int:
    return request.ended_unix_ms


def _slow_to_begin(request: EndedRow) -> int:
    return request.ttft_us or 0


def _slow(request: EndedRow) -> int:
    return request.total_us


ORDERS: Mapping[str, tuple[int, Callable[[EndedRow], int]]] = dict(
    zip(
        VIEWS,
        (
            (MAX_SHOWN_LATEST, _ended_last),
            (MAX_SHOWN_TAIL, _ended_last),
            (MAX_SHOWN_TAIL, _slow_to_begin),
            (MAX_SHOWN_TAIL, _slow),
        ),
        strict=True,
    )
)
"""The most requests of a view, and by what number they come first."""


def request_list(reports: Sequence[ConsoleReport]) -> dict[str, Any]:
    """Return the requests of all gateways that report, as if they were one's."""
    return {
        "live": sum(report.live for report in reports),
        "running": [
            asdict(request)
            for request in islice(chain.from_iterable(r.running for r in reports), MAX_SHOWN_LIVE)
        ],
        "ended": _ended([request for report in reports for request in report.ended]),
    }


def _ended(requests: Iterable[EndedRow]) -> list[dict[str, Any]]:
    """Return those that each view has room for, each once."""
    requests = list(requests)
    shown: dict[str, dict[str, Any]] = {}
    for view, (most, number) in ORDERS.items():
        found = sorted((each for each in requests if view in each.views), key=number, reverse=True)
        for request in found[:most]:
            row = shown.setdefault(request.id, asdict(request) | {"views": []})
            row["views"].append(view)
    return list(shown.values())
