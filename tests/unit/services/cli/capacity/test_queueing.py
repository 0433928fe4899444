"""Lines against closed forms, and against a simulation of the line itself."""

from __future__ import annotations

import heapq
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.capacity.queueing import (
    LineWait,
    ServiceTime,
    busy_servers,
    erlang_b,
    erlang_c,
    line_wait,
)

CUSTOMERS = 60_000
WITHIN = 0.08
"""The simulated mean may be off by this share: its own error at so many customers, and for M/M/k no other."""
APPROXIMATED_WITHIN = 0.15
"""Allen and Cunneen's is no exact formula for several servers with constant service."""


def simulated_wait(rate: float, service: ServiceTime, servers: int, seed: int) -> float:
    """Return the mean wait of first come, first served, Poisson arrivals; service exponential or constant."""
    random = Random(seed)
    free = [0.0] * servers
    now = waited = 0.0
    for _ in range(CUSTOMERS):
        now += random.expovariate(rate)
        begins = max(now, heapq.heappop(free))
        waited += begins - now
        took = random.expovariate(1 / service.mean_s) if service.scv else service.mean_s
        heapq.heappush(free, begins + took)
    return waited / CUSTOMERS


def test_erlang_s_formulas_have_their_known_values() -> None:
    """B(5, 3) = (3^5 / 5!) / sum of 3^k / k!, and C(2, 1) = 1/3."""
    whole = sum(3**k / math.factorial(k) for k in range(6))
    assert erlang_b(5, 3.0) == pytest.approx(3**5 / math.factorial(5) / whole, rel=1e-12)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3, rel=1e-12)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9, 0.99])
def test_one_server_is_pollaczek_and_khinchine_s(load: float) -> None:
    """Exact: M/M/1 waits rho / (1 - rho) services, M/D/1 half of that."""
    exponential = line_wait(load, 1.0, ServiceTime(1.0, 1.0), 1)
    assert exponential.probability == pytest.approx(load, rel=1e-12)
    assert exponential.mean_s == pytest.approx(load / (1 - load), rel=1e-9)
    assert line_wait(load, 1.0, ServiceTime(1.0, 0.0), 1).mean_s == pytest.approx(load / (1 - load) / 2)


def test_equal_gaps_and_constant_work_never_wait() -> None:
    assert line_wait(0.9, 0.0, ServiceTime(1.0, 0.0), 1).mean_s == 0


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (3, 0.8)])
def test_a_simulated_line_of_exponential_work_waits_as_long(servers: int, load: float) -> None:
    service = ServiceTime(0.5, 1.0)
    rate = load * servers / service.mean_s
    simulated = simulated_wait(rate, service, servers, seed=5)
    assert line_wait(rate, 1.0, service, servers).mean_s == pytest.approx(simulated, rel=WITHIN)


def test_a_simulated_line_of_constant_work_waits_about_as_long() -> None:
    service = ServiceTime(0.5, 0.0)
    simulated = simulated_wait(4.8, service, 3, seed=6)
    assert line_wait(4.8, 1.0, service, 3).mean_s == pytest.approx(simulated, rel=APPROXIMATED_WITHIN)


def test_no_load_never_waits_and_too_much_waits_for_ever() -> None:
    assert line_wait(0.0, 1.0, ServiceTime(1.0), 2) == LineWait(0.0, 0.0)
    assert line_wait(2.0, 1.0, ServiceTime(1.0), 2).mean_s == math.inf


def test_quantiles_of_a_wait_are_those_of_m_m_1() -> None:
    """P(W > t) = rho exp(-(mu - lambda) t)."""
    wait = line_wait(0.8, 1.0, ServiceTime(1.0), 1)
    at = wait.at(np.array([0.1, 0.2, 0.9, 0.99]))
    assert at[:2].tolist() == pytest.approx([0.0, 0.0])
    assert 0.8 * np.exp(-0.2 * at[2:]) == pytest.approx([0.1, 0.01])


@given(st.floats(0.01, 50), st.floats(0, 20), st.floats(0.001, 1), st.floats(0, 5), st.integers(1, 40))
def test_more_servers_never_wait_longer_and_more_load_never_shorter(
    rate: float, arrival_scv: float, mean_s: float, scv: float, servers: int
) -> None:
    service = ServiceTime(mean_s, scv)
    wait = line_wait(rate, arrival_scv, service, servers).mean_s
    assert line_wait(rate, arrival_scv, service, servers + 1).mean_s <= wait * (1 + 1e-9)
    assert line_wait(rate * 1.1, arrival_scv, service, servers).mean_s >= wait * (1 - 1e-9)


def test_busy_servers_are_those_of_the_line_before_them() -> None:
    shares = busy_servers(3, 1.8)
    assert shares.sum() == pytest.approx(1)
    assert float(shares @ np.arange(4)) == pytest.approx(1.8)  # Little's law
    assert shares[-1] == pytest.approx(erlang_c(3, 1.8))
    assert list(busy_servers(2, 2.0)) == [0, 0, 1]
    assert list(busy_servers(2, 0.0)) == [1, 0, 0]
