"""A decode worker of a fleet leaves while it decodes: its streams go on at another, whatever breaks
meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shared.engine import Engine, EngineConfig, SamplingParams
from tests.simulation.fleet import Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.support.client import Answer
from tests.support.engine import generate
from tests.support.metric import value
from tests.support.models import make_tiny_checkpoint

DECODES = ["decode-0", "decode-1"]
WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", *DECODES]
CALLS = 4
TOKENS = 120
REST_S = 20.0
"""Longer than any lease: what is held after it is held for ever."""
LIMIT_S = 600.0
PAUSES = "penstock_hand_over_seconds"
PAUSE_S = "0.128"
MEANWHILE_S = 0.01
"""After so long KV is on its way."""
HAND_OVERS = "penstock_hand_overs_total"
Meanwhile = Callable[[Fleet, list[str]], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())
    how = SamplingParams(temperature=0.8, max_tokens=TOKENS, ignore_eos=True)
    return [generate(engine, prompt_of(one), how) for one in range(CALLS)]


def prompt_of(number: int) -> list[int]:
    return [(number * 31 + at * 7) % 200 + 5 for at in range(20 + number * 5)]


async def all_answered(fleet: Fleet, meanwhile: Meanwhile) -> list[Answer]:
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    calls = [fleet.generate(prompt_of(number), 0, TOKENS) for number in range(CALLS)]
    await asyncio.sleep(0.2)
    await meanwhile(fleet, DECODES)
    answers = [await call for call in calls]
    await asyncio.sleep(REST_S)
    assert await fleet.held([name for name in WORKERS if name != DECODES[0]]) == []
    return answers


def answers_of(seed: int, model: Path, meanwhile: Meanwhile) -> list[Answer]:
    with fleet_of(seed, model) as fleet:
        return fleet.world.run(all_answered(fleet, meanwhile), limit_s=LIMIT_S)


def replacements(answers: list[Answer]) -> int:
    return sum(answer.end.usage.replacements for answer in answers if answer.end is not None)


def longer_pauses() -> float:
    """Return how many streams have paused for longer than PAUSE_S, of all fleets of this process."""
    return value(f"{PAUSES}_count") - value(f"{PAUSES}_bucket", le=PAUSE_S)


def drain(fleet: Fleet, name: str) -> None:
    fleet.world.call_in(fleet.world.nodes[name], 0.0, fleet.services[name].begin_drain)


async def drain_one(fleet: Fleet, decodes: list[str]) -> None:
    drain(fleet, decodes[0])


async def lose_the_successor(fleet: Fleet, decodes: list[str]) -> None:
    drain(fleet, decodes[0])
    await asyncio.sleep(MEANWHILE_S)
    fleet.crash(decodes[1])
    await asyncio.sleep(0.1)
    fleet.start(decodes[1])


async def lose_the_leaver(fleet: Fleet, decodes: list[str]) -> None:
    drain(fleet, decodes[0])
    await asyncio.sleep(MEANWHILE_S)
    fleet.crash(decodes[0])


def test_streams_of_a_worker_that_leaves_go_on_elsewhere_and_hardly_pause(
    model: Path, expected: list[list[int]]
) -> None:
    before, longer_before = value(HAND_OVERS, outcome="handed_over"), longer_pauses()
    answers = answers_of(1, model, drain_one)
    assert [answer.ids for answer in answers] == expected
    assert value(HAND_OVERS, outcome="handed_over") > before
    assert replacements(answers) == 0
    assert longer_pauses() == longer_before


@pytest.mark.parametrize("fault", [lose_the_successor, lose_the_leaver])
def test_streams_are_the_same_whoever_is_lost_while_they_are_handed_over(
    model: Path, expected: list[list[int]], fault: Meanwhile
) -> None:
    answers = answers_of(2, model, fault)
    assert [answer.ids for answer in answers] == expected
    assert replacements(answers) > 0
