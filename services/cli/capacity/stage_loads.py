"""The load of each stage of a deployment: how busy it is, and what waits there."""

from __future__ import annotations

from dataclasses import dataclass

from services.cli.bench.stats.quantiles import Floats
from services.cli.capacity.core_sharing import ALONE, CoreSharing, Stretches, share_cores
from services.cli.capacity.decode_batch import BatchDistribution, DecodeLoad, batch_distribution
from services.cli.capacity.profile import DeploymentProfile, InstanceCounts
from services.cli.capacity.queueing import LineWait, ServiceTime, busy_servers, line_wait
from services.cli.capacity.workload import Workload, squared_variation

SHARING_ROUNDS = 200
SHARING_EXACT = 1e-7


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """`utilization` is load over what the instances do at most; `busy`: how many have work, in the mean."""

    role: str
    utilization: float
    wait: LineWait
    busy: float


@dataclass(frozen=True, slots=True)
class StageLoads:
    """All stages, and how they share cores; None: each has its own."""

    gateway: StagePrediction
    prefill: StagePrediction
    decode: StagePrediction
    batches: BatchDistribution
    sharing: CoreSharing | None

    @property
    def stretch(self) -> float:
        if self.sharing is None:
            return 1.0
        steps = self.sharing.step_stretches(len(self.batches.shares) - 1, self.batches.workers)
        live = self.batches.shares[1:]
        mean = float(steps @ live) / float(live.sum()) if live.sum() > 0 else 1.0
        return max(mean, self.sharing.of_prompts().mean)


def settled_loads(
    profile: DeploymentProfile, workload: Workload, counts: InstanceCounts, slots: int, hosts: int | None
) -> StageLoads:
    """Return the least fixed point of: work takes longer by who is busy beside it, who is that for longer.

    More stretch keeps more instances busy, never more than all: from none on it rises to a fixed point.
    """
    loads = _stage_loads(profile, workload, counts, slots, None)
    if hosts is None:
        return loads
    for _ in range(SHARING_ROUNDS):
        busy = loads.prefill.busy + loads.decode.busy
        prompts = busy_servers(counts.prefill, loads.prefill.utilization * counts.prefill)
        sharing = share_cores(profile, workload, hosts, prompts, loads.batches)
        loads = _stage_loads(profile, workload, counts, slots, sharing)
        if abs(loads.prefill.busy + loads.decode.busy - busy) < SHARING_EXACT:
            break
    return loads


def _stage_loads(
    profile: DeploymentProfile,
    workload: Workload,
    counts: InstanceCounts,
    slots: int,
    sharing: CoreSharing | None,
) -> StageLoads:
    rate, scv = workload.rate, workload.arrival_scv
    pieces = 1.0 + workload.mean_output_tokens
    small = sharing.small_stretch if sharing else 1.0
    front = _line_stage("gateway", rate * pieces, scv, _front_piece(profile, workload, small), counts.gateway)
    prompts = sharing.of_prompts() if sharing else ALONE
    service = _prompt_service(prompt_s(profile, workload), prompts)
    prefill = _line_stage("prefill", rate, scv, service, counts.prefill)
    behind = workload.tokens_behind_first
    decode_load = DecodeLoad(rate, scv, float(behind.mean()), squared_variation(behind), counts.decode, slots)
    steps = sharing.step_stretches(decode_load.places, counts.decode) if sharing else None
    batches = batch_distribution(decode_load, profile.decode.step_ms, steps)
    decode = StagePrediction("decode", batches.utilization, batches.wait, batches.mean_busy)
    return StageLoads(front, prefill, decode, batches, sharing)


def _prompt_service(times_s: Floats, stretches: Stretches) -> ServiceTime:
    """Return the time of prompts, whose lengths and stretches are independent."""
    mean_s = float(times_s.mean()) * stretches.mean
    square = float((times_s**2).mean()) * stretches.mean_square
    return ServiceTime(mean_s, max(0.0, square / mean_s**2 - 1) if mean_s else 0.0)


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


def prompt_s(profile: DeploymentProfile, workload: Workload) -> Floats:
    prefill = profile.prefill
    times_s: Floats = prefill.overhead_ms / 1e3 + workload.computed_tokens / prefill.tokens_per_s
    return times_s
