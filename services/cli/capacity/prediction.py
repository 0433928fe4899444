"""Predict what requests of a workload meet at a deployment of so many instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from services.cli.bench.report.latency_figures import OF_CALLS, SHARES, LatencyFigures, QuantileFigure
from services.cli.bench.report.service_level import LevelVerdict, ServiceLevel, judge
from services.cli.bench.stats.quantiles import Floats, sorted_quantile
from services.cli.capacity.decode_batch import BatchDistribution, DecodeLoad, batch_distribution
from services.cli.capacity.profile import DeploymentProfile
from services.cli.capacity.queueing import LineWait, ServiceTime, line_wait
from services.cli.capacity.workload import Workload, squared_variation

SAMPLED_REQUESTS = 4096
"""The requests over which times of stages are added: points of a Halton sequence (1960), always the same."""
BASES = (2, 3, 5, 7, 11)
"""One for each thing that varies: lengths, three waits, and the batch."""
STRETCH_ROUNDS = 200
STRETCH_EXACT = 1e-9
NOT_PREDICTED = ("ttua", "errors", "sheds")
"""Quantities of objectives that nothing here tells."""


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    gateway: int = 1
    prefill: int = 1
    decode: int = 1

    def with_one(self, role: str, change: int) -> InstanceCounts:
        """Return these with so many more of one role."""
        return replace(self, **{role: self.of(role) + change})

    def of(self, role: str) -> int:
        count: int = getattr(self, role)
        return count

    def cores(self, profile: DeploymentProfile) -> float:
        workers = self.prefill * profile.prefill.cores + self.decode * profile.decode.cores
        return self.gateway * profile.gateway.cores + workers

    def gpus(self, profile: DeploymentProfile) -> int:
        return self.prefill * profile.prefill.gpus + self.decode * profile.decode.gpus


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """`utilization` is load over what the instances do at most; `busy`: how many have work, in the mean."""

    role: str
    utilization: float
    wait: LineWait
    busy: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """`stretch`: how many times longer work takes for want of cores. `slots` are those that KV has room for.

    Where a stage is overloaded `trouble` says which and latencies are infinite: nothing is stationary.
    """

    counts: InstanceCounts
    stages: dict[str, StagePrediction]
    stretch: float
    slots: int
    mean_batch: float
    latencies: dict[str, LatencyFigures]
    rates: dict[str, float]
    verdicts: list[LevelVerdict]
    trouble: str = ""

    @property
    def kept(self) -> bool:
        return not self.trouble and all(verdict.kept for verdict in self.verdicts)

    @property
    def most_loaded(self) -> str:
        return max(self.stages, key=lambda role: self.stages[role].utilization)


@dataclass(frozen=True, slots=True)
class StageLoads:
    """All stages at one stretch of work."""

    gateway: StagePrediction
    prefill: StagePrediction
    decode: StagePrediction
    batches: BatchDistribution

    def busy_cores(self, profile: DeploymentProfile) -> float:
        return (
            self.gateway.busy * profile.gateway.cores
            + self.prefill.busy * profile.prefill.cores
            + self.decode.busy * profile.decode.cores
        )


def predict(
    profile: DeploymentProfile,
    workload: Workload,
    counts: InstanceCounts,
    levels: Sequence[ServiceLevel] = (),
    hosts: int | None = None,
) -> Prediction:
    """Predict a load on so many instances; `hosts` None: each instance has cores of its own."""
    slots = profile.decode.slots_for(workload.mean_sequence_tokens)
    if not slots:
        return _overloaded(counts, {}, 1.0, 0, levels, _too_long(profile, workload))
    stretch = 1.0 if hosts is None else _stretch(profile, workload, counts, slots, hosts)
    loads = _stage_loads(profile, workload, counts, slots, stretch)
    stages = {"gateway": loads.gateway, "prefill": loads.prefill, "decode": loads.decode}
    full = [role for role, stage in stages.items() if stage.utilization >= 1]
    if full:
        return _overloaded(counts, stages, stretch, slots, levels, _overload_words(stages, counts, workload))
    times = _request_times(profile, workload, loads, stretch)
    latencies = {name: _figures(values) for name, values in times.items()}
    latencies["itl"] = _gap_figures(profile, workload, loads.batches, stretch)
    rates = _rates(workload, levels, times)
    return Prediction(
        counts,
        stages,
        stretch,
        slots,
        loads.batches.mean_live / counts.decode,
        latencies,
        rates,
        judge(levels, latencies, rates),
    )


def _stretch(
    profile: DeploymentProfile, workload: Workload, counts: InstanceCounts, slots: int, hosts: int
) -> float:
    """Return the least fixed point of: work takes as much longer as busy cores are more than there are.

    More stretch keeps more instances busy, never more than all: from 1 on it rises to a fixed point.
    """
    cores = hosts * profile.host.cores
    stretch = 1.0
    for _ in range(STRETCH_ROUNDS):
        busy = _stage_loads(profile, workload, counts, slots, stretch).busy_cores(profile)
        found = max(1.0, busy / cores)
        if found - stretch < STRETCH_EXACT:
            break
        stretch = found
    return stretch


def _stage_loads(
    profile: DeploymentProfile, workload: Workload, counts: InstanceCounts, slots: int, stretch: float
) -> StageLoads:
    rate, scv = workload.rate, workload.arrival_scv
    pieces = 1.0 + workload.mean_output_tokens
    front = _line_stage(
        "gateway", rate * pieces, scv, _front_piece(profile, workload, stretch), counts.gateway
    )
    times_s = _prompt_s(profile, workload) * stretch
    service = ServiceTime(float(times_s.mean()), squared_variation(times_s))
    prefill = _line_stage("prefill", rate, scv, service, counts.prefill)
    behind = workload.tokens_behind_first
    decode_load = DecodeLoad(
        rate, scv, float(behind.mean()) * stretch, squared_variation(behind), counts.decode, slots
    )
    batches = batch_distribution(decode_load, profile.decode.step_ms)
    decode = StagePrediction("decode", batches.utilization, batches.wait, batches.mean_busy)
    return StageLoads(front, prefill, decode, batches)


def _line_stage(role: str, rate: float, scv: float, service: ServiceTime, servers: int) -> StagePrediction:
    utilization = rate * service.mean_s / servers
    wait = line_wait(rate, scv, service, servers)
    return StagePrediction(role, utilization, wait, servers * min(1.0, utilization))


def _front_piece(profile: DeploymentProfile, workload: Workload, stretch: float) -> ServiceTime:
    """Return the mixture that a gateway's core works on: the request itself, and each token of its answer."""
    request_s, token_s = profile.gateway.cpu_ms / 1e3, profile.gateway.token_cpu_ms / 1e3
    tokens = workload.mean_output_tokens
    mean_s = (request_s + tokens * token_s) / (1 + tokens)
    square = (request_s**2 + tokens * token_s**2) / (1 + tokens)
    return ServiceTime(mean_s * stretch, square / mean_s**2 - 1 if mean_s else 0.0)


def _prompt_s(profile: DeploymentProfile, workload: Workload) -> Floats:
    prefill = profile.prefill
    times_s: Floats = prefill.overhead_ms / 1e3 + workload.computed_tokens / prefill.tokens_per_s
    return times_s


def _request_times(
    profile: DeploymentProfile, workload: Workload, loads: StageLoads, stretch: float
) -> dict[str, Floats]:
    """Return times of sampled requests by quantity, in s. Waits of stages are taken as independent, and the
    batch that a request meets as that of its whole answer."""
    lengths, front, slot, line, batch = _halton_points()
    drawn = (lengths * len(workload.input_tokens)).astype(np.int64)
    gateway = profile.gateway
    ttft = (
        loads.gateway.wait.at(front)
        + (gateway.cpu_ms + gateway.token_cpu_ms) / 1e3 * stretch
        + gateway.overhead_ms / 1e3
        + loads.decode.wait.at(slot)
        + loads.prefill.wait.at(line)
        + _prompt_s(profile, workload)[drawn] * stretch
    )
    behind = workload.tokens_behind_first[drawn]
    step_s = profile.decode.step_ms.step_s(loads.batches.met_batches(batch)) * stretch
    transfer_s = np.where(behind > 0, profile.decode.transfer_ms / 1e3, 0.0)
    rest = transfer_s + behind * step_s
    tpot = np.where(behind > 0, rest / np.maximum(1.0, behind), math.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": ttft + rest, "step": step_s}


def _gap_figures(
    profile: DeploymentProfile, workload: Workload, batches: BatchDistribution, stretch: float
) -> LatencyFigures:
    """Return figures of gaps between tokens: steps, and once for each answer KV on its way as well."""
    gaps = float(workload.tokens_behind_first.mean())
    if not gaps:
        return _figures(np.array([]))
    shares = (np.arange(SAMPLED_REQUESTS) + 0.5) / SAMPLED_REQUESTS
    steps = profile.decode.step_ms.step_s(batches.met_batches(shares)) * stretch
    first_share = float((workload.tokens_behind_first > 0).mean()) / gaps
    values = np.concatenate((steps, steps + profile.decode.transfer_ms / 1e3))
    weights = np.repeat((1.0 - first_share, first_share), SAMPLED_REQUESTS) / SAMPLED_REQUESTS
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    found = {
        name: float(values[order][min(len(values) - 1, int(np.searchsorted(reached, share)))]) * 1e3
        for name, share in SHARES.items()
    }
    mean_ms = float(values @ weights) * 1e3
    return LatencyFigures(SAMPLED_REQUESTS, mean_ms, {name: _exact(value) for name, value in found.items()})


def _rates(workload: Workload, levels: Sequence[ServiceLevel], times: dict[str, Floats]) -> dict[str, float]:
    """Return rates by the names that objectives have; goodput is of requests that keep all of latency."""
    good = np.ones(SAMPLED_REQUESTS, dtype=np.bool_)
    for level in levels:
        if level.quantile:
            values = times["step" if level.quantity == "itl" else level.quantity] * 1e3
            good &= (values < level.limit) | np.isnan(values)
    return {
        "requests_per_s": workload.rate,
        "goodput": workload.rate * float(good.mean()),
        "output_tokens_per_s": workload.rate * workload.mean_output_tokens,
    }


def _figures(values_s: Floats) -> LatencyFigures:
    known = np.sort(values_s[~np.isnan(values_s)]) * 1e3
    quantiles = {name: _exact(sorted_quantile(known, share)) for name, share in SHARES.items()}
    return LatencyFigures(len(known), float(known.mean()) if len(known) else math.nan, quantiles)


def _exact(value: float) -> QuantileFigure:
    return QuantileFigure(value, value, value)


def _overloaded(
    counts: InstanceCounts,
    stages: dict[str, StagePrediction],
    stretch: float,
    slots: int,
    levels: Sequence[ServiceLevel],
    trouble: str,
) -> Prediction:
    endless = LatencyFigures(0, math.inf, dict.fromkeys(SHARES, _exact(math.inf)))
    latencies = dict.fromkeys([name for name in OF_CALLS if name not in NOT_PREDICTED] + ["itl"], endless)
    rates = {"requests_per_s": 0.0, "goodput": 0.0, "output_tokens_per_s": 0.0}
    return Prediction(
        counts, stages, stretch, slots, 0.0, latencies, rates, judge(levels, latencies, rates), trouble
    )


def _overload_words(stages: dict[str, StagePrediction], counts: InstanceCounts, workload: Workload) -> str:
    role = max(stages, key=lambda name: stages[name].utilization)
    load = stages[role].utilization
    return (
        f"{counts.of(role)} {role} instance{'s' * (counts.of(role) > 1)} cannot keep up with "
        f"{workload.rate:.3g} requests/s, {load:.2f} times what they do at most: lines only grow"
    )


def _too_long(profile: DeploymentProfile, workload: Workload) -> str:
    room = profile.decode.kv_blocks * profile.decode.block_tokens
    return (
        f"a mean request of {workload.mean_sequence_tokens:.0f} tokens has no room in decode.kv_blocks, "
        f"which hold {room}: give decode workers more KV"
    )


@cache
def _halton_points() -> tuple[Floats, ...]:
    """Return points in the unit cube, each coordinate above 0 and below 1."""
    return tuple(_radical_inverse(base) for base in BASES)


def _radical_inverse(base: int) -> Floats:
    left = np.arange(1, SAMPLED_REQUESTS + 1)
    found = np.zeros(SAMPLED_REQUESTS)
    scale = 1.0 / base
    while left.any():
        found += scale * (left % base)
        left //= base
        scale /= base
    return found
