"""Predictions of a whole deployment: without load, overloaded, monotone, and beside a simulation."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.prediction import predict
from services.cli.capacity.profile import ROLES_SIZED, InstanceCounts
from tests.unit.services.cli.capacity.deployments import PROFILE, load

LEVELS = [ServiceLevel.read("ttft_p99<600ms"), ServiceLevel.read("itl_p99<40ms")]
SHARES = ("p50", "p99")
SIMULATED_WITHIN = 0.12
"""The share by which the simulated p99 may be off: of its own error, and of an assumed shape of waits."""


def test_one_request_alone_takes_what_its_parts_take() -> None:
    prediction = predict(PROFILE, load(1e-9), InstanceCounts())
    prompt_ms = 4 + 256 / 1.5
    assert prediction.latencies["ttft"].quantiles["p99"].value == pytest.approx(3 + 0.1 + 2 + prompt_ms)
    assert prediction.latencies["itl"].quantiles["p50"].value == pytest.approx(12)
    assert prediction.latencies["itl"].quantiles["p99"].value == pytest.approx(15)
    assert prediction.latencies["tpot"].quantiles["p50"].value == pytest.approx(12 + 3 / 63)
    assert prediction.rates["goodput"] == pytest.approx(1e-9)


def test_a_gateway_s_line_is_of_requests_and_tokens() -> None:
    """Pollaczek and Khinchine: W = rate E[S^2] / (2 (1 - rho)), of a request of 3 ms and 64 tokens of 0.1."""
    wait = predict(PROFILE, load(5.0), InstanceCounts(1, 3, 1)).stages["gateway"].wait
    busy = 5 * (3 + 6.4) / 1e3
    squares = 5 * (3**2 + 64 * 0.1**2) / 1e6
    assert wait.mean_s == pytest.approx(squares / 2 / (1 - busy))


def test_no_load_at_all_is_predicted() -> None:
    prediction = predict(PROFILE, load(0.0), InstanceCounts(), LEVELS)
    assert prediction.kept
    assert prediction.rates["goodput"] == 0


def test_answers_of_one_token_have_no_gaps() -> None:
    prediction = predict(PROFILE, load(1.0, answer=1), InstanceCounts(), [ServiceLevel.read("tpot_p99<1ms")])
    assert math.isnan(prediction.latencies["itl"].quantiles["p50"].value)
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


def test_kv_bounds_the_slots() -> None:
    assert predict(PROFILE, load(1.0, prompt=16_000 - 64), InstanceCounts()).slots == 4


def test_goodput_is_of_requests_that_keep_all() -> None:
    typical = predict(PROFILE, load(3.0), InstanceCounts()).latencies["ttft"].quantiles["p50"].value
    level = ServiceLevel.read(f"ttft_p99<{typical:.4f}ms")
    assert predict(PROFILE, load(3.0), InstanceCounts(), [level]).rates["goodput"] == pytest.approx(
        1.5, rel=0.02
    )


def test_a_step_beside_a_prompt_takes_twice_as_long_on_one_core() -> None:
    """Small work that costs nothing leaves all of it; beside an answer every prompt is twice as long, too."""
    host = replace(PROFILE.host, cores=1)
    profile = replace(PROFILE, host=host, gateway=replace(PROFILE.gateway, cpu_ms=0.0, token_cpu_ms=0.0))
    counts, workload = InstanceCounts(), load(0.1, prompt=600, answer=200)
    alone, shared = (predict(profile, workload, counts, hosts=hosts) for hosts in (None, 1))
    step_ms, prompt_ms = 12.0, 4 + 600 / 1.5
    assert alone.stretch == 1
    assert shared.latencies["itl"].quantiles["p50"].value == pytest.approx(step_ms, rel=0.25)
    assert shared.latencies["itl"].quantiles["p99"].value > 2 * step_ms
    ttft = shared.latencies["ttft"].quantiles
    assert ttft["p99"].value > 2 * prompt_ms + 2.0
    assert 1 < shared.stretch < 2


def test_cores_enough_for_all_workers_at_once_stretch_nothing() -> None:
    counts = InstanceCounts(1, 1, 1)
    assert predict(PROFILE, load(2.0), counts, hosts=2).stretch == 1
    assert predict(PROFILE, load(2.0), InstanceCounts(1, 3, 3), hosts=4).stretch == 1


def test_small_work_takes_cores_from_computations() -> None:
    """A request that costs 0.5 s of a core beside its own work, twice a second, leaves one of two cores."""
    workload, counts = load(2.0, prompt=100, answer=2), InstanceCounts()
    profile = replace(PROFILE, gateway=replace(PROFILE.gateway, cpu_ms=0.0, token_cpu_ms=0.0))
    busy = replace(profile, host=replace(PROFILE.host, request_cpu_ms=250.0, token_cpu_ms=125.0))
    single = replace(profile, host=replace(PROFILE.host, cores=1))
    shared = predict(busy, workload, counts, hosts=1)
    assert shared.stretch == pytest.approx(predict(single, workload, counts, hosts=1).stretch)
    assert predict(busy, workload.at_rate(4.1), counts, hosts=1).trouble


def simulated_ttft_p99_ms(rate: float, workers: int, seed: int) -> float:
    """Return the p99 of wait and computation: Poisson arrivals, prompts of two lengths, one line."""
    random = Random(seed)
    free = [0.0] * workers
    now, found = 0.0, []
    for _ in range(60_000):
        now += random.expovariate(rate)
        begins = max(now, heapq.heappop(free))
        ends = begins + 0.004 + random.choice((100, 400)) / 1500
        heapq.heappush(free, ends)
        found.append(ends - now)
    return float(np.quantile(found, 0.99)) * 1e3


@pytest.mark.parametrize(("rate", "workers"), [(3.0, 1), (8.0, 2)])
def test_a_simulated_line_of_prompts_has_such_a_tail(rate: float, workers: int) -> None:
    workload = load(rate, answer=1)
    workload = replace(workload, input_tokens=np.repeat((100.0, 400.0), 100), output_tokens=np.ones(200))
    profile = replace(
        PROFILE, gateway=replace(PROFILE.gateway, cpu_ms=0.0, token_cpu_ms=0.0, overhead_ms=0.0)
    )
    predicted = predict(profile, workload, InstanceCounts(prefill=workers))
    simulated = simulated_ttft_p99_ms(rate, workers, seed=3)
    assert predicted.latencies["ttft"].quantiles["p99"].value == pytest.approx(
        simulated, rel=SIMULATED_WITHIN
    )


@settings(max_examples=20, deadline=None)
@given(
    st.floats(0.01, 12),
    st.floats(0, 3),
    st.integers(1, 2000),
    st.integers(1, 200),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
)
def test_more_instances_are_never_worse_and_more_load_is_never_better(
    rate: float, variation: float, prompt: int, answer: int, given_counts: tuple[int, int, int]
) -> None:
    counts = InstanceCounts(*given_counts)

    def figures(rate: float, counts: InstanceCounts) -> list[float]:
        prediction = predict(PROFILE, load(rate, prompt, answer, variation), counts, LEVELS)
        latencies = [
            prediction.latencies[name].quantiles[share].value
            for name in ("ttft", "itl", "e2e")
            for share in SHARES
        ]
        return [
            -prediction.rates["goodput"] / rate,
            *(0.0 if math.isnan(each) else each for each in latencies),
        ]

    def at_most(low: list[float], high: list[float]) -> bool:
        return all(one <= other or math.isclose(one, other) for one, other in zip(low, high, strict=True))

    here = figures(rate, counts)
    for role in ROLES_SIZED:
        assert at_most(figures(rate, counts.with_one(role, 1)), here)
    assert at_most(here, figures(rate * 1.3, counts))
