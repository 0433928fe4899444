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
REST_S = 3.0
LIMIT_S = 600.0
CONTEXT_TOKENS = 4096
LEAST_REUSE = 0.98


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT_TOKENS
    (folder / "config.json").write_text(json.dumps(config))
    return folder


async def answers(fleet: Fleet, records: AgentRecords) -> list[list[int]]:
    """Return what an agent was answered; in the end nobody holds anything."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    said = await run_agent(fleet, PLAN, records)
    await asyncio.sleep(REST_S)
    assert await fleet.held([*WORKERS, GATEWAY]) == []
    return said


def test_an_agents_next_turn_computes_what_it_appends_and_answers_as_ever(model: Path) -> None:
    """A prefill worker has not drawn the answers: it has their KV because it was asked for ahead."""
    records, engine = AgentRecords(), {"kv_blocks": 256, "max_sequences": 8}
    settings = {"prefill": engine, "decode": engine, "gateway": {"local_prefill_tokens": 0}}
    with fleet_of(3, model, settings) as fleet:
        said = fleet.world.run(answers(fleet, records), limit_s=LIMIT_S)
    assert records.reuse >= LEAST_REUSE
    alone = Engine(EngineConfig(str(model), kv_blocks=256), make_model=SimulatedModel.maker())
    assert said == expected_answers(alone, PLAN)
