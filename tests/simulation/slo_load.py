"""Play requests with targets on a simulated fleet, as one client hears them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.simulation.slo_asks import SMALL_MODEL, Ask, Heard, Target
from tests.simulation.step_profile import StepProfile
from tests.support.models import make_tiny_checkpoint

CONTEXT_TOKENS = 4096
SEQUENCES = 32
REST_S = 1.0
LIMIT_S = 3600.0
WARM_PROMPTS = (16, 600, 40, 300, 8, 120, 24, 200)


def play(
    folder: Path,
    asks: Sequence[Ask],
    *,
    seed: int = 1,
    prefills: int = 1,
    decodes: int = 1,
    profile: StepProfile = SMALL_MODEL,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Heard]:
    """Send these requests to a fleet of their own, each at its time, and return what came of them."""
    model = folder / "tiny"
    if not model.exists():
        make_tiny_checkpoint(model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT_TOKENS}))
    engine = {"kv_blocks": SEQUENCES * CONTEXT_TOKENS // 32, "max_sequences": SEQUENCES}
    said: dict[str, dict[str, Any]] = {"prefill": dict(engine), "decode": dict(engine), "gateway": {}}
    for role, more in (settings or {}).items():
        said[role] |= more
    with fleet_of(seed, model, said) as fleet:
        fleet.profile = profile
        return fleet.world.run(_heard(fleet, asks, prefills, decodes), limit_s=LIMIT_S)


async def _heard(fleet: Fleet, asks: Sequence[Ask], prefills: int, decodes: int) -> list[Heard]:
    workers = ["tokenizer-0", "detokenizer-0"]
    workers += [f"prefill-{number}" for number in range(prefills)]
    workers += [f"decode-{number}" for number in range(decodes)]
    await fleet.server.start()
    for name in workers:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(workers)
    await asyncio.sleep(REST_S)
    client = fleet.client()
    for number, prompt in enumerate(WARM_PROMPTS * max(prefills, decodes)):  # engines learn what steps cost
        warm = Ask(0.0, prompt, 8, Target("warm"))
        await client.start(_call(fleet, warm, number), f"warm-{number}")
    await asyncio.sleep(REST_S)
    loop = asyncio.get_running_loop()
    began_s, calls = loop.time(), []
    for number, ask in enumerate(asks):
        await asyncio.sleep(max(0.0, began_s + ask.at_s - loop.time()))
        calls.append(client.start(_call(fleet, ask, 1000 + number), f"ask-{number}"))
    heard = [await call for call in calls]
    await asyncio.sleep(REST_S)
    assert await fleet.held(workers) == []
    return heard


async def _call(fleet: Fleet, ask: Ask, number: int) -> Heard:
    loop, random = asyncio.get_running_loop(), Random(number)
    heard, target = Heard(ask, loop.time()), ask.target
    ids = [random.randrange(5, 250) for _ in range(ask.prompt_tokens)]
    message = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(max_tokens=ask.output_tokens, temperature=0.8, seed=number, ignore_eos=True),
        inter_token_deadline_ms=round(1e3 * target.itl_s),
    )
    if target.ttft_s:
        message.ttft_deadline_ms = round(1e3 * target.ttft_s)
    try:
        async for event in fleet.client().stub(GATEWAY).Generate(message):
            if event.WhichOneof("event") == "text" and event.text.token_ids:
                heard.times_s.append(loop.time())
            elif event.WhichOneof("event") == "end":
                heard.outcome = pb.Outcome.Name(event.end.outcome).removeprefix("OUTCOME_").lower()
    except grpc.aio.AioRpcError:
        if not heard.outcome:
            raise
    return heard
