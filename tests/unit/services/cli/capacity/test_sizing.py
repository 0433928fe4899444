"""Counts that are found, what breaks first, a loss, and what-if."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.profile import ROLES_SIZED, HostSize, InstanceCounts
from services.cli.capacity.sizing import (
    RATE_EXACT,
    CapacityQuestion,
    breaking_point,
    fewest_instances,
    hosts_for,
    loss_outcomes,
    with_spares,
)
from services.cli.capacity.what_if import what_if_rows
from tests.unit.services.cli.capacity.deployments import PROFILE, load

PLAYED = 60
LEVELS = (ServiceLevel.read("ttft_p99<600ms"), ServiceLevel.read("itl_p99<40ms"))


def question(rate: float, *levels: str) -> CapacityQuestion:
    given = [ServiceLevel.read(level) for level in levels] or LEVELS
    return CapacityQuestion(PROFILE, load(rate), given, requests=PLAYED)


@pytest.mark.parametrize("rate", [0.3, 7.0, 60.0])
def test_what_is_found_keeps_everything_and_nobody_can_be_left_out(rate: float) -> None:
    asked = question(rate)
    found = fewest_instances(asked)
    assert found.kept
    for role in ROLES_SIZED:
        if found.counts.of(role) > 1:
            assert not asked.predict(found.counts.with_one(role, -1)).kept


def test_without_a_load_one_of_each_is_enough() -> None:
    assert fewest_instances(question(0.0)).counts == InstanceCounts(1, 1, 1)


def test_what_no_instances_can_keep_is_not_kept() -> None:
    """A prompt alone takes 175 ms."""
    assert not fewest_instances(question(1.0, "ttft_p99<100ms")).kept
    assert not fewest_instances(question(1.0, "goodput>2")).kept


def test_the_greatest_rate_is_where_it_breaks() -> None:
    asked = question(3.0)
    breaking = breaking_point(asked, InstanceCounts(1, 2, 1))
    assert asked.predict(InstanceCounts(1, 2, 1), breaking.rate).kept
    assert not asked.predict(InstanceCounts(1, 2, 1), breaking.rate * RATE_EXACT).kept
    assert breaking.why == "ttft_p99<600ms is missed"
    without = replace(asked, levels=())
    most = breaking_point(without, InstanceCounts(1, 9, 1))
    assert most.rate == pytest.approx(16 / (63 * 0.03), rel=1e-4)
    assert most.role == "decode"
    assert "cannot keep up" in most.why


def test_what_breaks_without_any_load_is_said() -> None:
    assert breaking_point(question(1.0, "itl_p50<1ms"), InstanceCounts()).rate == 0


def test_a_loss_queues_what_the_others_cannot_do() -> None:
    """Of 8.47/s at most, half is left for 12.75 s."""
    counts = InstanceCounts(2, 6, 2)
    asked = CapacityQuestion(PROFILE, load(12.0), requests=PLAYED)
    gateway, prefill, decode = loss_outcomes(asked, counts)
    most = 2 * 16 / (63 * 0.03)
    assert gateway.kept
    assert prefill.kept
    assert decode.backlog == pytest.approx((12 - most / 2) * 12.75, rel=1e-6)
    assert decode.drained_s == pytest.approx(decode.backlog / (most - 12), rel=1e-6)
    (alone, *_) = loss_outcomes(asked, InstanceCounts(1, 6, 2))
    assert (alone.left, alone.prediction) == (0, None)
    assert alone.backlog == pytest.approx(12 * 12.75)
    assert loss_outcomes(asked, InstanceCounts(1, 6, 1))[2].drained_s == math.inf


def test_with_spares_any_one_may_fail() -> None:
    asked = question(6.0)
    counts = with_spares(fewest_instances(asked))
    assert all(loss.kept for loss in loss_outcomes(asked, counts))


def test_hosts_have_the_cores_and_the_gpus() -> None:
    assert hosts_for(PROFILE, InstanceCounts(1, 1, 1)) == 2
    gpus = replace(PROFILE, host=HostSize(64, 2), decode=replace(PROFILE.decode, gpus=1))
    assert hosts_for(gpus, InstanceCounts(1, 1, 5)) == 3


def test_what_if_has_each_change_and_int8_where_the_profile_has_it() -> None:
    asked = question(3.0)
    rows = {row.change: row for row in what_if_rows(asked, InstanceCounts(1, 2, 1))}
    assert list(rows) == [
        "as it is",
        "one more decode worker",
        "one more prefill worker",
        "int8 weights",
        "half of the prompts cached",
        "twice the rate",
    ]
    rate = rows["as it is"].most_rate
    assert all(rows[change].most_rate >= rate for change in rows)
    assert (
        rows["int8 weights"].prediction.latencies["itl"].mean
        < rows["as it is"].prediction.latencies["itl"].mean
    )
    plain = replace(asked, profile=replace(PROFILE, int8=None))
    assert "int8 weights" not in [row.change for row in what_if_rows(plain, InstanceCounts(1, 2, 1))]
