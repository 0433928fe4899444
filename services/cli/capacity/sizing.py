"""Find the fewest instances that keep the objectives, what breaks first, and what one loss does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.cli.bench.report.prices import Prices
from services.cli.bench.report.service_level import LevelVerdict, ServiceLevel
from services.cli.bench.serve_options import MAX_RATE
from services.cli.capacity.prediction import PLAYED_REQUESTS, Prediction, predict
from services.cli.capacity.profile import MAX_ROLE_INSTANCES, ROLES_SIZED, DeploymentProfile, InstanceCounts
from services.cli.capacity.workload import Workload

MAX_MOVES = 200
"""The most changes of one search for counts: it gives up with the nearest that it found."""
LEAST_GAIN = 1e-6
RATE_EXACT = 1.05
"""The greatest rate is looked for until the next one that is not kept is so many times as great at most."""
LEAST_RATE = 1e-6


@dataclass(frozen=True, slots=True)
class CapacityQuestion:
    """A workload at a deployment with objectives; `hosts` None: as many as the instances need. `requests` are
    played for each prediction."""

    profile: DeploymentProfile
    workload: Workload
    levels: Sequence[ServiceLevel] = ()
    hosts: int | None = None
    requests: int = PLAYED_REQUESTS
    known: dict[tuple[InstanceCounts, float], Prediction] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The predictions that were made already, by counts and rate."""

    def predict(self, counts: InstanceCounts, rate: float | None = None) -> Prediction:
        rate = self.workload.rate if rate is None else rate
        if (counts, rate) not in self.known:
            workload = self.workload.at_rate(rate)
            self.known[counts, rate] = predict(
                self.profile, workload, counts, self.levels, self.hosts, self.requests
            )
        return self.known[counts, rate]


@dataclass(frozen=True, slots=True)
class BreakingPoint:
    """The greatest rate that is served with all objectives kept, and what ends it. `rate` 0: none is."""

    rate: float
    role: str
    why: str


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """One instance of a role fails: whether the others keep everything, and what is queued until it is back.

    `backlog` are the requests that wait when the fresh one takes work, `drained_s` how long those then last;
    0 where the others keep up, infinite where even all together have nothing to spare.
    """

    role: str
    left: int
    prediction: Prediction | None
    backlog: float
    drained_s: float

    @property
    def kept(self) -> bool:
        return self.prediction is not None and self.prediction.kept


def fewest_instances(question: CapacityQuestion) -> Prediction:
    """Return the prediction for counts that keep every objective, none of which can be smaller by itself; one
    that is not `kept` where more of no role helps."""
    best = question.predict(_least_counts(question))
    for _ in range(MAX_MOVES):
        if best.kept:
            return _trimmed(question, best)
        moves = [
            question.predict(best.counts.with_one(role, _stride(best.counts.of(role))))
            for role in ROLES_SIZED
            if best.counts.of(role) < MAX_ROLE_INSTANCES
        ]
        nearest = min(moves, key=excess, default=best)
        if excess(nearest) >= excess(best) * (1 - LEAST_GAIN):
            return best
        best = nearest
    return best


def excess(prediction: Prediction) -> float:
    """Return by how much the worst objective is missed, as a ratio; overload is worse than any miss."""
    if prediction.trouble:
        loads = [stage.utilization for stage in prediction.stages.values()]
        return 1e9 * (1.0 + sum(max(0.0, load - 1.0) for load in loads)) if loads else math.inf
    missed = [_miss(verdict) for verdict in prediction.verdicts if not verdict.kept]
    return max(missed, default=0.0)


def breaking_point(question: CapacityQuestion, counts: InstanceCounts) -> BreakingPoint:
    """Return up to which rate these instances keep everything: more load is taken to be never better."""
    least = question.predict(counts, LEAST_RATE)
    if not least.kept:
        return _broken(least, 0.0)
    most = min(MAX_RATE, _most_rate(least))
    almost = question.predict(counts, most * (1 - LEAST_GAIN))
    if almost.kept:
        if most == MAX_RATE:
            return BreakingPoint(MAX_RATE, "", "no higher rate was looked at")
        return _broken(question.predict(counts, most * (1 + LEAST_GAIN)), most)
    low, high = most / 2, most
    broken = almost
    tried = question.predict(counts, low)
    while not tried.kept and low > LEAST_RATE:
        low, high, broken = low / 2, low, tried
        tried = question.predict(counts, low)
    while high > low * RATE_EXACT:
        middle = (low + high) / 2
        tried = question.predict(counts, middle)
        if tried.kept:
            low = middle
        else:
            high, broken = middle, tried
    return _broken(broken, low)


def loss_outcomes(question: CapacityQuestion, counts: InstanceCounts) -> list[LossOutcome]:
    """Return what each role's loss of one instance does."""
    return [_loss(question, counts, role) for role in ROLES_SIZED]


def with_spares(fewest: Prediction) -> InstanceCounts:
    """Return the counts with which any one instance may fail and everything is still kept, each with cores of
    its own."""
    counts = fewest.counts
    for role in ROLES_SIZED:
        if counts.of(role) < MAX_ROLE_INSTANCES:
            counts = counts.with_one(role, 1)
    return counts


def hosts_for(profile: DeploymentProfile, counts: InstanceCounts) -> int:
    """Return how many machines have the cores and the GPUs of these instances."""
    by_cores = math.ceil(round(counts.cores(profile) / profile.host.cores, 9))
    by_gpus = math.ceil(counts.gpus(profile) / profile.host.gpus) if profile.host.gpus else 0
    return max(1, by_cores, by_gpus)


def cost_per_hour(prices: Prices, hosts: int, regions: int) -> float:
    return prices.machine_per_hour * hosts * regions


def _least_counts(question: CapacityQuestion) -> InstanceCounts:
    """Return the fewest whose lines end, each with a core of its own: load divided by what one does."""
    alone = predict(question.profile, question.workload, InstanceCounts())
    needed = {
        role: min(MAX_ROLE_INSTANCES, math.floor(stage.utilization) + 1)
        for role, stage in alone.stages.items()
    }
    return InstanceCounts(**needed)


def _trimmed(question: CapacityQuestion, kept: Prediction) -> Prediction:
    """Take instances away again, role by role, as long as everything is kept."""
    for role in reversed(ROLES_SIZED):
        low, high = 0, kept.counts.of(role)
        while high - low > 1:
            middle = (low + high) // 2
            tried = question.predict(kept.counts.with_one(role, middle - kept.counts.of(role)))
            if tried.kept:
                kept, high = tried, middle
            else:
                low = middle
    return kept


def _stride(count: int) -> int:
    return min(max(1, count // 8), MAX_ROLE_INSTANCES - count)


def _miss(verdict: LevelVerdict) -> float:
    level = ServiceLevel.read(verdict.text)
    if level.above:
        return level.limit / verdict.measured if verdict.measured > 0 else math.inf
    return verdict.measured / level.limit if level.limit > 0 else math.inf


def _most_rate(least: Prediction) -> float:
    """Return the rate at which the first role is full, each instance with cores of its own."""
    load = max(stage.utilization for stage in least.stages.values())
    return LEAST_RATE / load if load else math.inf


def _broken(prediction: Prediction, rate: float) -> BreakingPoint:
    if prediction.trouble:
        return BreakingPoint(
            rate, prediction.most_loaded if prediction.stages else "decode", prediction.trouble
        )
    worst = max((v for v in prediction.verdicts if not v.kept), key=_miss)
    return BreakingPoint(rate, prediction.most_loaded, f"{worst.text} is missed")


def _loss(question: CapacityQuestion, counts: InstanceCounts, role: str) -> LossOutcome:
    left = counts.of(role) - 1
    away_s = question.profile.restart.detect_s + question.profile.restart.ready_s
    rate = question.workload.rate
    whole = question.predict(counts)
    most_rate = rate / whole.stages[role].utilization if whole.stages and rate else math.inf
    prediction = question.predict(counts.with_one(role, -1)) if left else None
    served = most_rate * left / counts.of(role) if left else 0.0
    backlog = max(0.0, rate - served) * away_s
    spare = most_rate - rate
    drained_s = 0.0 if not backlog else backlog / spare if spare > 0 else math.inf
    return LossOutcome(role, left, prediction, backlog, drained_s)
