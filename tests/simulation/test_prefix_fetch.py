"""A prefill worker of a fleet is given a prompt whose beginning another one has: it fetches that, or computes
it, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.gateway.fleet.known_prefixes import KnownPrefixes
from services.gateway.fleet.routing import Candidate
from shared.blocks.prefix_fetch import MAX_FETCH_S
from shared.engine import Engine, EngineConfig, SamplingParams
from shared.messages import PrefixLender
from tests.simulation.fleet import Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.support.client import Answer
from tests.support.engine import generate
from tests.support.metric import value
from tests.support.models import make_tiny_checkpoint

PREFILLS = ["prefill-0", "prefill-1"]
WORKERS = ["tokenizer-0", "detokenizer-0", "decode-0", *PREFILLS]
BEGINNING = [at * 7 % 200 + 5 for at in range(512)]
LONG_BEGINNING = [at * 11 % 200 + 5 for at in range(1024)]
FIRST, SECOND = [*BEGINNING, 6, 7, 8], [*BEGINNING, *range(9, 40)]
TOKENS = 5
FORGOTTEN_S = 12.0
"""A gateway has forgotten what it sent by then, and goes by what workers say that they have."""
REST_S = 20.0
"""Longer than any lease: what is held after it is held for ever."""
LIMIT_S = 300.0
ON_ITS_WAY_S = 0.012
"""After so long the prefix is on its way."""
BUSY_AFTER_S = 0.05
"""After so long the worker that computes something has said so."""
QUEUED_MS = 350.0
"""The least that it would wait there."""
PAUSE_S = 5.0
COMPUTED_MS = 150.0
"""The least that the prefix takes to compute."""
FETCHES = "penstock_prefix_fetches_total"
Meanwhile = Callable[[Fleet], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 2048}))
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())
    return generate(engine, SECOND, SamplingParams(temperature=0.8, max_tokens=TOKENS, ignore_eos=True))


@pytest.fixture(autouse=True)
def _routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts go to the prefill workers in turn, as where the one with the prefix is too busy."""
    first: list[int] = []

    def cost(known: KnownPrefixes, view: Candidate) -> tuple[float, ...]:
        first[:] = first or [known._tokens]
        return (float((view.heartbeat.instance == PREFILLS[0]) is not (known._tokens == first[0])),)

    monkeypatch.setattr(KnownPrefixes, "cost", cost)


async def nothing(_: Fleet) -> None: ...


async def second_answer(fleet: Fleet, meanwhile: Meanwhile) -> Answer:
    """The answer to the second of two prompts that begin alike; `meanwhile` happens while it is asked for."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    await fleet.generate(FIRST, 0, TOKENS)
    await asyncio.sleep(FORGOTTEN_S)
    call = fleet.generate(SECOND, 0, TOKENS)
    await meanwhile(fleet)
    answer = await call
    await asyncio.sleep(REST_S)
    assert await fleet.held([name for name in WORKERS if name != PREFILLS[0] or meanwhile is nothing]) == []
    return answer


def answered(model: Path, meanwhile: Meanwhile = nothing, *, seed: int = 1, **prefill: object) -> Answer:
    settings: dict[str, dict[str, Any]] = {"prefill": prefill, "gateway": {"local_prefill_tokens": 0}}
    with fleet_of(seed, model, settings) as fleet:
        return fleet.world.run(second_answer(fleet, meanwhile), limit_s=LIMIT_S)


def phases_ms(answer: Answer) -> dict[str, float]:
    assert answer.end is not None
    return {phase.name: phase.duration_us / 1e3 for phase in answer.end.timeline.phases}


def ttft_ms(answer: Answer) -> float:
    assert answer.end is not None
    return float(answer.end.timeline.ttft_us) / 1e3


@pytest.mark.thorough(but="nats")
@pytest.mark.parametrize("transport", ["nats", "shm"])
def test_a_prefix_that_another_worker_has_comes_from_there_and_the_answer_is_the_same(
    model: Path, expected: list[int], transport: str
) -> None:
    before = value(FETCHES, outcome="fetched")
    answer = answered(model, kv_transport=transport)
    assert answer.ids == expected
    assert value(FETCHES, outcome="fetched") == before + 1
    assert phases_ms(answer)["prefill.fetch"] > 0
    assert ttft_ms(answer) < COMPUTED_MS / 3


@pytest.mark.thorough
def test_who_shall_fetch_nothing_computes_the_prefix(model: Path, expected: list[int]) -> None:
    answer = answered(model, prefix_fetches=0)
    assert answer.ids == expected
    assert "prefill.fetch" not in phases_ms(answer)
    assert phases_ms(answer)["prefill.compute"] > COMPUTED_MS


async def answer_beside_a_busy_worker(fleet: Fleet) -> Answer:
    """The answer to a prompt whose beginning lies at a worker that computes another one for long."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    await fleet.generate([*LONG_BEGINNING, 6], 0, 1)
    await asyncio.sleep(FORGOTTEN_S)
    busy = fleet.generate([*LONG_BEGINNING, *range(7, 200), *BEGINNING], 1, 1)
    await asyncio.sleep(BUSY_AFTER_S)
    answer = await fleet.generate([*LONG_BEGINNING, *SECOND[-31:]], 2, TOKENS)
    await busy
    return answer


def test_a_call_whose_prefix_lies_at_a_busy_worker_goes_to_the_idle_one_which_fetches_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # it is routed as calls are
    before = value(FETCHES, outcome="fetched")
    with fleet_of(1, model, {"gateway": {"local_prefill_tokens": 0}}) as fleet:
        answer = fleet.world.run(answer_beside_a_busy_worker(fleet), limit_s=LIMIT_S)
    assert value(FETCHES, outcome="fetched") == before + 1
    assert phases_ms(answer)["prefill.fetch"] > 0
    assert ttft_ms(answer) < QUEUED_MS


async def crash(fleet: Fleet) -> None:
    await asyncio.sleep(ON_ITS_WAY_S)
    fleet.crash(PREFILLS[0])


async def pause(fleet: Fleet) -> None:
    await asyncio.sleep(ON_ITS_WAY_S)
    fleet.world.nodes[PREFILLS[0]].pause()
    fleet.world.call_in(fleet.world.home, PAUSE_S, fleet.world.nodes[PREFILLS[0]].resume)


async def drain(fleet: Fleet) -> None:
    await asyncio.sleep(ON_ITS_WAY_S)
    fleet.world.call_in(fleet.world.nodes[PREFILLS[0]], 0.0, fleet.services[PREFILLS[0]].begin_drain)


@pytest.mark.thorough(but="crash")
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(crash, "expired"), (pause, "expired"), (drain, "fetched")],
    ids=["crash", "pause", "drain"],
)
def test_whatever_becomes_of_the_other_worker_meanwhile_the_answer_is_the_same_and_in_time(
    model: Path, expected: list[int], fault: Meanwhile, outcome: str
) -> None:
    before = value(FETCHES, outcome=outcome)
    answer = answered(model, fault, kv_transport="nats")
    assert answer.ids == expected
    assert value(FETCHES, outcome=outcome) == before + 1
    assert phases_ms(answer)["prefill.fetch"] < 1000 * MAX_FETCH_S


@pytest.mark.thorough
def test_a_worker_that_has_not_all_that_was_said_of_it_sends_nothing_and_the_prompt_is_computed(
    model: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has evicted some of it since."""

    as_lender = KnownPrefixes._as_lender

    def said(known: KnownPrefixes, view: Candidate) -> PrefixLender:
        lender = as_lender(known, view)
        return replace(lender, blocks=lender.blocks + 1)

    monkeypatch.setattr(KnownPrefixes, "_as_lender", said)
    before = value(FETCHES, outcome="overloaded")
    answer = answered(model)
    assert answer.ids == expected
    assert value(FETCHES, outcome="overloaded") == before + 1
    assert phases_ms(answer)["prefill.compute"] > COMPUTED_MS
