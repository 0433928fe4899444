"""Predictions of a whole deployment: without load, overloaded, finite, and the same again each time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.prediction import MAX_SHARED_TOKENS, Prediction, predict, predict_finite
from services.cli.capacity.profile import InstanceCounts
from tests.unit.services.cli.capacity.deployments import PROFILE, load

LEVELS = [ServiceLevel.read("ttft_p99<600ms"), ServiceLevel.read("itl_p99<40ms")]
PLAYED = 150
BUSY = replace(
    PROFILE,
    prefill=replace(PROFILE.prefill, cores=2.0),
    decode=replace(PROFILE.decode, cores=2.0),
    host=replace(PROFILE.host, request_cpu_ms=20.0, token_cpu_ms=0.5),
)
"""Each worker takes both cores of a machine."""


def ms(prediction: Prediction, name: str, share: str) -> float:
    return prediction.latencies[name].quantiles[share].value


def test_one_request_alone_takes_what_its_parts_take() -> None:
    prediction = predict(PROFILE, load(1e-9), InstanceCounts(), requests=PLAYED)
    prompt_ms = 4 + 256 / 1.5
    assert ms(prediction, "ttft", "p99") == pytest.approx(3 + 0.1 + 2 + prompt_ms)
    assert ms(prediction, "itl", "p50") == pytest.approx(12)
    assert ms(prediction, "itl", "p99") == pytest.approx(15)
    assert ms(prediction, "tpot", "p50") == pytest.approx(12 + 3 / 63)
    assert prediction.rates["goodput"] == pytest.approx(1e-9)
    assert prediction.stages["prefill"].wait.mean_s == pytest.approx(0, abs=1e-9)


def test_a_gateway_s_line_is_of_requests_that_tokens_hold_up() -> None:
    """At 5 requests a second tokens take 3.2 % of its core."""
    prediction = predict(PROFILE, load(5.0), InstanceCounts(1, 3, 1), requests=PLAYED)
    alone = predict(PROFILE, load(1e-9), InstanceCounts(), requests=PLAYED)
    held_up = 3 / (1 - 5 * 64 * 0.1 / 1e3) - 3
    assert prediction.latencies["ttft"].mean > alone.latencies["ttft"].mean + held_up
    assert 0 < prediction.stages["gateway"].wait.mean_s < 0.003


def test_no_load_at_all_is_predicted() -> None:
    prediction = predict(PROFILE, load(0.0), InstanceCounts(), LEVELS, requests=PLAYED)
    assert prediction.kept
    assert prediction.rates["goodput"] == 0


def test_answers_of_one_token_have_no_gaps() -> None:
    levels = [ServiceLevel.read("tpot_p99<1ms"), ServiceLevel.read("itl_p99<1ms")]
    prediction = predict(PROFILE, load(1.0, answer=1), InstanceCounts(), levels, requests=PLAYED)
    assert math.isnan(ms(prediction, "itl", "p50"))
    assert prediction.latencies["e2e"].mean == pytest.approx(prediction.latencies["ttft"].mean)
    assert prediction.rates["goodput"] == 1


def test_too_much_load_is_a_sentence() -> None:
    prediction = predict(PROFILE, load(20.0), InstanceCounts(4, 8, 1), LEVELS)
    assert prediction.trouble.startswith("1 decode instance cannot keep up with 20 requests/s")
    assert prediction.rates["goodput"] == 0
    assert not prediction.kept


def test_a_request_that_has_no_room_is_a_sentence() -> None:
    prediction = predict(PROFILE, load(1.0, prompt=70_000), InstanceCounts(), LEVELS)
    assert "which hold 65536: give decode workers more KV" in prediction.trouble
    assert predict_finite(PROFILE, load(1.0, prompt=70_000), InstanceCounts(), [0.0]).trouble


def test_kv_bounds_the_slots() -> None:
    assert predict(PROFILE, load(0.001, prompt=16_000 - 64), InstanceCounts(), requests=PLAYED).slots == 4


def test_goodput_is_of_requests_that_keep_all() -> None:
    typical = ms(predict(PROFILE, load(3.0), InstanceCounts(), requests=PLAYED), "ttft", "p50")
    level = ServiceLevel.read(f"ttft_p99<{typical:.4f}ms")
    found = predict(PROFILE, load(3.0), InstanceCounts(), [level], requests=PLAYED)
    assert found.rates["goodput"] == pytest.approx(1.5, rel=0.02)


def test_of_gaps_a_request_keeps_its_own_quantile() -> None:
    """Its longest of 63 is the first, with KV on its way: 15 ms alone."""
    for limit, good in ((15.1, 0.001), (14.9, 0.0)):
        level = ServiceLevel.read(f"itl_p99<{limit}ms")
        found = predict(PROFILE, load(0.001), InstanceCounts(), [level], requests=PLAYED)
        assert found.rates["goodput"] == pytest.approx(good)


def test_a_step_beside_a_prompt_takes_longer_on_one_core() -> None:
    host = replace(PROFILE.host, cores=1)
    profile = replace(PROFILE, host=host, gateway=replace(PROFILE.gateway, cpu_ms=0.0, token_cpu_ms=0.0))
    counts, workload = InstanceCounts(), load(0.1, prompt=600, answer=200)
    alone, shared = (predict(profile, workload, counts, hosts=hosts, requests=60) for hosts in (None, 1))
    step_ms, prompt_ms = 12.0, 4 + 600 / 1.5
    assert alone.stretch == 1
    assert ms(shared, "itl", "p50") == pytest.approx(step_ms, rel=0.25)
    assert ms(shared, "itl", "p99") > 2 * step_ms - 4
    assert ms(shared, "ttft", "p99") > 1.8 * prompt_ms
    assert 1 < shared.stretch < 2


def test_cores_enough_for_all_workers_at_once_stretch_little() -> None:
    """Small work takes some of the four cores now and then."""
    assert predict(PROFILE, load(2.0), InstanceCounts(), hosts=2, requests=50).stretch < 1.01


def test_more_work_than_a_machine_has_cores_is_a_sentence() -> None:
    """Each worker alone would keep up with 4 a second; a machine of two cores does not with both."""
    counts = InstanceCounts(1, 2, 2)
    assert not predict(BUSY, load(4.0), counts, requests=50).trouble
    shared = predict(BUSY, load(4.0), counts, hosts=1, requests=50)
    assert "cannot keep up" in shared.trouble
    assert max(stage.utilization for stage in shared.stages.values()) > 1


def test_a_finite_load_begins_empty_and_ends() -> None:
    """Three at once on one prefill worker, then one alone: rates are over the time until the last end."""
    times_s = [0.0, 0.0, 0.0, 60.0]
    found = predict_finite(PROFILE, load(1.0), InstanceCounts(), times_s, LEVELS)
    prompt_ms = 4 + 256 / 1.5
    assert ms(found, "ttft", "p50") == pytest.approx(3 + prompt_ms + 5.1, rel=0.05)
    assert ms(found, "ttft", "p99") == pytest.approx(3 * prompt_ms + 5.1, rel=0.05)
    seconds = 60 + (5.1 + prompt_ms + 3 + 63 * 12) / 1e3
    assert found.rates["requests_per_s"] == pytest.approx(4 / seconds, rel=1e-3)
    assert found.rates["goodput"] == found.rates["requests_per_s"]
    assert found.rates["output_tokens_per_s"] == pytest.approx(256 / seconds, rel=1e-3)


def test_a_finite_load_may_be_more_than_instances_keep_up_with() -> None:
    times_s = [0.02 * number for number in range(40)]
    found = predict_finite(PROFILE, load(1.0), InstanceCounts(), times_s, LEVELS)
    assert not found.trouble
    assert found.stages["prefill"].utilization > 1
    assert ms(found, "ttft", "p99") == pytest.approx(40 * 174.7 - 780, rel=0.05)


def test_shared_cores_play_so_many_tokens_at_most() -> None:
    """Steps there are played one by one."""
    workload = load(0.5, prompt=10, answer=MAX_SHARED_TOKENS // 100)
    found = predict(PROFILE, workload, InstanceCounts(), hosts=4, requests=1000)
    assert found.latencies["ttft"].count == 100


@pytest.mark.parametrize(
    ("rate", "variation", "prompt", "answer", "count"),
    [(0.4, 1.0, 2000, 30, 1), (6.0, 2.0, 300, 60, 2), (9.0, 0.0, 20, 5, 1)],
)
def test_more_instances_are_no_worse_and_more_load_is_no_better(
    rate: float, variation: float, prompt: int, answer: int, count: int
) -> None:
    """In the mean: one request may meet another one than before."""

    def mean_ms(rate: float, count: int) -> float:
        workload = load(rate, prompt, answer, variation)
        found = predict(PROFILE, workload, InstanceCounts(count, count, count), requests=80)
        return found.latencies["e2e"].mean

    here = mean_ms(rate, count)
    assert mean_ms(rate, count + 1) <= here * 1.02
    assert here <= mean_ms(rate * 1.3, count) * 1.02


def test_a_line_of_prompts_has_the_wait_of_m_d_1() -> None:
    """Pollaczek and Khinchine: rho / (1 - rho) / 2 of a prompt in the mean, and a share of rho waits."""
    rho, prompt_s = 3 * (0.004 + 256 / 1500), 0.004 + 256 / 1500
    wait = predict(PROFILE, load(3.0, answer=1), InstanceCounts(), requests=3000).stages["prefill"].wait
    assert wait.mean_s == pytest.approx(rho * prompt_s / (1 - rho) / 2, rel=0.12)
    assert wait.share == pytest.approx(rho, abs=0.05)
