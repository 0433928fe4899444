"""A pattern of text ends an answer at the same character whoever is lost on the way, and frees what it
held."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.support.client import Answer
from tests.support.models import make_tiny_checkpoint

WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0"]
LOST = ["detokenizer-0", "decode-0"]
TOKENS = 90
BEGUN = 5
"""The tokens that have come when the workers are lost."""
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("stopping") / "tiny")


def request(*patterns: str) -> pb.GenerateRequest:
    sampling = pb.Sampling(max_tokens=TOKENS, temperature=0.8, seed=4, ignore_eos=True, stop_regex=patterns)
    return pb.GenerateRequest(text="the dog ran", sampling=sampling)


async def ended_by_a_pattern(fleet: Fleet) -> tuple[str, str, Answer]:
    """Return the whole text, a pattern that a part of it behind its middle matches, and what that ends."""
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    whole = (await fleet.client().finish(GATEWAY, request(), name="whole")).text
    at = 2 * len(whole) // 3
    pattern = f"(?s){re.escape(whole[at : at + 3])}.{{2,9}}?{re.escape(whole[at + 6 : at + 9])}"
    client, answer, has_begun = fleet.client(), Answer(), asyncio.Event()

    async def ask() -> None:
        async for event in client.stub(GATEWAY).Generate(request(pattern), timeout=LIMIT_S):
            answer.add(event, 0.0)
            if len(answer.ids) >= BEGUN:
                has_begun.set()

    call = client.start(ask(), "ended")
    await has_begun.wait()
    for name in LOST:
        fleet.crash(name)
    await asyncio.sleep(0.1)
    for name in LOST:
        fleet.start(name)
    await call
    await asyncio.sleep(1.0)
    assert await fleet.held(WORKERS) == []
    return whole, pattern, answer


def test_the_answer_ends_before_the_first_match_also_when_its_workers_are_lost(model: Path) -> None:
    with fleet_of(3, model) as fleet:
        whole, pattern, answer = fleet.world.run(ended_by_a_pattern(fleet), limit_s=LIMIT_S)
    found = re.search(pattern, whole)
    assert found is not None
    assert answer.text == whole[: found.start()]
    assert (answer.finish_reason, len(answer.ids) < TOKENS) == ("stop", True)
    assert answer.end is not None
    assert answer.end.usage.replacements > 0
