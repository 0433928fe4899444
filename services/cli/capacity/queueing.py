"""Waits before servers that take one piece of work at a time, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from services.cli.bench.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """A piece of work: its mean, and its squared coefficient of variation (1: exponential, 0: constant)."""

    mean_s: float
    scv: float = 1.0


@dataclass(frozen=True, slots=True)
class LineWait:
    """Waiting in a line: with `probability` at all, and then `if_waiting_s` in the mean, exponentially.

    Both are exact for M/M/k. For others the mean is Allen and Cunneen's and the shape is an assumption, which
    is right in heavy traffic (Kingman 1961: there the wait of G/G/1 is exponential).
    """

    probability: float
    if_waiting_s: float

    @property
    def mean_s(self) -> float:
        return self.probability * self.if_waiting_s if self.probability else 0.0

    def at(self, shares: Floats) -> Floats:
        """Return the quantiles of the wait at these shares of 1, each below 1."""
        if not self.probability:
            return np.zeros_like(shares)
        waiting = np.maximum(0.0, np.log(self.probability) - np.log1p(-shares))
        found: Floats = self.if_waiting_s * waiting
        return found


NO_WAIT = LineWait(0.0, 0.0)


def erlang_b(servers: int, offered: float) -> float:
    """Return the share of arrivals that find all servers busy and leave (Erlang 1917, by its recursion)."""
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Return the share of arrivals that wait, at M/M/k with `offered` = rate * mean service (Erlang 1917).

    From Erlang's B by C = B / (1 - rho (1 - B)). Needs offered < servers.
    """
    blocked = erlang_b(servers, offered)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


def busy_servers(servers: int, offered: float) -> Floats:
    """Return P(n servers work) for n from 0 to all of them, at M/M/k (Erlang 1917); all do where they cannot
    keep up."""
    if offered >= servers:
        full: Floats = np.eye(servers + 1)[servers]
        return full
    weights = np.cumprod(np.concatenate(([1.0], offered / np.arange(1, servers + 1))))
    weights[-1] /= 1.0 - offered / servers  # the line behind them is geometric
    found: Floats = weights / weights.sum()
    return found


def line_wait(rate: float, arrival_scv: float, service: ServiceTime, servers: int) -> LineWait:
    """Return the wait before `servers`, by the approximation of Allen and Cunneen (Allen 1990, 5.2.3).

    W = C(k, a) / (k mu - lambda) * (ca^2 + cs^2) / 2. For one server that is Kingman's (1961) with equality,
    for Poisson arrivals and one server Pollaczek and Khinchine's exact one. Infinite where the load is not
    less than the servers.
    """
    offered = rate * service.mean_s
    if offered <= 0:
        return NO_WAIT
    if offered >= servers:
        return LineWait(1.0, math.inf)
    spare_rate = servers / service.mean_s - rate
    return LineWait(erlang_c(servers, offered), (arrival_scv + service.scv) / 2 / spare_rate)
