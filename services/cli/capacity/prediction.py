"""Predict what requests of a workload meet at a deployment of so many instances, by playing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.cli.bench.report.latency_figures import SHARES, LatencyFigures
from services.cli.bench.report.service_level import LevelVerdict, ServiceLevel, judge
from services.cli.capacity.pipeline.pipeline import Pipeline
from services.cli.capacity.pipeline.played_load import load_at, steady_load
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.played_figures import PlayedFigures, exactly
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts
from services.cli.capacity.stage_loads import (
    UNKNOWN_WAIT,
    StagePrediction,
    prompt_s,
    stage_waits,
    utilizations,
)
from services.cli.capacity.workload import Workload

PLAYED_REQUESTS = 1000
"""The requests of a load that goes on that count, unless another number is asked for."""
MAX_PLAYED_REQUESTS = 20_000
"""The most requests that one prediction plays and counts."""
MAX_SHARED_TOKENS = 12_000
"""The most tokens of answers that are played on shared cores, in LEAST_SHARED requests or more."""
LEAST_SHARED = 100
WARM_SHARE = 0.25
"""Requests of a load that goes on come first, this part of those that count, and fill the deployment."""
WARM_TIMES = 2.0
"""They are also so many times those that are there in the mean, if nobody waits, but MOST_WARM at most."""
MOST_WARM = 2000
LEAST_LOAD = 1e-6
"""The least load that is played, in requests that are there in the mean: of less, hardly any two meet."""
OF_REQUESTS = ("ttft", "tpot", "e2e")
NOT_PREDICTED = ("ttua", "queue", "errors", "sheds")
"""Quantities of objectives that nothing here tells."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """`stretch`: how many times longer prompts or steps, whichever is worse, take for want of cores.
    `slots` are those that KV has room for.

    Where a stage is overloaded `trouble` says which and latencies are infinite: lines only grow.
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
    requests: int = PLAYED_REQUESTS,
) -> Prediction:
    """Predict a load that goes on, on so many instances; `hosts` None: each instance has cores of its own.

    `requests` are played that count, behind others that fill the deployment.
    """
    slots = profile.decode.slots_for(workload.mean_sequence_tokens)
    if not slots:
        return _overloaded(counts, {}, 1.0, 0, levels, _too_long(profile, workload))
    alone = utilizations(profile, workload, counts, slots)
    if max(alone.values()) >= 1:
        return _grows(counts, alone, 1.0, slots, levels, workload)
    there_s = _alone_s(profile, workload)
    if hosts is not None:
        most = int(MAX_SHARED_TOKENS / workload.mean_output_tokens)
        requests = min(requests, max(LEAST_SHARED, most))
    warm = round(WARM_SHARE * requests + min(MOST_WARM, WARM_TIMES * workload.rate * there_s))
    played = steady_load(workload, warm + requests, max(workload.rate, LEAST_LOAD / there_s))
    pipeline = Pipeline(profile, counts, hosts, workload.rate * workload.mean_output_tokens)
    pipeline.play(played)
    stretches = {"gateway": 1.0} | pipeline.stretches
    stretched = {role: load * stretches[role] for role, load in alone.items()}
    stretch = max(stretches.values())
    if max(stretched.values()) >= 1:
        return _grows(counts, stretched, stretch, slots, levels, workload)
    counted = played[warm:]
    figures = PlayedFigures.of(counted, levels)
    rates = {
        "requests_per_s": workload.rate,
        "goodput": workload.rate * figures.good / len(counted),
        "output_tokens_per_s": workload.rate * workload.mean_output_tokens,
    }
    return _prediction(counts, slots, stretch, stretched, counted, figures, rates, levels)


def predict_finite(
    profile: DeploymentProfile,
    workload: Workload,
    counts: InstanceCounts,
    times_s: Sequence[float],
    levels: Sequence[ServiceLevel] = (),
    hosts: int | None = None,
) -> Prediction:
    """Predict a load of requests at these times, before which nobody is there, until all have ended."""
    slots = profile.decode.slots_for(workload.mean_sequence_tokens)
    if not slots:
        return _overloaded(counts, {}, 1.0, 0, levels, _too_long(profile, workload))
    span_s = max(times_s[-1] - times_s[0], 1e-9)
    workload = workload.at_rate(len(times_s) / span_s)
    played = load_at(workload, times_s)
    pipeline = Pipeline(profile, counts, hosts, workload.rate * workload.mean_output_tokens)
    pipeline.play(played)
    stretches = {"gateway": 1.0} | pipeline.stretches
    alone = utilizations(profile, workload, counts, slots)
    stretched = {role: load * stretches[role] for role, load in alone.items()}
    figures = PlayedFigures.of(played, levels)
    seconds = max(request.at_s + request.e2e_s for request in played) - times_s[0]
    rates = {
        "requests_per_s": len(played) / seconds,
        "goodput": figures.good / seconds,
        "output_tokens_per_s": sum(request.output_tokens for request in played) / seconds,
    }
    stretch = max(stretches.values())
    return _prediction(counts, slots, stretch, stretched, played, figures, rates, levels)


def _prediction(
    counts: InstanceCounts,
    slots: int,
    stretch: float,
    loads: dict[str, float],
    counted: Sequence[PlayedRequest],
    figures: PlayedFigures,
    rates: dict[str, float],
    levels: Sequence[ServiceLevel],
) -> Prediction:
    waits = stage_waits(counted)
    stages = {role: StagePrediction(role, loads[role], waits[role]) for role in loads}
    decoding_s = sum(request.end_s - request.first_s for request in counted)
    span_s = counted[-1].at_s - counted[0].at_s
    mean_batch = decoding_s / span_s / counts.decode if span_s > 0 else 0.0
    verdicts = judge(levels, figures.latencies, rates)
    return Prediction(counts, stages, stretch, slots, mean_batch, figures.latencies, rates, verdicts)


def _alone_s(profile: DeploymentProfile, workload: Workload) -> float:
    """Return how long a mean request takes with nobody beside it."""
    gateway, decode = profile.gateway, profile.decode
    ways_s = (gateway.cpu_ms + gateway.token_cpu_ms + gateway.overhead_ms + decode.transfer_ms) / 1e3
    step_s = float(decode.step_ms.step_s(np.array([1.0]))[0])
    behind = float(workload.tokens_behind_first.mean())
    return ways_s + float(prompt_s(profile, workload).mean()) + behind * step_s


def _grows(
    counts: InstanceCounts,
    loads: dict[str, float],
    stretch: float,
    slots: int,
    levels: Sequence[ServiceLevel],
    workload: Workload,
) -> Prediction:
    stages = {role: StagePrediction(role, load, UNKNOWN_WAIT) for role, load in loads.items()}
    trouble = _overload_words(stages, counts, workload)
    return _overloaded(counts, stages, stretch, slots, levels, trouble)


def _overloaded(
    counts: InstanceCounts,
    stages: dict[str, StagePrediction],
    stretch: float,
    slots: int,
    levels: Sequence[ServiceLevel],
    trouble: str,
) -> Prediction:
    endless = LatencyFigures(0, math.inf, dict.fromkeys(SHARES, exactly(math.inf)))
    latencies = dict.fromkeys((*OF_REQUESTS, "itl"), endless)
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
