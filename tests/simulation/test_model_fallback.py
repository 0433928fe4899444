"""The only workers of the model that a virtual name chose die before the first token: another one answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.engine import Engine, EngineConfig, SamplingParams
from tests.simulation.client_node import CallFailed
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.support.client import Answer
from tests.support.engine import generate
from tests.support.models import make_tiny_checkpoint
from tests.support.wait import until

ROLES = ("tokenizer", "detokenizer", "prefill", "decode")
NAMES = ("small", "large")
WORKERS = [f"{role}-{number}" for number in range(len(NAMES)) for role in ROLES]
PROMPT = [at % 200 + 5 for at in range(400)]
TOKENS = 12
REST_S = 20.0
"""Longer than any lease: what is held after it is held for ever."""
RULES = """
[auto]
fallback = ["large"]

[[auto.rules]]
to = "small"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


def asked(**fields: object) -> pb.GenerateRequest:
    sampling = pb.Sampling(max_tokens=TOKENS, temperature=0.8, seed=3, ignore_eos=True)
    prompt = pb.TokenIds(ids=PROMPT)
    return pb.GenerateRequest(model="auto", token_ids=prompt, sampling=sampling, **fields)  # type: ignore[arg-type]


async def answered(fleet: Fleet, message: pb.GenerateRequest) -> Answer:
    """The answer to it, while all that serves the small model dies as soon as a worker has the prompt."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    call = fleet.client().finish(GATEWAY, message)
    await until(lambda: fleet.held(["prefill-0"]))
    fleet.crash("prefill-0")
    fleet.crash("decode-0")
    try:
        return await call
    finally:
        await asyncio.sleep(REST_S)
        assert await fleet.held([name for name in WORKERS if name not in ("prefill-0", "decode-0")]) == []


def run(model: Path, tmp_path: Path, message: pb.GenerateRequest) -> Answer:
    file = tmp_path / "models.toml"
    file.write_text(RULES)
    settings: dict[str, dict[str, Any]] = {
        f"{role}-{number}": {"served_name": name} for number, name in enumerate(NAMES) for role in ROLES
    }
    settings["gateway"] = {"virtual_models": str(file), "local_prefill_tokens": 0}
    with fleet_of(5, model, settings) as fleet:
        return fleet.world.run(answered(fleet, message), limit_s=300.0)


def test_a_crash_before_the_first_token_falls_back_and_the_answer_is_the_other_model_s(
    model: Path, tmp_path: Path
) -> None:
    answer = run(model, tmp_path, asked())
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())
    how = SamplingParams(temperature=0.8, max_tokens=TOKENS, ignore_eos=True, seed=3)
    assert answer.prompt is not None
    assert answer.prompt.model == "large"
    assert answer.prompt.model_choice.why == "auto is large by rule 1; small was lost before its first token"
    assert answer.ids == generate(engine, PROMPT, how)
    assert answer.ends == 1


def test_a_request_that_allows_no_fallback_ends_with_its_model(model: Path, tmp_path: Path) -> None:
    message = asked(fallback=pb.Fallback(allowed=False))
    with pytest.raises(CallFailed) as ended:
        run(model, tmp_path, message)
    assert ended.value.answer.outcome == "failed"
    assert ended.value.answer.ids == []
