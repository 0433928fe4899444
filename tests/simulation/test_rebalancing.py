"""A decode worker that runs out of KV blocks hands streams over to another one, instead of computing them
anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from shared.engine import Engine, EngineConfig, SamplingParams
from tests.simulation import fleet as fleet_module
from tests.simulation.fleet import Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.step_profile import StepProfile
from tests.simulation.test_hand_over import drain, prompt_of, replacements
from tests.support.client import Answer
from tests.support.engine import generate
from tests.support.metric import total, value
from tests.support.models import make_tiny_checkpoint
from tests.support.wait import until

FIRST = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0"]
SLOW = StepProfile(5_000.0, 10_000.0, 10_000.0)
"""A row takes 20 ms, so that a second worker is there before many tokens are."""
SMALL = {"decode-0": {"kv_blocks": 48}}
"""Room for four streams to begin with, and not for what they grow to."""
HAND_OVERS = "penstock_hand_overs_total"
PREEMPTIONS = "penstock_preemptions_total"
CALLS = 4
LIMIT_S = 600.0
Afterwards = Callable[[Fleet, asyncio.Task[None], list[asyncio.Task[Answer]]], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "USUAL", SLOW)


def undisturbed(model: Path, lengths: list[int]) -> list[list[int]]:
    engine = Engine(EngineConfig(str(model), kv_blocks=256), make_model=SimulatedModel.maker())
    return [
        generate(engine, prompt_of(one), SamplingParams(temperature=0.8, max_tokens=tokens, ignore_eos=True))
        for one, tokens in enumerate(lengths)
    ]


async def skewed(fleet: Fleet, lengths: list[int], afterwards: Afterwards) -> list[Answer]:
    """All streams begin at one worker; then another one is there."""
    await fleet.server.start()
    for name in FIRST:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(FIRST)
    calls = [fleet.generate(prompt_of(number), 0, tokens) for number, tokens in enumerate(lengths)]
    await until(lambda: fleet.live_at("decode", "decode-0") == len(calls))
    await afterwards(fleet, fleet.start("decode-1"), calls)
    answers = [await call for call in calls]
    await asyncio.sleep(20.0)
    assert await fleet.held(FIRST) == []
    return answers


async def leave_alone(*_: object) -> None: ...


def answers_of(
    model: Path,
    lengths: list[int],
    afterwards: Afterwards = leave_alone,
    settings: Mapping[str, dict[str, Any]] = MappingProxyType(SMALL),
) -> list[Answer]:
    with fleet_of(3, model, dict(settings)) as fleet:
        return fleet.world.run(skewed(fleet, lengths, afterwards), limit_s=LIMIT_S)


@pytest.mark.thorough
def test_streams_leave_a_worker_that_runs_out_of_blocks_before_any_has_to_give_way(model: Path) -> None:
    lengths = [240] * CALLS
    moved, preempted = value(HAND_OVERS, outcome="handed_over"), total(PREEMPTIONS)
    answers = answers_of(model, lengths)
    assert [answer.ids for answer in answers] == undisturbed(model, lengths)
    assert value(HAND_OVERS, outcome="handed_over") > moved
    assert total(PREEMPTIONS) == preempted
    assert replacements(answers) == 0


def test_a_stream_leaves_a_worker_with_many_for_an_idle_one_and_then_each_keeps_its_own(model: Path) -> None:
    lengths = [120] * CALLS
    moved = value(HAND_OVERS, outcome="handed_over")
    answers = answers_of(model, lengths, settings={})
    assert [answer.ids for answer in answers] == undisturbed(model, lengths)
    assert value(HAND_OVERS, outcome="handed_over") == moved + 1
    assert replacements(answers) == 0


async def go_back(fleet: Fleet, life: asyncio.Task[None], calls: list[asyncio.Task[Answer]]) -> None:
    """Once there is room again at the first worker, the second one drains."""
    await asyncio.wait(calls[1:])
    drain(fleet, "decode-1")
    await life


@pytest.mark.thorough
def test_a_stream_goes_back_to_a_worker_that_it_has_left_under_the_same_epoch(model: Path) -> None:
    lengths = [600, *[220] * (CALLS - 1)]
    moved = value(HAND_OVERS, outcome="handed_over")
    answers = answers_of(model, lengths, go_back)
    assert [answer.ids for answer in answers] == undisturbed(model, lengths)
    assert value(HAND_OVERS, outcome="handed_over") >= moved + 2
    assert replacements(answers) == 0
