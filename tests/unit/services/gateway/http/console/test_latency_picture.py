"""Rates and percentiles of the console are those of all gateways together."""

from __future__ import annotations

from services.gateway.http.console.latency_picture import latency_picture
from services.gateway.scope.recent_latencies import SLOT_S, SLOTS, RecentLatencies
from services.gateway.session.console_report import slot_counts
from shared.messages import ConsoleReport, SlotCounts
from tests.support.clock import FakeClock


def report(latencies: RecentLatencies) -> ConsoleReport:
    return ConsoleReport(0, (), (), tuple(slot_counts(latencies.slots())))


def test_two_gateways_show_what_one_would_show_that_had_all() -> None:
    clock = FakeClock()
    gateways, alone = [RecentLatencies(clock), RecentLatencies(clock)], RecentLatencies(clock)
    for number in range(90):
        for counted in (gateways[number % 2], alone):
            counted.record_end("shed" if number % 7 == 0 else "finished", 1000 * (number + 1))
            counted.record_delivery(number, number / 1000, clock.monotonic_s())
        clock.advance(SLOT_S * (number % 3) / 4)
    shown = latency_picture(map(report, gateways))
    assert shown == latency_picture([report(alone)])
    assert sum(shown["requests"]) == 90
    assert shown["windows"][1]["ttft"]["count"] == 90


def test_a_slot_that_is_not_kept_is_nobodys() -> None:
    lost = [SlotCounts(ago, (("finished", 1),), 5, ((3, 1),), ()) for ago in (-1, SLOTS)]
    kept = [SlotCounts(ago, (("finished", 1),), 5, ((3, 1),), ()) for ago in (0, SLOTS - 1)]
    shown = latency_picture([ConsoleReport(0, (), (), (*lost, *kept))])
    assert [place for place, count in enumerate(shown["requests"]) if count] == [0, SLOTS - 1]
