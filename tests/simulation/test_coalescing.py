"""The same request by several clients at once in a world: whoever leaves or dies, each has the same text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.engine import Engine, EngineConfig, SamplingParams
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.simulation.simulated_model import SimulatedModel
from tests.support.client import Answer
from tests.support.engine import generate
from tests.support.metric import total
from tests.support.models import make_tiny_checkpoint

WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0", "decode-1"]
PROMPT = [7 * at % 200 + 5 for at in range(24)]
TOKENS = 80
CALLS = 5
APART_S = 0.02
"""The next client asks so long after the one before: some find no token yet, some find many."""
REST_S = 20.0
LIMIT_S = 600.0
PLACED = "penstock_routing_decisions_total"
COALESCED = "penstock_coalesced_requests_total"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    engine = Engine(EngineConfig(str(model), kv_blocks=64), make_model=SimulatedModel.maker())
    return generate(
        engine, PROMPT, SamplingParams(temperature=0.8, seed=3, max_tokens=TOKENS, ignore_eos=True)
    )


def asked(deadline_ms: int | None = None) -> pb.GenerateRequest:
    sampling = pb.Sampling(max_tokens=TOKENS, temperature=0.8, seed=3, ignore_eos=True)
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT), sampling=sampling, deadline_ms=deadline_ms or 60_000
    )


async def answers(fleet: Fleet, what: str) -> list[Answer]:
    """Return what each client has heard, in the order in which they asked."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    calls: list[asyncio.Task[Answer]] = []
    crashed = ""
    for number in range(CALLS):
        first_expires = what == "expire" and not number
        message = asked(deadline_ms=200 if first_expires else None)
        calls.append(fleet.client(f"client-{number}").generate(GATEWAY, message, name=f"call-{number}"))
        await asyncio.sleep(APART_S)
    if what == "leave":
        calls[0].cancel()
        calls[2].cancel()
    elif what == "crash":
        decodes = ("decode-0", "decode-1")
        (crashed,) = [name for name in decodes if await fleet.held([name])]
        fleet.crash(crashed)
    heard = await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(REST_S)
    assert await fleet.held([name for name in (*WORKERS, GATEWAY) if name != crashed]) == []
    return [answer for answer in heard if isinstance(answer, Answer)]


@pytest.mark.thorough(but="peace-1-5 | crash-2-5")
@pytest.mark.parametrize(
    ("what", "placements", "finished"),
    [("peace", 1, CALLS), ("leave", 1, CALLS - 2), ("crash", 2, CALLS), ("expire", 2, CALLS - 1)],
)
def test_whoever_comes_late_leaves_or_dies_each_caller_has_the_same_text(
    model: Path, expected: list[int], what: str, placements: int, finished: int
) -> None:
    placed, coalesced = total(PLACED), total(COALESCED)
    with fleet_of(4, model) as fleet:
        heard = fleet.world.run(answers(fleet, what), limit_s=LIMIT_S)
    whole = [answer for answer in heard if answer.outcome == "finished"]
    assert [answer.ids for answer in whole] == [expected] * finished
    assert {answer.outcome for answer in heard if answer not in whole} <= {"expired"}
    assert total(PLACED) == placed + placements
    assert total(COALESCED) >= coalesced + CALLS - 1
    assert {answer.ends for answer in heard} == {1}
