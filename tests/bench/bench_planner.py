"""Price a planner against reactive rules: SLO misses and instance-hours on recorded traces.

    python -m tests.bench.bench_planner table --mooncake FILE --azure FILE [--cold 60]
    python -m tests.bench.bench_planner check

`table` plays each trace with each way of scaling, in a discrete-event simulation (`planner_world.py`), and
`days` days that are made of it. `check` plays a slice beside the world of `tests/simulation`, whose gateways
and workers are those of the product, and says how far the simulation is from that.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.cli.bench.report.service_level import ServiceLevel
from services.cli.capacity.profile import (
    DecodeProfile,
    DeploymentProfile,
    FrontProfile,
    HostSize,
    PrefillProfile,
)
from services.cli.capacity.sizing import CapacityQuestion, fewest_instances
from services.cli.capacity.step_curve import StepCurve
from services.cli.capacity.workload import Workload
from services.cli.capacity.workload_trace import trace_rows
from services.cli.planner.counts_search import CountsSearch
from services.cli.planner.planner_settings import PlannerSettings, RoleLimits
from tests.bench.planner_world import Arrivals, PlayedFleet, PlayedRequest
from tests.bench.scaling_rules import Fixed, Planned, Reactive, ScalingRule
from tests.simulation.tenant_load import SEQUENCES, Traffic, run_loads, write_keys
from tests.support.models import make_tiny_checkpoint
from tests.support.percentile import percentile

SLOTS = 16
MORE_KV = 1.0
"""Times the KV of full slots of mean length that a pool has room for."""


@dataclass(frozen=True, slots=True)
class PlayedTrace:
    """A trace that is played `speed` times as fast; its objectives are a time to the first token and a mean
    time of the others, which 99 of 100 requests are to keep."""

    kind: str
    speed: float
    ttft_ms: float
    tpot_ms: float = 60.0

    @property
    def levels(self) -> tuple[ServiceLevel, ...]:
        words = (f"ttft_p99<{self.ttft_ms:g}ms", f"tpot_p99<{self.tpot_ms:g}ms")
        return tuple(map(ServiceLevel.read, words))

    def missed(self, request: PlayedRequest) -> bool:
        late = request.ttft_s * 1e3 >= self.ttft_ms or request.tpot_s * 1e3 >= self.tpot_ms
        return not request.first_s or late


TRACES = {
    # The objective of its authors: prompts have 12,000 tokens in the mean.
    "mooncake": PlayedTrace("mooncake", 1.0, 30_000.0),
    "azure": PlayedTrace("azure", 2.0, 2000.0),
}


def profile_for(arrivals: Arrivals) -> DeploymentProfile:
    """Return made-up workers with the ratios of a large model on one accelerator: they are to compare rules,
    not machines. KV is as much as the trace's mean wants, so that a rule on it has something to go by."""
    mean = sum(prompt + answer for _, prompt, answer in arrivals) / len(arrivals)
    kv_blocks = round(MORE_KV * SLOTS * mean / 16)
    curve = StepCurve(((1, 25.0), (SLOTS, 50.0)))
    decode = DecodeProfile(curve, slots=SLOTS, kv_blocks=kv_blocks)
    return DeploymentProfile("made up", HostSize(64), FrontProfile(0.0), PrefillProfile(5000.0, 5.0), decode)


LIMITS = {"prefill": RoleLimits(1, 16), "decode": RoleLimits(1, 16)}
UNJUDGED_S = 300.0
"""Nobody has learnt anything yet before."""
DAY_S = 86_400.0
LEAST_OF_DAY = 0.1
"""The part of the load that is there in the depth of a made night."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`missed`: the part of requests behind the first five minutes that missed an objective."""

    name: str
    missed: float
    ttft_p99_s: float
    hours: Mapping[str, float]
    changes: int

    def row(self, base: float) -> str:
        total = sum(self.hours.values())
        return (
            f"| {self.name} | {self.missed:.2%} | {self.ttft_p99_s:.2f} | {self.hours['prefill']:.1f} | "
            f"{self.hours['decode']:.1f} | {total / base:.2f} | {self.changes} |"
        )


Rule = Callable[[PlayedFleet], ScalingRule]


@dataclass(frozen=True, slots=True)
class Played:
    """A load, the workers for it, and what is asked of them; requests before `judged_s` do not count."""

    trace: PlayedTrace
    arrivals: Arrivals
    cached: float
    cold_s: float
    judged_s: float

    def play(self, name: str, begin: Mapping[str, int], rule: Rule) -> Outcome:
        fleet = PlayedFleet(self.profile, self.arrivals, self.cold_s, self.cached)
        for role, count in begin.items():
            fleet.scale(role, count, warm=True)
        ruling, changes, end_s = rule(fleet), 0, self.arrivals[-1][0]
        at_s = ruling.every_s
        while at_s < end_s:
            fleet.play(at_s)
            before = fleet.counts()
            ruling.look(fleet)
            changes += sum(abs(count - before[role]) for role, count in fleet.counts().items())
            at_s += ruling.every_s
        fleet.play(end_s)
        hours = fleet.hours()
        fleet.play(end_s + 3600.0)
        judged = [each for each in fleet.requests if each.at_s >= self.judged_s]
        missed = sum(map(self.trace.missed, judged)) / len(judged)
        ttfts = [each.ttft_s if each.first_s else 3600.0 for each in judged]
        return Outcome(name, missed, percentile(ttfts, 0.99), hours, changes)

    @property
    def profile(self) -> DeploymentProfile:
        return profile_for(self.arrivals)

    def counts_at(self, rate: float) -> dict[str, int]:
        pairs = [(prompt, answer) for _, prompt, answer in self.arrivals]
        workload = Workload.of_pairs(max(rate, 0.01), 1.0, pairs, self.cached)
        counts = fewest_instances(CapacityQuestion(self.profile, workload, self.trace.levels)).counts
        return {"prefill": counts.prefill, "decode": counts.decode}


def rules(levels: Sequence[ServiceLevel]) -> dict[str, Rule]:
    found: dict[str, Rule] = {
        "rules of autoscaling.yaml": lambda _: Reactive(),
        "the same, at least 4": lambda _: Reactive(least=4),
    }
    for spare in (0, 1):
        settings = PlannerSettings(tuple(levels), LIMITS, spare, changes_per_minute=30)
        name = f"planner, {spare} spare" + ("" if spare == 1 else "s")
        found[name] = partial(Planned, settings=settings, search=CountsSearch(levels))
    return found


def table(title: str, played: Played) -> None:
    began_s = time.perf_counter()
    busiest = played.counts_at(_busiest_rate(played.arrivals))
    first = played.counts_at(sum(1 for each in played.arrivals if each[0] < 120) / 120)
    objectives = " and ".join(level.text for level in played.trace.levels)
    print(f"\n{title}, cold start {played.cold_s:g} s, {len(played.arrivals)} requests, {objectives}\n")
    print("| scaled by | missed | TTFT p99 s | prefill h | decode h | hours to fixed | changes |")
    print("|---|---|---|---|---|---|---|")
    fixed = played.play("nobody: as the busiest minute needs", busiest, lambda _: Fixed())
    base = sum(fixed.hours.values())
    print(fixed.row(base))
    for name, rule in rules(played.trace.levels).items():
        print(played.play(name, first, rule).row(base), flush=True)
    print(f"\n({time.perf_counter() - began_s:.0f} s)", file=sys.stderr)


def _busiest_rate(arrivals: Arrivals) -> float:
    minutes: dict[int, int] = {}
    for at_s, _, _ in arrivals:
        minutes[int(at_s // 60)] = minutes.get(int(at_s // 60), 0) + 1
    return max(minutes.values()) / 60


def days_of(arrivals: Arrivals, days: int, share: float, seed: int = 1) -> Arrivals:
    """Return days made of a recorded hour: its requests come again each hour, thinned by a curve of the day.

    The curve is a sine from night to noon, so what is usual at a time of day is worth knowing. `share` of the
    requests come at noon.
    """

    random, span_s = Random(seed), arrivals[-1][0]
    found, began_s = [], 0.0
    while began_s < days * DAY_S:
        for at_s, prompt, answer in arrivals:
            time_s = began_s + at_s
            curve = LEAST_OF_DAY + (1 - LEAST_OF_DAY) * (1 - math.cos(2 * math.pi * time_s / DAY_S)) / 2
            if random.random() < share * curve:
                found.append((time_s, prompt, answer))
        began_s += span_s
    return [each for each in found if each[0] < days * DAY_S]


# ---- how far it is from the world of the product --------------------------------------------------------

USUAL_PROFILE = DeploymentProfile(
    "the usual step of a simulated engine",
    HostSize(64),
    FrontProfile(0.0),
    PrefillProfile(1e6 / 300.0, 2.5),
    DecodeProfile(
        StepCurve(((1, 2.8), (SEQUENCES, 2.0 + 0.8 * SEQUENCES))), slots=SEQUENCES, kv_blocks=100_000
    ),
)
"""`tests/simulation/step_profile.py` as a profile: 2 ms a step, 0.3 ms a token, 0.5 ms a sequence."""
CHECK_SEED = 5
ALONE_RATE, ALONE_S = 2.0, 10.0


def check(rate: float, seconds: float) -> None:
    """Play the same arrivals in both, and print figures of both. The way over the bus is measured alone."""
    alone = _drawn(ALONE_RATE, ALONE_S)
    way_ms = percentile(
        [
            real[0] - 1e3 * each.ttft_s
            for real, each in zip(asyncio_world(alone), _played(alone, 0.0), strict=True)
        ],
        0.5,
    )
    arrivals = _drawn(rate, seconds)
    world, played = asyncio_world(arrivals), _played(arrivals, way_ms)
    print(f"{len(arrivals)} requests at {rate:g}/s, 2 workers of each role, {way_ms:.1f} ms on the way\n")
    print("| | world | played | off by |\n|---|---|---|---|")
    for name, of_played, of_world in (
        ("TTFT", [1e3 * each.ttft_s for each in played], [each[0] for each in world]),
        ("TPOT", [1e3 * each.tpot_s for each in played], [each[1] for each in world]),
    ):
        for share in (0.5, 0.9, 0.99):
            real, found = percentile(of_world, share), percentile(of_played, share)
            print(f"| {name} p{100 * share:g} ms | {real:.1f} | {found:.1f} | {found / real - 1:+.0%} |")


def _drawn(rate: float, seconds: float) -> Arrivals:
    random, at_s = Random(CHECK_SEED), 0.0
    arrivals = []
    while at_s < seconds:
        arrivals.append((at_s, random.randint(16, 200), random.randint(4, 60)))
        at_s += random.expovariate(rate)
    return arrivals


def _played(arrivals: Arrivals, way_ms: float) -> list[PlayedRequest]:
    fleet = PlayedFleet(replace(USUAL_PROFILE, gateway=FrontProfile(0.0, overhead_ms=way_ms)), arrivals, 0.0)
    for role in ("prefill", "decode"):
        fleet.scale(role, 2, warm=True)
    fleet.play(arrivals[-1][0] + 600.0)
    return fleet.requests


def asyncio_world(arrivals: Arrivals) -> list[tuple[float, float]]:
    """Return TTFT and TPOT in ms of the same arrivals in a simulated fleet of the product's own actors."""
    found: list[tuple[float, float]] = []

    async def run(stub: rpc.InferenceStub, key: str) -> Traffic:
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def one(number: int, at_s: float, prompt: int, answer: int) -> tuple[float, float]:
            await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
            message = pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=[5 + (number * 31 + each * 7) % 200 for each in range(prompt)]),
                sampling=pb.Sampling(max_tokens=answer, temperature=0.8, seed=number, ignore_eos=True),
                ttft_deadline_ms=60_000,
            )
            asked_s = first_s = last_s = loop.time()
            tokens = 0
            async for event in stub.Generate(message, metadata=(("authorization", f"Bearer {key}"),)):
                if event.WhichOneof("event") == "text" and event.text.token_ids:
                    first_s = first_s if tokens else loop.time()
                    tokens += len(event.text.token_ids)
                    last_s = loop.time()
            return 1e3 * (first_s - asked_s), 1e3 * (last_s - first_s) / max(1, tokens - 1)

        found.extend(await asyncio.gather(*(one(place, *each) for place, each in enumerate(arrivals))))
        return Traffic()

    with TemporaryDirectory() as folder:
        model, keys = Path(folder, "tiny"), Path(folder, "keys.toml")
        make_tiny_checkpoint(model)
        write_keys(keys, {"one": "one"})
        run_loads(CHECK_SEED, model, keys, {"one": run})
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("table", "check", "days"))
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--azure", type=Path)
    parser.add_argument("--cold", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.3)
    args = parser.parse_args(argv)
    if args.what == "check":
        check(args.rate, args.seconds)
        return 0
    for kind, path in (("mooncake", args.mooncake), ("azure", args.azure)):
        if path is None:
            continue
        trace = TRACES[kind]
        rows, again = trace_rows(kind, path, trace.speed, 1.0)
        name = f"{path.stem}" + (f", {trace.speed:g} times as fast" if trace.speed != 1 else "")
        if args.what == "table":
            table(name, Played(trace, rows, again, args.cold, UNJUDGED_S))
        else:
            days = days_of(rows, args.days, args.share)
            title = f"{args.days} days of {name}, the last one judged"
            table(title, Played(trace, days, again, args.cold, (args.days - 1) * DAY_S))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
