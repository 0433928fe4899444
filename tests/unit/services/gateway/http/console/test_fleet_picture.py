"""The picture of a fleet has its first instances, corpora and adapters, however many there are."""

from __future__ import annotations

import pytest

from services.gateway.http.console.fleet_picture import (
    MAX_SHOWN_ADAPTERS,
    MAX_SHOWN_CORPORA,
    MAX_SHOWN_INSTANCES,
    instances_picture,
)
from shared.bus.fleet import InstanceView
from shared.messages import AdapterReport, BreakerReport, CorpusReport
from tests.support.heartbeats import make_heartbeat


def view(role: str, number: int, **fields: object) -> InstanceView:
    return InstanceView(make_heartbeat(role, f"{role}-{number:04}", **fields), 0.0)


@pytest.mark.parametrize("beyond", [0, 1])
def test_so_many_instances_are_shown_and_the_others_counted(beyond: int) -> None:
    views = [view("decode", number) for number in range(MAX_SHOWN_INSTANCES + beyond)]
    picture = instances_picture(reversed(views), ())
    names = [instance["instance"] for instance in picture["instances"]]
    assert names == [f"decode-{number:04}" for number in range(MAX_SHOWN_INSTANCES)]
    assert picture["left_out"] == beyond


@pytest.mark.parametrize("beyond", [0, 1])
def test_so_many_corpora_are_shown_by_name(beyond: int) -> None:
    reports = [CorpusReport(f"c{number:03}", 7, 1) for number in range(MAX_SHOWN_CORPORA + beyond)]
    half = len(reports) // 2
    parts = (reports[half:], reports[:half])
    views = [view("retriever", number, corpora=tuple(part)) for number, part in enumerate(parts)]
    shown = [corpus["name"] for corpus in instances_picture(views, ())["corpora"]]
    assert shown == [f"c{number:03}" for number in range(MAX_SHOWN_CORPORA)]


@pytest.mark.parametrize("beyond", [0, 1])
def test_so_many_adapters_of_an_instance_are_shown(beyond: int) -> None:
    reports = tuple(AdapterReport(f"a{number}", 1, "d", 8) for number in range(MAX_SHOWN_ADAPTERS + beyond))
    (shown,) = instances_picture([view("decode", 0, adapters=reports)], ())["instances"]
    assert [adapter["name"] for adapter in shown["adapters"]] == [f"a{n}" for n in range(MAX_SHOWN_ADAPTERS)]


def test_a_corpus_is_shown_as_its_newest_generation_is() -> None:
    older, newer = CorpusReport("docs", 7, 1), CorpusReport("docs", 9, 2)
    for order in ((older, newer), (newer, older)):
        views = [view("retriever", number, corpora=(report,)) for number, report in enumerate(order)]
        (corpus,) = instances_picture(views, ())["corpora"]
        assert (corpus["passages"], corpus["generation"]) == (9, 2)


def test_an_instance_that_is_avoided_here_says_so() -> None:
    reports = (BreakerReport("decode", "decode-0001", 1, "open"),)
    shown = instances_picture([view("decode", 0), view("decode", 1)], reports)["instances"]
    assert [instance["breaker"] for instance in shown] == ["", "open"]
