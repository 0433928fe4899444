"""What tenants have used: sums over gateways, differences of two readings, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.cli.bench.report.prices import Prices
from services.cli.usage.usage import build_usage_parser, usage_table
from services.cli.usage.usage_sums import GatewayUsage, total, used_since
from shared.messages import UsageReport, UsageRow

ROW = UsageRow(
    tenant="acme",
    model="m",
    requests=3,
    finished=2,
    prompt_tokens=1000,
    cached_tokens=400,
    shared_prompt_tokens=100,
    output_tokens=200,
    kept_tokens=50,
    coalesced_tokens=30,
    drafted_tokens=20,
    prefill_core_us=1_800_000_000,
    decode_core_us=1_800_000_000,
    prefill_device_us=0,
    decode_device_us=0,
    kv_kib_s=3600 << 20,
)


def reading(instance: str, incarnation: int, *rows: UsageRow) -> GatewayUsage:
    return GatewayUsage(instance, UsageReport(incarnation, 0, rows))


def test_gateways_are_added_up_by_tenant_and_model() -> None:
    other = replace(ROW, tenant="")
    sums = total([reading("gateway-0", 1, ROW), reading("gateway-1", 1, ROW, other)])
    assert {key: row.requests for key, row in sums.items()} == {("", "m"): 3, ("acme", "m"): 6}


def test_a_period_is_the_difference_and_a_gateway_that_has_started_anew_counts_whole() -> None:
    before = [reading("gateway-0", 1, ROW), reading("gateway-1", 1, ROW)]
    more = replace(ROW, requests=5, output_tokens=260)
    now = [reading("gateway-0", 1, more), reading("gateway-1", 2, replace(ROW, requests=1, output_tokens=7))]
    used = used_since(before, now)
    assert [(row.requests, row.output_tokens) for row in used.values()] == [(3, 67)]
    assert used_since(now, now) == {}


@pytest.mark.parametrize(
    ("prices", "cost"),
    [
        (Prices(input_per_million=1e6), 500),
        (Prices(cached_input_per_million=1e6), 500),
        (Prices(output_per_million=1e6), 120),
        (Prices(reused_output_per_million=1e6), 80),
        (Prices(core_per_hour=2.0), 2.0),
        (Prices(kv_gib_per_hour=3.0), 3.0),
        (Prices(machine_per_hour=9.0), 0.0),
    ],
)
def test_tokens_are_paid_for_by_where_they_came_from(prices: Prices, cost: float) -> None:
    assert prices.cost_of_usage(ROW) == pytest.approx(cost)


def test_the_table_leaves_out_what_nobody_has() -> None:
    words = usage_table({("acme", "m"): ROW}, Prices(core_per_hour=2.0, currency="EUR"))
    head, line = words.splitlines()
    assert "gpu s" not in head
    assert line.split()[:3] == ["acme", "m", "3"]
    assert line.endswith("2 EUR")
    assert usage_table({}, None) == "nothing has been used yet"


@pytest.mark.parametrize("every", ["0.5", "86401", "soon"])
def test_a_period_out_of_bounds_is_refused_with_the_bounds(
    every: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_usage_parser().parse_args(["--every", every])
    assert "send seconds from 1 to 86400" in capsys.readouterr().err
