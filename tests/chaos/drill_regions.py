"""Regions: a fleet in two network namespaces, each with a nats-server, with a wide area between them.

All workers of a region are killed under load and come back; the way is long, loses packets, and is cut.
All packets between the regions are looked into, for what of which request is in them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.regions.home import HOLD_S
from shared.bus import Bus
from shared.bus.fleet import FleetView
from shared.bus.nats_server import RUNTIME, nats_server_binary
from shared.messages import RegionReport
from tests.chaos.report import DrillReport, spread
from tests.chaos.traffic import Stream, all_started, differences, run_streams
from tests.chaos.wide_area import NEAR, WIDE, WideArea, wide_area
from tests.chaos.world import Models
from tests.support.client import Answer, connect, generate, request
from tests.support.data import REPOSITORY
from tests.support.wait import until

REGIONS = ("eu", "us")
ROLES = ("tokenizer", "detokenizer", "prefill", "decode")
GRPC_PORT, NATS_PORT, LINK_PORT = 50051, 4222, 7222
STARTED_TIMEOUT_S = 240.0
END_S = 10.0
FAIL_OVER_S = 1.0
GATEWAYS, LEAVES = "gateways", "leaf nodes"
LINKS = {
    GATEWAYS: (
        'gateway {{ name: {name}, listen: "{wide}:{port}", gateways: [{{ name: {other}, '
        'urls: ["nats://{other_wide}:{port}"] }}] }}'
    ),
    LEAVES: (
        'leafnodes {{ listen: "{wide}:{port}", compression: off }}',
        'leafnodes {{ remotes: [{{ url: "nats://{other_wide}:{port}", compression: off }}] }}',
    ),
}
"""How the server of a region reaches that of the other one; among leaf nodes the second one dials."""
PROMPT_WORDS = "the quick brown fox jumps over a lazy dog and then it goes on to the river "


@dataclass(frozen=True, slots=True)
class Scale:
    """`round_trips_s` of the way; `calls` one after another, `streams` of `tokens` at once; `lossy` is the
    share of packets that is lost, `cut_s` how long none pass."""

    round_trips_s: tuple[float, ...]
    calls: int
    streams: int
    tokens: int
    lossy: float
    cut_s: float


FULL = {
    GATEWAYS: Scale((0.001, 0.030, 0.120), 20, 8, 400, 0.01, 5.0),
    LEAVES: Scale((0.030,), 10, 4, 400, 0.01, 3.0),
}


@dataclass(slots=True)
class Region:
    """The processes of a region, by name: `nats`, a gateway, and a worker of each role."""

    name: str
    number: int
    model: Path
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def near(self) -> str:
        return NEAR.format(self.number, 2)

    @property
    def grpc(self) -> str:
        return f"{self.near}:{GRPC_PORT}"

    def run(self, name: str, command: Sequence[str], environ: dict[str, str]) -> None:
        with (self.folder / f"{self.name}-{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                cwd=REPOSITORY,
                env={**os.environ, **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_nats(self, link: str) -> None:
        other = 3 - self.number
        template = LINKS[link]
        text = template if isinstance(template, str) else template[self.number - 1]
        text = text.format(
            name=self.name,
            other=REGIONS[other - 1],
            wide=WIDE.format(self.number),
            other_wide=WIDE.format(other),
            port=LINK_PORT,
        )
        conf = self.folder / f"{self.name}.conf"
        conf.write_text(f'server_name: {self.name}\nport: {NATS_PORT}\n{text}\nwrite_deadline: "10s"\n')
        self.run("nats", [str(nats_server_binary()), "-c", str(conf)], RUNTIME)

    def start(self, role: str) -> None:
        environ = {
            "PENSTOCK_REGION": self.name,
            "PENSTOCK_INSTANCE": f"{role}-{self.name}",
            "PENSTOCK_NATS_URL": f"nats://127.0.0.1:{NATS_PORT}",
            "PENSTOCK_MODEL": str(self.model),
            "PENSTOCK_GATEWAY_GRPC_HOST": "0.0.0.0",
            "PENSTOCK_GATEWAY_GRPC_PORT": str(GRPC_PORT),
            "PENSTOCK_GATEWAY_HTTP_HOST": "",
            "PENSTOCK_GATEWAY_COALESCE": "false",  # calls that are alike are load
            "PENSTOCK_DEFAULT_MODEL": "none",
            "OMP_NUM_THREADS": "1",
        }
        self.run(role, [sys.executable, "-m", f"services.{role}"], environ)

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes.pop(name).kill()

    def end(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)


class RegionsDrill:
    def __init__(
        self,
        way: WideArea,
        regions: tuple[Region, Region],
        stubs: tuple[rpc.InferenceStub, rpc.InferenceStub],
        fleet: FleetView,
        scale: Scale,
        report: DrillReport,
    ) -> None:
        self._way = way
        self._home, self._other = regions
        self._stub, self._other_stub = stubs
        self._fleet = fleet
        self._scale = scale
        self._report = report
        self._turn = 0

    async def hold_all(self, link: str) -> None:
        for round_trip_s in self._scale.round_trips_s:
            await self._hold_at(link, round_trip_s)
        await self._lose_packets()
        await self._cut()

    async def _hold_at(self, link: str, round_trip_s: float) -> None:
        what = f"{link}, {1e3 * round_trip_s:g} ms"
        self._way.set_round_trip(round_trip_s)
        measured_s = await self._measured_s(round_trip_s)
        self._report.claim(
            f"the gateway knows how far the other region is: {what}",
            f"{1e3 * measured_s:.1f} ms",
            holds=measured_s < 1.3 * round_trip_s + 0.01,
            timed=True,
        )
        near = await self._ask_near(what)
        await self._kill(what, round_trip_s)
        far = await self._ask_some(self._stub, self._scale.calls)
        self._tell(f"far: {what}", far)
        self._claim_region(f"calls are answered in the other region: {what}", far, self._other.name)
        await self._come_home(what)
        again = await self._ask_near(f"{what}, home again")
        self._report.details.append(
            (
                ("way", "near p50", "far p50", "far - near"),
                [
                    (
                        what,
                        *(f"{1e3 * seconds:.1f} ms" for seconds in (_median(near), _median(far))),
                        f"{1e3 * (_median(far) - min(_median(near), _median(again))):.1f} ms",
                    )
                ],
            )
        )

    async def _ask_near(self, what: str) -> list[Answer]:
        self._way.record()
        near = await self._ask_some(self._stub, self._scale.calls)
        crossed = self._way.packets_with([answer.prompt.request_id for answer in near if answer.prompt])
        self._tell(f"near: {what}", near, crossed=str(crossed))
        self._claim_region(f"calls stay near: {what}", near, "")
        self._report.claim(
            f"no message of theirs is between the regions: {what}", crossed, holds=crossed == 0, timed=True
        )
        return near

    async def _kill(self, what: str, round_trip_s: float) -> None:
        """Kill all workers of the home region under streams, and ask anew from that moment on."""
        messages = [self._message(number, self._scale.tokens) for number in range(self._scale.streams)]
        undisturbed = await run_streams(self._stub, messages)
        streams = [Stream(message) for message in messages]
        running = [asyncio.create_task(stream.follow(self._stub)) for stream in streams]
        await all_started(streams)
        self._home.kill(*ROLES)
        killed_s = time.monotonic()
        new = await self._ask_some(self._stub, 1)
        first_s = time.monotonic() - killed_s
        await asyncio.gather(*running)
        wrong = differences(streams, undisturbed)
        pauses_s = [stream.pause_s for stream in streams]
        self._report.add(
            f"killed: {what}", len(streams), len(wrong), "-", spread([1e3 * s for s in pauses_s]), "-"
        )
        self._report.claim(f"streams go on byte-identical: {what}", wrong[:3], holds=not wrong)
        limit_s = FAIL_OVER_S + 4 * round_trip_s
        self._report.claim(
            f"a killed region pauses streams for {limit_s:g} s at most (1 s and the ways): {what}",
            spread([1e3 * s for s in pauses_s]),
            holds=max(pauses_s) <= limit_s,
            timed=True,
        )
        self._report.claim(
            f"a call of that moment has ended elsewhere within {limit_s:g} s: {what}",
            f"{1e3 * first_s:.0f} ms, {new[0].outcome}, {_longest_phase(new[0])}",
            holds=first_s <= limit_s and new[0].outcome == "finished",
            timed=True,
        )

    async def _come_home(self, what: str) -> None:
        for role in ROLES:
            self._home.start(role)
        await until(partial(self._are_ready, self._home), timeout_s=STARTED_TIMEOUT_S)
        ready_s = time.monotonic()
        regions = [_region_of(answer) for answer in await self._ask_some(self._stub, 1)]
        while regions[-1] and time.monotonic() < ready_s + STARTED_TIMEOUT_S:
            await asyncio.sleep(0.25)
            regions += [_region_of(answer) for answer in await self._ask_some(self._stub, 1)]
        home_s = time.monotonic() - ready_s
        regions += [_region_of(answer) for answer in await self._ask_some(self._stub, 5)]
        changes = sum(one != other for one, other in pairwise(regions))
        self._report.claim(
            f"calls come home when it has been in order for {HOLD_S:g} s or a few times that: {what}",
            f"{home_s:.1f} s, {changes} change",
            holds=changes <= 1 and not regions[-1],
            timed=True,
        )

    async def _lose_packets(self) -> None:
        """The home region is gone, and packets of the way are lost."""
        self._way.set_round_trip(0.030, self._scale.lossy)
        self._home.kill(*ROLES)
        await until(lambda: not self._are_ready(self._home))
        far = await self._ask_some(self._stub, self._scale.calls)
        self._tell(f"far, {self._scale.lossy:.0%} of packets lost, 30 ms", far)
        wrong = [answer.outcome for answer in far if answer.outcome != "finished"]
        self._report.claim("no call fails where packets are lost", wrong, holds=not wrong)
        self._way.set_round_trip(0.030)
        await self._come_home("after lost packets")

    async def _cut(self) -> None:
        """Both regions serve on while nothing passes between them."""
        self._way.cut()
        ends_s = time.monotonic() + self._scale.cut_s
        answers = []
        while time.monotonic() < ends_s:
            for stub in (self._stub, self._other_stub):
                answers += await self._ask_some(stub, 1)
        self._tell(f"cut for {self._scale.cut_s:g} s, both regions", answers)
        wrong = [answer.outcome for answer in answers if answer.outcome != "finished" or _region_of(answer)]
        self._report.claim("each region serves on by itself", wrong[:3], holds=not wrong)
        self._way.mend()
        await until(lambda: self._are_ready(self._other), timeout_s=STARTED_TIMEOUT_S)
        near = await self._ask_some(self._stub, 3)
        self._claim_region("calls are near after the cut", near, "")

    # ---- asking -------------------------------------------------------------------------------------

    async def _ask_some(self, stub: rpc.InferenceStub, count: int) -> list[Answer]:
        """Ask one after another; no prompt is that of another call."""
        answers = []
        for _ in range(count):
            self._turn += 1
            answers.append(await generate(stub, self._message(1000 + self._turn, 8)))
        return answers

    def _message(self, number: int, tokens: int) -> pb.GenerateRequest:
        prompt = f"{number} {PROMPT_WORDS * 4}"
        return request(prompt, temperature=0.8, seed=number, max_tokens=tokens, ignore_eos=True)

    async def _measured_s(self, round_trip_s: float) -> float:
        """Return how far the home region's gateway takes the other one to be, once that is no longer of
        another way."""

        def about() -> float:
            report = self._reported()
            seconds = 0.0 if report is None else report.round_trip_us / 1e6
            return seconds if round_trip_s <= seconds < 1.5 * round_trip_s + 0.02 else 0.0

        while not about():
            await self._ask_some(self._stub, 1)  # a gateway at rest seldom measures
            await asyncio.sleep(0.1)
        return about()

    def _reported(self) -> RegionReport | None:
        view = self._fleet.get("gateway", f"gateway-{self._home.name}")
        reports = () if view is None else view.heartbeat.gateway.regions
        return next((report for report in reports if report.region == self._other.name), None)

    def _are_ready(self, region: Region) -> bool:
        views = (self._fleet.get(role, f"{role}-{region.name}") for role in ROLES)
        return all(view is not None and view.ready for view in views)

    def _tell(self, what: str, answers: Sequence[Answer], crossed: str = "-") -> None:
        failed = sum(answer.outcome != "finished" for answer in answers)
        times = spread([answer.ttft_us / 1e3 for answer in answers])
        self._report.add(what, len(answers), failed, times, "-", crossed)

    def _claim_region(self, what: str, answers: Sequence[Answer], region: str) -> None:
        elsewhere = [_region_of(answer) for answer in answers if _region_of(answer) != region]
        self._report.claim(what, elsewhere[:3], holds=not elsewhere, timed=True)


def _region_of(answer: Answer) -> str:
    return "" if answer.end is None else answer.end.timeline.region


def _longest_phase(answer: Answer) -> str:
    phases = [] if answer.end is None else sorted(answer.end.timeline.phases, key=lambda one: one.duration_us)
    return f"{phases[-1].name} took {phases[-1].duration_us / 1e3:.0f} ms" if phases else "no phases"


def _median(answers: Sequence[Answer]) -> float:
    return sorted(answer.ttft_us for answer in answers)[len(answers) // 2] / 1e6


@asynccontextmanager
async def two_regions(
    models: Models, link: str
) -> AsyncIterator[tuple[WideArea, tuple[Region, Region], FleetView]]:
    with tempfile.TemporaryDirectory(prefix="penstock-regions-") as scratch, wide_area(*REGIONS) as way:
        regions = tuple(
            Region(name, number, models.target, Path(scratch)) for number, name in enumerate(REGIONS, 1)
        )
        try:
            for region in regions:
                region.start_nats(link)
            for region in regions:
                for role in (*ROLES, "gateway"):
                    region.start(role)
            async with _watched(regions[0]) as fleet:
                await until(lambda: _all_known(fleet), timeout_s=STARTED_TIMEOUT_S)
                first, second = regions
                yield way, (first, second), fleet
        finally:
            for region in regions:
                await asyncio.to_thread(region.end)


@asynccontextmanager
async def _watched(region: Region) -> AsyncIterator[FleetView]:
    bus = await Bus.connect(f"nats://{region.near}:{NATS_PORT}", name="drill")
    fleet = FleetView()
    await fleet.start(bus)
    try:
        yield fleet
    finally:
        await fleet.stop()
        await bus.close()


def _all_known(fleet: FleetView) -> bool:
    ready = {view.heartbeat.instance for view in fleet.all() if view.ready}
    return {f"{role}-{region}" for role in (*ROLES, "gateway") for region in REGIONS} <= ready


def new_report() -> DrillReport:
    return DrillReport(
        "regions: two network namespaces, a nats-server in each, joined by gateways or as leaf nodes",
        (
            "what",
            "calls",
            "failed",
            "first token p50 / p99 / max",
            "pause p50 / p99 / max",
            "packets between",
        ),
    )


async def hold(models: Models, scales: Mapping[str, Scale] = MappingProxyType(FULL)) -> DrillReport:
    report = new_report()
    for link, scale in scales.items():
        async with (
            two_regions(models, link) as (way, regions, fleet),
            connect(regions[0].grpc) as stub,
            connect(regions[1].grpc) as other,
        ):
            await RegionsDrill(way, regions, (stub, other), fleet, scale, report).hold_all(link)
    return report
