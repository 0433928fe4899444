"""Running batches against closed forms, and against a simulation of workers that step."""

from __future__ import annotations

import math
from collections import deque
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.capacity.decode_batch import DecodeLoad, batch_distribution, full_batch_rate
from services.cli.capacity.step_curve import StepCurve
from tests.unit.services.cli.capacity.deployments import CURVE

SIMULATED_WITHIN = 0.06
"""The share by which the simulated batch may be off: of its own error, and of steps that begin in turn."""
SIMULATED_S = 3000.0


def decode_load(rate: float, workers: int = 1, slots: int = 16, tokens: float = 63.0) -> DecodeLoad:
    return DecodeLoad(rate, 1.0, tokens, 1.0, workers, slots)


def simulated_batch(load: DecodeLoad, curve: StepCurve, seed: int) -> float:
    """Return the mean number of live sequences of one worker, which takes whole steps."""
    random = Random(seed)
    arrives = random.expovariate(load.rate)
    now = area = 0.0
    waiting: deque[int] = deque()
    live: list[int] = []
    while now < SIMULATED_S:
        while waiting and len(live) < load.slots:
            live.append(waiting.popleft())
        length = float(curve.step_s(np.array([float(len(live))]))[0]) if live else max(0.0, arrives - now)
        area += len(live) * length
        now += length
        live = [left - 1 for left in live if left > 1]
        while arrives <= now:
            waiting.append(max(1, round(random.expovariate(1 / load.answer_tokens))))
            arrives += random.expovariate(load.rate)
    return area / now


def test_steps_as_long_as_the_batch_are_an_m_m_1_queue() -> None:
    """step(n) = n s: a processor is shared, and N is geometric with rho = rate tokens s."""
    curve = StepCurve(((1, 10.0), (2, 20.0)))
    load = decode_load(1.0, slots=600, tokens=60.0)
    batches = batch_distribution(load, curve)
    assert batches.mean_live == pytest.approx(0.6 / 0.4, rel=1e-6)
    assert batches.shares[0] == pytest.approx(0.4, rel=1e-6)


def test_a_token_meets_those_that_an_arrival_meets_and_itself() -> None:
    """Little's law at M/M/1: a request's own steps are 1 / (1 - rho) times as long as alone, at 0.6 2.5."""
    curve = StepCurve(((1, 10.0), (2, 20.0)))
    batches = batch_distribution(decode_load(1.0, slots=600, tokens=60.0), curve)
    shares = (np.arange(20_000) + 0.5) / 20_000
    assert float(batches.met_batches(shares).mean()) == pytest.approx(2.5, rel=1e-3)


def test_steps_of_one_length_are_poisson_s() -> None:
    """Nobody slows anybody: M/G/infinity, the mean by Little's law."""
    load = decode_load(2.0, slots=200)
    batches = batch_distribution(load, StepCurve(((1, 40.0),)))
    assert batches.mean_live == pytest.approx(2 * 63 * 0.04, rel=1e-6)
    assert batches.shares[0] == pytest.approx(math.exp(-2 * 63 * 0.04), rel=1e-6)


@pytest.mark.parametrize("slots", [300, 16])
def test_what_flows_in_is_generated(slots: int) -> None:
    """Little's law of tokens: rate * tokens = the mean of n / step(n), lines behind full batches included."""
    load = decode_load(6.0, slots=slots)
    shares = batch_distribution(load, CURVE).shares
    live = np.arange(1, len(shares))
    generated = float((shares[1:] * live / CURVE.step_s(live.astype(np.float64))).sum())
    assert generated == pytest.approx(6 * 63, rel=1e-9)


@pytest.mark.thorough(but="2.0")
@pytest.mark.parametrize("rate", [2.0, 6.0])
def test_a_simulated_worker_has_batches_as_large(rate: float) -> None:
    load = decode_load(rate)
    simulated = simulated_batch(load, CURVE, seed=11)
    assert batch_distribution(load, CURVE).mean_live == pytest.approx(simulated, rel=SIMULATED_WITHIN)


def test_slots_of_steps_that_never_change_are_erlang_s_servers() -> None:
    """Constant steps: M/M/c, whose C(2, 1) is 1/3."""
    batches = batch_distribution(decode_load(1.0, slots=2, tokens=10.0), StepCurve(((1, 100.0),)))
    assert batches.wait.probability == pytest.approx(1 / 3)
    assert batches.wait.mean_s == pytest.approx(1 / 3)


def test_edges_of_a_load() -> None:
    nobody = batch_distribution(decode_load(0.0), CURVE)
    assert (nobody.mean_live, nobody.wait.mean_s) == (0, 0)
    one_token = batch_distribution(decode_load(1.0, tokens=0.0), CURVE)
    assert (one_token.mean_live, one_token.utilization) == (0, 0)
    most = full_batch_rate(decode_load(1.0), CURVE)
    assert batch_distribution(decode_load(most), CURVE).wait.mean_s == math.inf
    assert batch_distribution(decode_load(most * 0.999), CURVE).wait.mean_s < math.inf


@given(
    st.floats(0.01, 40),
    st.integers(1, 6),
    st.integers(1, 40),
    st.lists(st.floats(0.1, 20), min_size=1, max_size=5),
)
def test_more_workers_never_make_fuller_batches_and_more_load_never_emptier(
    rate: float, workers: int, slots: int, rises: list[float]
) -> None:
    times = np.cumsum([5.0, *rises]).tolist()
    curve = StepCurve(tuple((2**place, float(time)) for place, time in enumerate(times)))
    quantiles = np.linspace(0.01, 0.99, 25)

    def met(rate: float, workers: int) -> list[float]:
        batches = batch_distribution(decode_load(rate, workers, slots), curve)
        return [*curve.step_s(batches.met_batches(quantiles)), batches.wait.mean_s, batches.utilization]

    here = met(rate, workers)
    assert all(more <= one * (1 + 1e-9) for more, one in zip(met(rate, workers + 1), here, strict=True))
    assert all(more >= one * (1 - 1e-9) for more, one in zip(met(rate * 1.2, workers), here, strict=True))
