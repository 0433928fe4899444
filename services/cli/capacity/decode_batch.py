"""The running batches of decode workers: how many sequences share a step, and who waits for a slot.

A worker gives each of its b sequences a token every step(b): a processor-sharing queue whose speed depends on
how many are in it. Its stationary distribution has a product form and depends on lengths of answers by their
mean alone (Cohen 1979, "The multiple phase service network with generalized processor sharing"):

    P(N = n) ~ product over k = 1 … n of rate * tokens * step(k / workers) / k

The fixed point of batch and rate that Little's law gives, n = rate * tokens * step((1 + n) / workers), is its
mean where steps are constant, and for one worker where they are proportional to the batch. Workers are taken
as evenly filled, as gateways place by what is live.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from services.cli.bench.stats.quantiles import Floats
from services.cli.capacity.queueing import NO_WAIT, LineWait
from services.cli.capacity.step_curve import StepCurve


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """`rate` requests a second, whose answers have `answer_tokens` behind the first in the mean, with the
    squared coefficient of variation `answer_scv`, for workers with `slots` each."""

    rate: float
    arrival_scv: float
    answer_tokens: float
    answer_scv: float
    workers: int
    slots: int

    @property
    def places(self) -> int:
        return self.workers * self.slots


@dataclass(frozen=True, slots=True)
class BatchDistribution:
    """`shares` is P(N = n) for n sequences from 0 to all places taken, whoever waits counted in the last.

    `utilization` is the load over the most that full batches do; at 1 and above nothing is stationary, and
    `wait` is infinite.
    """

    shares: Floats
    utilization: float
    wait: LineWait
    workers: int

    @property
    def mean_live(self) -> float:
        return float(self.shares @ np.arange(len(self.shares)))

    @property
    def busy_shares(self) -> Floats:
        """Return P(n workers have somebody) for n from 0 to all of them."""
        busy = np.minimum(np.arange(len(self.shares)), self.workers)
        found: Floats = np.bincount(busy, self.shares, self.workers + 1).astype(np.float64)
        return found

    @property
    def mean_busy(self) -> float:
        """The workers that have somebody, in the mean."""
        return float(self.busy_shares @ np.arange(self.workers + 1))

    def met_batches(self, shares: Floats) -> Floats:
        """Return quantiles of the batch in which tokens are computed, as sequences a worker.

        A token's batch is what an arrival meets, and itself: P(N) is proportional to what flows from N to
        N + 1 (the arrival theorem; Poisson arrivals see time averages, Wolff 1982).
        """
        met = np.searchsorted(np.cumsum(self.shares), shares)
        live: Floats = np.minimum(met + 1, len(self.shares) - 1) / self.workers
        return live


def full_batch_rate(load: DecodeLoad, curve: StepCurve, stretch: float = 1.0) -> float:
    """Return the most requests a second that workers with full batches end, whose steps take `stretch` times
    longer than those of the curve."""
    full_step_s = float(curve.step_s(np.array([float(load.slots)]))[0]) * stretch
    return load.places / (load.answer_tokens * full_step_s) if load.answer_tokens else math.inf


def batch_distribution(
    load: DecodeLoad, curve: StepCurve, stretches: Floats | None = None
) -> BatchDistribution:
    """Return how full the batches are. Waits for slots are scaled as Allen and Cunneen scale M/M/k's.

    `stretches` are times longer that steps take by how many sequences there are, from 1 to all places taken.
    """
    stretches = np.ones(load.places) if stretches is None else stretches
    most_rate = full_batch_rate(load, curve, float(stretches[-1]))
    utilization = load.rate / most_rate
    live = np.arange(1, load.places + 1, dtype=np.float64)
    if utilization <= 0:
        shares = np.zeros(load.places + 1)
        shares[0] = 1.0
        return BatchDistribution(shares, 0.0, NO_WAIT, load.workers)
    if utilization >= 1:
        shares = np.zeros(load.places + 1)
        shares[-1] = 1.0
        return BatchDistribution(shares, utilization, LineWait(1.0, math.inf), load.workers)
    flows = load.rate * load.answer_tokens * curve.step_s(live / load.workers) * stretches / live
    logs = np.concatenate(([0.0], np.cumsum(np.log(flows))))
    weights = np.exp(logs - logs.max())
    weights[-1] /= 1.0 - utilization  # the line behind full batches is geometric
    shares = weights / weights.sum()
    scale = (load.arrival_scv + load.answer_scv) / 2
    wait = LineWait(float(shares[-1]), scale / (most_rate - load.rate))
    return BatchDistribution(shares, utilization, wait, load.workers)
