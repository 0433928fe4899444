"""Tell how much longer work takes where instances share cores, by who else is busy at that time.

Computations share cores evenly, and wait for nobody while there are enough; where more are wanted than there
are, each takes wanted / there times longer. What is small, as a gateway's work on one token, goes first (the
others step back for gateways, and what computes for all of them) and leaves computations fewer cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.cli.bench.stats.quantiles import Floats
from services.cli.capacity.decode_batch import BatchDistribution
from services.cli.capacity.profile import DeploymentProfile
from services.cli.capacity.workload import Workload

LEAST_FREE_CORES = 0.05
"""Computations always get so much: a machine that is full of small work is overloaded anyway."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Times longer that one kind of work takes, and how often; they rise."""

    times: Floats
    shares: Floats

    @property
    def mean(self) -> float:
        return float(self.times @ self.shares)

    @property
    def mean_square(self) -> float:
        return float(self.times**2 @ self.shares)

    def at(self, points: Floats) -> Floats:
        """Return the quantiles at these points."""
        reached = np.searchsorted(np.cumsum(self.shares), points)
        found: Floats = self.times[np.minimum(reached, len(self.times) - 1)]
        return found


ALONE = Stretches(np.ones(1), np.ones(1))


@dataclass(frozen=True, slots=True)
class CoreSharing:
    """`small_cores` of all `cores` are busy with small work in the mean. `prefill_shares` is P(n prompts are
    computed) from 0 to all workers, `decode_shares` P(n decode workers have somebody)."""

    cores: float
    small_cores: float
    prefill_cores: float
    decode_cores: float
    prefill_shares: Floats
    decode_shares: Floats

    @property
    def small_stretch(self) -> float:
        """Small work itself waits for nobody while there are cores for all of it."""
        return max(1.0, self.small_cores / self.cores)

    @property
    def free_cores(self) -> float:
        return max(LEAST_FREE_CORES, self.cores - self.small_cores)

    def of_prompts(self) -> Stretches:
        """Return what prompts meet: n at once are n times as often met as one."""
        prompts = np.arange(1, len(self.prefill_shares), dtype=np.float64)
        met = prompts * self.prefill_shares[1:]
        met = met / met.sum() if met.sum() > 0 else (prompts == 1).astype(np.float64)
        return self._mixed(prompts[:, None], met[:, None], *_row(self.decode_shares))

    def of_steps(self, busy_workers: int) -> Stretches:
        """Return what a step meets while so many decode workers have somebody."""
        return self._mixed(*_column(self.prefill_shares), np.array([[busy_workers]]), np.ones((1, 1)))

    def step_stretches(self, places: int, workers: int) -> Floats:
        """Return the mean of steps by how many sequences there are, from 1 to all places taken."""
        found: Floats = self.mean_steps(workers)[np.minimum(np.arange(1, places + 1), workers) - 1]
        return found

    def mean_steps(self, workers: int) -> Floats:
        """Return the mean of steps while 1 to so many decode workers have somebody."""
        busy = np.arange(1, workers + 1, dtype=np.float64)
        prompts = np.arange(len(self.prefill_shares), dtype=np.float64)
        wanted = self.decode_cores * busy[:, None] + self.prefill_cores * prompts[None, :]
        found: Floats = np.maximum(1.0, wanted / self.free_cores) @ self.prefill_shares
        return found

    def _mixed(self, prompts: Floats, p_shares: Floats, steps: Floats, s_shares: Floats) -> Stretches:
        wanted = self.prefill_cores * prompts + self.decode_cores * steps
        times = np.maximum(1.0, wanted / self.free_cores).ravel()
        order = np.argsort(times, kind="stable")
        return Stretches(times[order], (p_shares * s_shares).ravel()[order])


def share_cores(
    profile: DeploymentProfile,
    workload: Workload,
    hosts: int,
    prefill_shares: Floats,
    batches: BatchDistribution,
) -> CoreSharing:
    """Return how so many machines are shared, with so many prompts and batches on them."""
    gateway, host = profile.gateway, profile.host
    request_ms = (gateway.cpu_ms + workload.mean_output_tokens * gateway.token_cpu_ms) * gateway.cores
    beside_ms = host.request_cpu_ms + workload.mean_output_tokens * host.token_cpu_ms
    return CoreSharing(
        hosts * host.cores,
        workload.rate * (request_ms + beside_ms) / 1e3,
        profile.prefill.cores,
        profile.decode.cores,
        prefill_shares,
        batches.busy_shares,
    )


def _row(shares: Floats) -> tuple[Floats, Floats]:
    return np.arange(len(shares), dtype=np.float64)[None, :], shares[None, :]


def _column(shares: Floats) -> tuple[Floats, Floats]:
    return np.arange(len(shares), dtype=np.float64)[:, None], shares[:, None]
