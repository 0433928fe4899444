"""Whom a change would reach, by the requests that gateways have just had."""

from __future__ import annotations

from services.cli.flags.blast_radius import NOBODY, blast_radius
from shared.messages import FlagTraffic, FlagTrafficRow
from tests.support.flag_changes import flag_change

NOW_US = 1_700_000_300_000_000
SINCE_US = NOW_US - 300_000_000


def row(tenant: str, ttft_ms: int = 100, outcome: str = "finished", model: str = "m") -> FlagTrafficRow:
    return FlagTrafficRow(tenant, model, outcome, NOW_US - 1, 1000 * ttft_ms, 5000 * ttft_ms, 8)


TRAFFIC = [
    FlagTraffic((row("acme"), row("acme", 300), row("globex"), row("", 0, "failed")), SINCE_US),
    FlagTraffic((*(row("acme", 200) for _ in range(8)), row("acme", model="other")), NOW_US - 60_000_000),
]


def test_the_load_of_each_tenant_is_that_of_all_gateways_by_the_time_of_which_each_knows() -> None:
    radius = blast_radius(flag_change(), TRAFFIC, [], NOW_US)
    assert [(load.tenant, round(load.per_minute, 2)) for load in radius.loads] == [
        ("acme", 9.4),
        (NOBODY, 0.2),
        ("globex", 0.2),
    ]
    assert (round(radius.per_minute, 2), radius.gateways) == (9.8, 2)
    acme, nobody, _ = radius.loads
    assert (acme.ttft_p50_ms, acme.ttft_p99_ms, acme.failed) == (200.0, 300.0, 0)
    assert (nobody.ttft_p50_ms, nobody.failed) == (0.0, 1)


def test_a_change_reaches_those_that_it_is_for() -> None:
    radius = blast_radius(flag_change(tenant="acme", model="m"), TRAFFIC, [], NOW_US)
    assert [load.tenant for load in radius.loads] == ["acme"]
    assert round(radius.reached_per_minute, 2) == 8.4
    assert blast_radius(flag_change(tenant="initech"), TRAFFIC, [], NOW_US).loads == ()


def test_what_sets_the_same_for_some_of_them_is_named() -> None:
    others = [
        flag_change(1),
        flag_change(2, tenant="globex"),
        flag_change(3, tenant="acme", model="m"),
        flag_change(4, setting="rerank", value="false"),
    ]
    radius = blast_radius(flag_change(9, tenant="acme"), TRAFFIC, others, NOW_US)
    assert radius.overrides == ("1@gateway-0", "3@gateway-0")
