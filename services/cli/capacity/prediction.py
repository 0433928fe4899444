"""Predict what requests of a workload meet at a deployment of so many instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from services.cli.bench.report.latency_figures import OF_CALLS, SHARES, LatencyFigures, QuantileFigure
from services.cli.bench.report.service_level import LevelVerdict, ServiceLevel, judge
from services.cli.bench.stats.quantiles import Floats, sorted_quantile
from services.cli.capacity.core_sharing import ALONE
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts
from services.cli.capacity.stage_loads import StageLoads, StagePrediction, prompt_s, settled_loads
from services.cli.capacity.workload import Workload

SAMPLED_REQUESTS = 4096
"""The requests over which times of stages are added: points of a Halton sequence (1960), always the same."""
BASES = (2, 3, 5, 7, 11, 13)
"""One for each thing that varies: lengths, three waits, the batch, and who else is on the cores."""
NOT_PREDICTED = ("ttua", "queue", "errors", "sheds")
"""Quantities of objectives that nothing here tells."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """`stretch`: how many times longer prompts or steps, whichever is worse, take for want of cores.
    `slots` are those that KV has room for.

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
    loads = settled_loads(profile, workload, counts, slots, hosts)
    stretch = loads.stretch
    stages = {"gateway": loads.gateway, "prefill": loads.prefill, "decode": loads.decode}
    full = [role for role, stage in stages.items() if stage.utilization >= 1]
    if full:
        return _overloaded(counts, stages, stretch, slots, levels, _overload_words(stages, counts, workload))
    times = _request_times(profile, workload, loads)
    latencies = {name: _figures(values) for name, values in times.items()}
    latencies["itl"] = _gap_figures(profile, workload, loads)
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


def _request_times(profile: DeploymentProfile, workload: Workload, loads: StageLoads) -> dict[str, Floats]:
    """Return times of sampled requests by quantity, in s. Waits of stages are taken as independent, and the
    batch that a request meets as that of its whole answer."""
    lengths, front, slot, line, batch, cores = _halton_points()
    small = loads.sharing.small_stretch if loads.sharing else 1.0
    prompts = loads.sharing.of_prompts() if loads.sharing else ALONE
    drawn = (lengths * len(workload.input_tokens)).astype(np.int64)
    gateway = profile.gateway
    ttft = (
        loads.gateway.wait.at(front)
        + (gateway.cpu_ms + gateway.token_cpu_ms) / 1e3 * small
        + gateway.overhead_ms / 1e3
        + loads.decode.wait.at(slot)
        + loads.prefill.wait.at(line)
        + prompt_s(profile, workload)[drawn] * prompts.at(cores)
    )
    behind = workload.tokens_behind_first[drawn]
    step_s = _mean_step_s(profile, loads, loads.batches.met_batches(batch))
    transfer_s = np.where(behind > 0, profile.decode.transfer_ms / 1e3, 0.0)
    rest = transfer_s + behind * step_s
    tpot = np.where(behind > 0, rest / np.maximum(1.0, behind), math.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": ttft + rest, "step": step_s}


def _gap_figures(profile: DeploymentProfile, workload: Workload, loads: StageLoads) -> LatencyFigures:
    """Return figures of gaps between tokens: steps, and once for each answer KV on its way as well."""
    gaps = float(workload.tokens_behind_first.mean())
    if not gaps:
        return _figures(np.array([]))
    steps, step_shares = _steps(profile, loads)
    first_share = float((workload.tokens_behind_first > 0).mean()) / gaps
    values = np.concatenate((steps, steps + profile.decode.transfer_ms / 1e3))
    weights = np.concatenate((step_shares * (1.0 - first_share), step_shares * first_share))
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    found = {
        name: float(values[order][min(len(values) - 1, int(np.searchsorted(reached, share)))]) * 1e3
        for name, share in SHARES.items()
    }
    mean_ms = float(values @ weights) * 1e3
    return LatencyFigures(SAMPLED_REQUESTS, mean_ms, {name: _exact(value) for name, value in found.items()})


def _steps(profile: DeploymentProfile, loads: StageLoads) -> tuple[Floats, Floats]:
    """Return times of the steps that tokens are computed in, and their shares."""
    points = (np.arange(SAMPLED_REQUESTS) + 0.5) / SAMPLED_REQUESTS
    met, counts = np.unique(loads.batches.met_batches(points), return_counts=True)
    steps_s = profile.decode.step_ms.step_s(met)
    shares = counts / SAMPLED_REQUESTS
    if loads.sharing is None:
        return steps_s, shares
    stretches = [loads.sharing.of_steps(busy) for busy in _busy_workers(loads, met)]
    times = [step_s * stretch.times for step_s, stretch in zip(steps_s, stretches, strict=True)]
    weights = [share * stretch.shares for share, stretch in zip(shares, stretches, strict=True)]
    return np.concatenate(times), np.concatenate(weights)


def _mean_step_s(profile: DeploymentProfile, loads: StageLoads, batches: Floats) -> Floats:
    """Return the times of steps of an answer that meets these batches: prompts come and go beside it."""
    step_s = profile.decode.step_ms.step_s(batches)
    if loads.sharing is None:
        return step_s
    by_busy = loads.sharing.mean_steps(loads.batches.workers)
    found: Floats = step_s * by_busy[_busy_workers(loads, batches) - 1]
    return found


def _busy_workers(loads: StageLoads, batches: Floats) -> NDArray[np.int64]:
    workers = loads.batches.workers
    return np.clip(np.rint(batches * workers), 1, workers).astype(np.int64)


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
