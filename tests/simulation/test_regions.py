"""Two regions of one fleet, 1, 30 and 120 ms apart: requests stay near, leave a region that is gone, and come
home."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.regions.home import HOLD_S
from services.gateway.regions.region_watch import PROBE_S
from shared.engine import Engine, EngineConfig, SamplingParams
from shared.messages import RegionReport
from tests.simulation.bus import Latency
from tests.simulation.fleet import Fleet, any_fleet_of
from tests.simulation.linked_servers import LinkedServers
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.world import World
from tests.support.client import Answer
from tests.support.engine import generate
from tests.support.metric import value
from tests.support.models import make_tiny_checkpoint
from tests.support.wait import until

EU, US = "eu", "us"
REGIONS = (EU, US)
WORKER_ROLES = ("tokenizer", "detokenizer", "prefill", "decode")
ROLES = (*WORKER_ROLES, "gateway")
PLACES = {f"{role}-{number}": region for number, region in enumerate(REGIONS) for role in ROLES}
ROUTES = "penstock_region_routes_total"
TOKENS, CALLS = 40, 3
FAIL_OVER_S = 1.0
REST_S = 20.0
"""Longer than any lease: what is held after it is held for ever."""
LIMIT_S = 600.0


class TwoRegions(Fleet):
    """A whole fleet in each of two regions, `round_trip_s` apart."""

    def __init__(self, world: World, model: Path, round_trip_s: float) -> None:
        super().__init__(world, model, {name: {"region": region} for name, region in PLACES.items()})
        way = Latency(round_trip_s / 2, round_trip_s / 2)
        self.linked = LinkedServers(self.network, Random(f"servers {world.seed}"), PLACES, way)
        self.server = self.linked

    async def begin(self) -> None:
        """Return when both gateways know both regions, and how far the other one is."""
        await self.server.start()
        for name in PLACES:
            self.start(name)
        await self.are_ready(list(PLACES))
        await until(lambda: all(self.known_at(gateway) for gateway in ("gateway-0", "gateway-1")))

    def known_at(self, gateway: str) -> tuple[RegionReport, ...]:
        """Return what a gateway says of other regions once it has measured one."""
        watcher = self._watcher()
        view = None if watcher is None else watcher.fleet.get("gateway", gateway)
        told = () if view is None else view.heartbeat.gateway.regions[1:]
        return tuple(report for report in told if report.round_trip_us)

    def ask(self, number: int, gateway: str = "gateway-0") -> asyncio.Task[Answer]:
        sampling = pb.Sampling(max_tokens=TOKENS, temperature=0.8, seed=number, ignore_eos=True)
        prompt = pb.TokenIds(ids=prompt_of(number))
        message = pb.GenerateRequest(token_ids=prompt, sampling=sampling)
        return self.client().finish(gateway, message, name=f"call-{number}")

    async def ask_all(self, gateway: str = "gateway-0", first: int = 0) -> list[Answer]:
        """Ask one after the other."""
        return [await self.ask(number, gateway) for number in range(first, first + CALLS)]

    async def all_run_at(self, name: str) -> bool:
        """Return whether all calls of a story are at this worker, which answers sooner than it beats."""
        return len({one.request_id for one in await self.held([name])}) == CALLS

    def lose(self, region: str, roles: Iterable[str] = WORKER_ROLES) -> None:
        for role in roles:
            self.crash(f"{role}-{REGIONS.index(region)}")

    def crossings_of(self, answers: Iterable[Answer]) -> int:
        """Count the messages of these requests that have left a region."""
        names = [answer.prompt.request_id.encode() for answer in answers if answer.prompt is not None]
        return sum(name in payload for payload in self.linked.crossed for name in names)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())

    def how(number: int) -> SamplingParams:
        return SamplingParams(temperature=0.8, max_tokens=TOKENS, ignore_eos=True, seed=number)

    return [generate(engine, prompt_of(number), how(number)) for number in range(2 * CALLS)]


def prompt_of(number: int) -> list[int]:
    return [(number * 31 + at * 7) % 200 + 5 for at in range(100 + number)]


def play(model: Path, round_trip_s: float, story: Callable[[TwoRegions], Awaitable[None]]) -> None:
    with any_fleet_of(7, lambda world: TwoRegions(world, model, round_trip_s)) as fleet:

        async def told() -> None:
            await fleet.begin()
            await story(fleet)

        fleet.world.run(told(), limit_s=LIMIT_S)


def ids_of(answers: Iterable[Answer]) -> list[list[int]]:
    return [answer.ids for answer in answers]


def region_of(answer: Answer) -> str:
    assert answer.end is not None
    return answer.end.timeline.region


def total_s(answer: Answer) -> float:
    assert answer.end is not None
    return answer.end.timeline.total_us / 1e6


@pytest.mark.parametrize(
    "round_trip_s",
    [pytest.param(0.001, marks=pytest.mark.thorough), 0.030, pytest.param(0.120, marks=pytest.mark.thorough)],
)
def test_while_a_region_is_in_order_nothing_of_its_requests_leaves_it(
    model: Path, expected: list[list[int]], round_trip_s: float
) -> None:
    async def story(fleet: TwoRegions) -> None:
        for gateway, other, first in (("gateway-0", US, 0), ("gateway-1", EU, CALLS)):
            answers = await fleet.ask_all(gateway, first)
            assert ids_of(answers) == expected[first : first + CALLS]
            assert {region_of(answer) for answer in answers} == {""}
            assert fleet.crossings_of(answers) == 0
            (far,) = fleet.known_at(gateway)
            assert far.region == other
            assert round_trip_s <= far.round_trip_us / 1e6 < round_trip_s + 0.03
            assert far.routes == 0

    play(model, round_trip_s, story)


@pytest.mark.parametrize(
    "round_trip_s",
    [pytest.param(0.001, marks=pytest.mark.thorough), 0.030, pytest.param(0.120, marks=pytest.mark.thorough)],
)
def test_calls_of_a_region_that_is_killed_go_on_in_another_one_within_a_second_and_later_ones_come_home(
    model: Path, expected: list[list[int]], round_trip_s: float
) -> None:
    async def story(fleet: TwoRegions) -> None:
        lost = value(ROUTES, region=US, why="no_instance")
        usual_s = total_s(await fleet.ask(0))
        calls = [fleet.ask(number) for number in range(CALLS)]
        await until(lambda: fleet.all_run_at("decode-0"))
        fleet.lose(EU)
        answers = [await call for call in calls]
        assert ids_of(answers) == expected[:CALLS]
        assert {region_of(answer) for answer in answers} == {US}
        assert max(map(total_s, answers)) < CALLS * usual_s + FAIL_OVER_S + 4 * round_trip_s
        assert value(ROUTES, region=US, why="no_instance") >= lost + CALLS
        began_s = fleet.world.now_s
        assert region_of(await fleet.ask(0)) == US
        assert fleet.world.now_s - began_s < usual_s + 4 * round_trip_s + 0.1
        for role in WORKER_ROLES:
            fleet.start(f"{role}-0")
        await fleet.are_ready([f"{role}-0" for role in WORKER_ROLES])
        assert region_of(await fleet.ask(1)) == US  # it has to last
        await asyncio.sleep(HOLD_S)
        assert region_of(await fleet.ask(2)) == ""
        await asyncio.sleep(REST_S)
        assert await fleet.held(list(PLACES)) == []

    play(model, round_trip_s, story)


@pytest.mark.thorough
def test_regions_that_lose_each_other_serve_on_and_find_each_other_again(
    model: Path, expected: list[list[int]]
) -> None:
    async def story(fleet: TwoRegions) -> None:
        fleet.linked.is_cut = True
        await asyncio.sleep(PROBE_S)
        for gateway in ("gateway-0", "gateway-1"):
            assert ids_of(await fleet.ask_all(gateway)) == expected[:CALLS]
        fleet.linked.is_cut = False
        await asyncio.sleep(PROBE_S)
        fleet.lose(EU)
        answer = await fleet.ask(0)
        assert (answer.ids, region_of(answer)) == (expected[0], US)

    play(model, 0.030, story)


@pytest.mark.thorough
def test_messages_that_are_late_between_two_regions_cost_no_answer(
    model: Path, expected: list[list[int]]
) -> None:
    async def story(fleet: TwoRegions) -> None:
        fleet.lose(EU)
        fleet.linked.way = Latency(0.015, 0.015, late_share=0.05)
        assert ids_of(await fleet.ask_all()) == expected[:CALLS]

    play(model, 0.030, story)
