"""An agent in a world: with hints nothing is computed twice, and no answer is another one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from shared.engine import Engine, EngineConfig
from tests.simulation.agent_trace import AgentPlan, AgentRecords, expected_answers, run_agent
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.support.models import make_tiny_checkpoint

WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0"]
PLAN = AgentPlan(1, appended=(90, 240, 160), answers=(60, 80, 40), pause_s=1.0, hinted=True)
CALM_AGENTS, CALM_TURNS, CALM_PAUSE_S = 2, 3, 2.0
REST_S = 3.0
LIMIT_S = 600.0
CONTEXT_TOKENS = 4096
LEAST_REUSE = 0.98
ENGINE = {"kv_blocks": 512, "max_sequences": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT_TOKENS
    (folder / "config.json").write_text(json.dumps(config))
    return folder


async def begin(fleet: Fleet) -> None:
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)


async def answers(fleet: Fleet, records: AgentRecords, *plans: AgentPlan) -> list[list[list[int]]]:
    """Return what agents beside each other were answered; in the end nobody holds anything."""
    await begin(fleet)
    said = await asyncio.gather(*(run_agent(fleet, plan, records) for plan in plans))
    await asyncio.sleep(REST_S)
    assert await fleet.held([*WORKERS, GATEWAY]) == []
    return list(said)


@pytest.fixture(scope="module")
def calm(model: Path) -> dict[bool, AgentRecords]:
    """The next turns of agents without hints and with them, where nobody else asks for anything."""
    records = {False: AgentRecords(), True: AgentRecords()}
    for hinted, found in records.items():
        plans = [
            AgentPlan.drawn(seed, CALM_TURNS, CALM_PAUSE_S, hinted=hinted) for seed in range(CALM_AGENTS)
        ]
        with fleet_of(3, model, {"prefill": ENGINE, "decode": ENGINE}) as fleet:
            fleet.world.run(answers(fleet, found, *plans), limit_s=LIMIT_S)
    return records


def test_an_agents_next_turn_computes_what_it_appends_and_answers_as_ever(model: Path) -> None:
    """A prefill worker has not drawn the answers: it has their KV because it was asked for ahead."""
    records = AgentRecords()
    settings = {"prefill": ENGINE, "decode": ENGINE, "gateway": {"local_prefill_tokens": 0}}
    with fleet_of(3, model, settings) as fleet:
        (said,) = fleet.world.run(answers(fleet, records, PLAN), limit_s=LIMIT_S)
    assert records.reuse >= LEAST_REUSE
    alone = Engine(EngineConfig(str(model), kv_blocks=256), make_model=SimulatedModel.maker())
    assert said == expected_answers(alone, PLAN)


async def answers_beside_crashes(fleet: Fleet, records: AgentRecords) -> list[list[int]]:
    """The same where in each pause some nodes are killed and begin again."""
    killed = [[GATEWAY], ["prefill-0", "decode-0"], []]
    await begin(fleet)

    async def kill(turn: int) -> None:
        for name in killed[turn]:
            fleet.crash(name)
            fleet.start(name)
        await asyncio.sleep(REST_S)
        await fleet.are_ready(WORKERS)

    said = await run_agent(fleet, PLAN, records, kill)
    await asyncio.sleep(REST_S)
    assert await fleet.held([*WORKERS, GATEWAY]) == []
    return said


def test_a_session_outlives_its_gateway_and_its_workers_and_loses_what_they_had_computed_alone(
    model: Path,
) -> None:
    records = AgentRecords()
    with fleet_of(3, model, {"prefill": ENGINE, "decode": ENGINE}) as fleet:
        said = fleet.world.run(answers_beside_crashes(fleet, records), limit_s=LIMIT_S)
    alone = Engine(EngineConfig(str(model), kv_blocks=256), make_model=SimulatedModel.maker())
    assert said == expected_answers(alone, PLAN)
    after_gateway, after_workers = records.turns
    assert after_gateway.lost_tokens == 0
    assert after_workers.cached_tokens == 0


def test_hints_bring_first_tokens_sooner_also_where_decode_workers_compute_what_they_know(
    calm: dict[bool, AgentRecords],
) -> None:
    assert calm[True].median_ttft_s < calm[False].median_ttft_s
    assert calm[True].reuse > calm[False].reuse


def test_no_first_token_comes_before_its_prompt_is_computed(calm: dict[bool, AgentRecords]) -> None:
    """Steps that a thread has not come to yet are known to nobody."""
    turns = [turn for records in calm.values() for turn in records.turns]
    assert min(turn.ttft_s - turn.computing_s for turn in turns) > 0.0
