"""A whole fleet in one loop: sessions of a real gateway over real workers, while nodes crash, hang, are cut.

Whatever happens to a request, its tokens are those that one engine draws alone, and in the end nobody holds
anything.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest

from shared.engine import Engine, EngineConfig, SamplingParams
from tests.simulation.fleet import Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.support.engine import generate
from tests.support.models import make_tiny_checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]
WORKERS = ["tokenizer-0", "tokenizer-1", "detokenizer-0", "detokenizer-1", "prefill-0", "prefill-1"]
WORKERS += ["decode-0", "decode-1", "speculator-0"]
CALLS = 10
TOKENS = 30
FAULTS = 6
REST_S = 60.0
"""Longer than any lease: what is held after it is held for ever."""
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


def prompt_of(number: int) -> list[int]:
    return [(number * 31 + at * 7) % 200 + 5 for at in range(20 + number * 5)]


async def break_things(fleet: Fleet, random: Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(random.expovariate(1 / 0.3))
        name = random.choice(WORKERS)
        match random.choice(("crash", "pause", "cut")):
            case "crash":
                fleet.crash(name)
                await asyncio.sleep(random.random())
                fleet.start(name)
            case "pause":
                fleet.world.nodes[name].pause()
                await asyncio.sleep(random.expovariate(1 / 0.6))
                fleet.world.nodes[name].resume()
            case _:
                fleet.cut(name)


async def scenario(fleet: Fleet, *, broken: bool) -> list[list[int]]:
    random = Random(f"faults {fleet.world.seed}")
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name, skew_s=random.uniform(-1, 1), drift_ppb=random.randrange(-50_000, 50_000))
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    breaking = asyncio.ensure_future(break_things(fleet, random) if broken else asyncio.sleep(0))
    calls = []
    for number in range(CALLS):
        calls.append(fleet.generate(prompt_of(number), number, TOKENS))
        await asyncio.sleep(0.15)
    answers = [await call for call in calls]
    await breaking
    await asyncio.sleep(REST_S)
    await fleet.are_ready(WORKERS)
    assert await fleet.held(WORKERS) == []
    return [answer.ids for answer in answers]


@cache
def run(seed: int, model: Path, *, broken: bool) -> tuple[list[list[int]], str]:
    with fleet_of(seed, model) as fleet:
        ids = fleet.world.run(scenario(fleet, broken=broken), limit_s=LIMIT_S)
        return ids, fleet.world.trace.hexdigest()


def alone(model: Path) -> list[list[int]]:
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())
    how = {"temperature": 0.8, "max_tokens": TOKENS, "ignore_eos": True}
    return [generate(engine, prompt_of(one), SamplingParams(**how, seed=one)) for one in range(CALLS)]  # type: ignore[arg-type]


def test_a_fleet_answers_as_one_engine_does(model: Path) -> None:
    ids, _ = run(1, model, broken=False)
    assert ids == alone(model)


@pytest.mark.parametrize("seed", range(2, 5))
def test_a_fleet_answers_as_one_engine_does_whatever_breaks(model: Path, seed: int) -> None:
    ids, _ = run(seed, model, broken=True)
    assert ids == alone(model)


def traced(seed: int, model: Path, hash_seed: str) -> str:
    run_it = f"print(run({seed}, Path({str(model)!r}), broken=True))"
    code = f"from pathlib import Path\nfrom tests.simulation.test_fleet import run\n{run_it}"
    path = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'protos/python'}"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_a_broken_fleet_is_the_same_again_whatever_python_hashes_by(model: Path) -> None:
    """Not even by whether something ran in the process before."""
    assert str(run(2, model, broken=True)) == traced(2, model, "1")
