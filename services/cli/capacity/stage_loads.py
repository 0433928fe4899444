"""The load of each stage of a deployment: how busy its instances are, and who waits there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from services.cli.bench.stats.quantiles import Floats
from services.cli.capacity.pipeline.played_request import PlayedRequest
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts
from services.cli.capacity.workload import Workload

LEAST_WAIT_S = 1e-9
"""A shorter wait is none: times of events are rounded."""


@dataclass(frozen=True, slots=True)
class StageWait:
    """`share` of requests waits in the line of a stage, all of them `mean_s` in the mean."""

    share: float
    mean_s: float

    @classmethod
    def of(cls, waits_s: Sequence[float]) -> StageWait:
        waiting = sum(wait_s > LEAST_WAIT_S for wait_s in waits_s)
        return cls(waiting / len(waits_s), fmean(waits_s))


UNKNOWN_WAIT = StageWait(1.0, float("inf"))
"""The wait in a line that only grows."""


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """`utilization` is load over what the instances do at most."""

    role: str
    utilization: float
    wait: StageWait


def utilizations(
    profile: DeploymentProfile, workload: Workload, counts: InstanceCounts, slots: int
) -> dict[str, float]:
    """Return the load of each role over what its instances do at most, each with cores of its own."""
    gateway = profile.gateway
    front_s = (gateway.cpu_ms + workload.mean_output_tokens * gateway.token_cpu_ms) / 1e3
    full_step_s = float(profile.decode.step_ms.step_s(np.array([float(slots)]))[0])
    answer_s = float(workload.tokens_behind_first.mean()) * full_step_s / slots
    return {
        "gateway": workload.rate * front_s / counts.gateway,
        "prefill": workload.rate * float(prompt_s(profile, workload).mean()) / counts.prefill,
        "decode": workload.rate * answer_s / counts.decode,
    }


def stage_waits(requests: Sequence[PlayedRequest]) -> dict[str, StageWait]:
    """Return who waited before each role, of requests that were played."""
    return {
        "gateway": StageWait.of([request.front_wait_s for request in requests]),
        "prefill": StageWait.of([request.line_wait_s for request in requests]),
        "decode": StageWait.of([request.slot_wait_s for request in requests]),
    }


def prompt_s(profile: DeploymentProfile, workload: Workload) -> Floats:
    """Return how long each prompt takes to compute with nothing beside it."""
    prefill = profile.prefill
    times_s: Floats = prefill.overhead_ms / 1e3 + workload.computed_tokens / prefill.tokens_per_s
    return times_s
