"""What clients see over both edges while gateways, a retriever and connections break under a seed.

A call ends once, or its connection does; what came until then is the beginning of the answer that comes when
nothing breaks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import PenstockError
from tests.simulation.corpora import SHARED, index_corpora
from tests.simulation.edges.http_client import ConnectionBroken, HttpAnswer
from tests.simulation.fleet import Fleet, fleet_of
from tests.support.client import Answer, request
from tests.support.models import make_tiny_checkpoint

GATEWAYS = ["gateway-0", "gateway-1"]
WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0", "decode-1", "retriever-0", "retriever-1"]
CALLS = 12
TOKENS = 32
FAULTS = 6
LEAVES_AFTER_S = 0.06
LITTLE_MS = 120
RESTART_S = 0.5
REST_S = 60.0
LIMIT_S = 600.0
QUESTIONS = ("what carries water to a turbine", "who lowers the gate of a dam", "what turns water into light")


@dataclass
class Heard:
    """What one client has heard: `text`, whether it is all of it, and how often it was told of an end."""

    text: str
    finished: bool
    ends: int
    lost: bool
    degraded: str
    why: str

    @classmethod
    def of_grpc(cls, answer: Answer) -> Heard:
        prompt = answer.prompt
        return cls(
            answer.text,
            answer.end is not None and answer.end.outcome == pb.OUTCOME_FINISHED,
            answer.ends,
            answer.status is grpc.StatusCode.UNAVAILABLE and not answer.ends,
            "" if prompt is None else prompt.degraded,
            f"{answer.status} {answer.details}",
        )

    @classmethod
    def of_http(cls, answer: HttpAnswer, *, lost: bool) -> Heard:
        error = answer.error
        events = answer.events
        told = [one for event in events for one in event.get("penstock", {}).get("requests", ())]
        degraded = told[0]["degraded"] if told else "unknown"
        ends = answer.done_marks if events else int(answer.whole)
        return cls(answer.text, bool(answer.finish_reasons), ends, lost, degraded, f"{answer.status} {error}")


def asks_for_passages(number: int) -> bool:
    return number % 2 == 1


def asked(number: int) -> pb.GenerateRequest:
    question = QUESTIONS[number % len(QUESTIONS)]
    message = request(question, max_tokens=TOKENS, seed=number, temperature=0.8, ignore_eos=True)
    if asks_for_passages(number):
        message.retrieval.MergeFrom(pb.Retrieval(enabled=True, corpus=SHARED, k=2))
    return message


def body(number: int) -> dict[str, Any]:
    """The same call as a body of /v1/completions."""
    message = asked(number)
    retrieval = {"retrieval": {"corpus": SHARED, "k": 2} if message.retrieval.enabled else False}
    return {
        "prompt": message.text,
        "max_tokens": TOKENS,
        "seed": number,
        "temperature": 0.8,
        "ignore_eos": True,
        "stream": True,
        "penstock": retrieval,
    }


async def call(fleet: Fleet, number: int, *, patient: bool) -> Heard:
    """Call number n goes over gRPC or HTTP, to one gateway or the other, by turns.

    Of clients that are not patient some hang up, and some have little time.
    """
    client, gateway = fleet.client(f"client-{number % 3}"), GATEWAYS[number // 2 % 2]
    patience_s = LEAVES_AFTER_S if not patient and number % 6 == 5 else None
    deadline_ms = LITTLE_MS if not patient and number % 6 == 2 else None
    so_far = HttpAnswer(events=[{}])

    def keep(answer: HttpAnswer) -> None:
        nonlocal so_far
        so_far = answer

    try:
        async with asyncio.timeout(patience_s):
            if number % 4 < 2:
                message = asked(number)
                if deadline_ms is not None:
                    message.deadline_ms = deadline_ms
                return Heard.of_grpc(await client.generate(gateway, message, name=f"call-{number}"))
            asks = body(number)
            if deadline_ms is not None:
                asks["penstock"]["deadline_ms"] = deadline_ms
            path = "/v1/completions"
            return Heard.of_http(await client.ask(gateway, path, asks, on_event=keep), lost=False)
    except (TimeoutError, ConnectionBroken, OSError):
        return Heard.of_http(so_far, lost=True)


def begin(fleet: Fleet, name: str, **clock: Any) -> None:
    """Start an instance, and start it again as a launcher does where it has to give up."""
    life = fleet.start(name, **clock)
    node = fleet.world.nodes[name]

    def ended(life: asyncio.Task[None]) -> None:
        error = None if life.cancelled() else life.exception()
        if isinstance(error, PenstockError) and fleet.world.nodes[name] is node:
            fleet.crash(name)
            fleet.world.call_in(fleet.world.home, RESTART_S, begin, fleet, name)
        elif error is not None:
            raise error

    life.add_done_callback(ended)


async def break_things(fleet: Fleet, random: Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(random.expovariate(1 / 0.1))
        name = random.choice([*GATEWAYS, *WORKERS, "retriever-0", "retriever-1", "client-0", "client-1"])
        is_client = name.startswith("client")
        match random.choice(("cut",) if is_client else ("crash", "pause", "cut")):
            case "crash":
                fleet.crash(name)
                await asyncio.sleep(random.random())
                begin(fleet, name)
            case "pause":
                fleet.world.nodes[name].pause()
                await asyncio.sleep(random.expovariate(1 / 0.6))
                fleet.world.nodes[name].resume()
            case _:
                fleet.cut(name)


async def scenario(fleet: Fleet, *, broken: bool) -> list[Heard]:
    random = Random(f"faults {fleet.world.seed}")
    await fleet.server.start()
    for name in WORKERS + GATEWAYS:
        begin(fleet, name, skew_s=random.uniform(-1, 1), drift_ppb=random.randrange(-50_000, 50_000))
    await fleet.are_ready(WORKERS + GATEWAYS)
    breaking = asyncio.ensure_future(break_things(fleet, random) if broken else asyncio.sleep(0))
    calls = []
    for number in range(CALLS):
        calls.append(asyncio.ensure_future(call(fleet, number, patient=not broken)))
        await asyncio.sleep(0.06)
    heard = [await one for one in calls]
    await breaking
    await asyncio.sleep(REST_S)
    await fleet.are_ready(WORKERS + GATEWAYS)
    assert await fleet.held(WORKERS + GATEWAYS) == []
    return heard


@dataclass(frozen=True)
class Fixtures:
    model: Path
    corpora: tuple[tuple[str, Any], ...]


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Fixtures:
    folder = tmp_path_factory.mktemp("broken-edges")
    make_tiny_checkpoint(folder / "tiny")
    return Fixtures(folder / "tiny", tuple(index_corpora(folder).items()))


@cache
def run(seed: int, fixtures: Fixtures, *, broken: bool) -> list[Heard]:
    with fleet_of(seed, fixtures.model, {"retriever": dict(fixtures.corpora)}) as fleet:
        return fleet.world.run(scenario(fleet, broken=broken), limit_s=LIMIT_S)


def check(heard: list[Heard], undisturbed: list[Heard]) -> None:
    for number, (one, whole) in enumerate(zip(heard, undisturbed, strict=True)):
        said = f"call {number}: {one}, undisturbed {whole}"
        assert one.ends == (0 if one.lost else 1), said
        if asks_for_passages(number) and one.degraded:  # it is, or the end that would say so has not come
            continue
        assert whole.text.startswith(one.text), said
        assert not one.finished or one.text == whole.text, said


def test_calls_over_both_edges_finish_once_each(fixtures: Fixtures) -> None:
    heard = run(1, fixtures, broken=False)
    assert all(one.finished and one.ends == 1 and one.text and not one.degraded for one in heard)


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("seed", [2, 53])
def test_a_call_ends_once_whatever_breaks_and_nothing_of_it_is_wrong(fixtures: Fixtures, seed: int) -> None:
    check(run(seed, fixtures, broken=True), run(1, fixtures, broken=False))
