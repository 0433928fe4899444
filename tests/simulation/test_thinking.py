"""A model's thinking in a fleet: closed at its budget or its deadline, and the same whoever is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from tests.simulation.fleet import GATEWAY, Fleet, fleet_of
from tests.support.client import Answer
from tests.support.models import make_tiny_checkpoint

WORKERS = ["tokenizer-0", "detokenizer-0", "prefill-0", "decode-0", "decode-1"]
MARKS = ("<think>", "</think>")
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '<think>\n' }}"
BUDGET, TOKENS = 40, 90
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose last two tokens are the marks around its thinking, which its prompts open."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("thinking") / "tiny")
    spec = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = spec["model"]["vocab"]
    replaced = sorted(vocabulary, key=vocabulary.__getitem__)[-len(MARKS) :]
    spec["model"]["merges"] = spec["model"]["merges"][: -len(MARKS)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for piece, mark in zip(replaced, MARKS, strict=True):
        vocabulary[mark] = vocabulary.pop(piece)
        spec["added_tokens"].append({"id": vocabulary[mark], "content": mark, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return folder


def request(**limits: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="the dog ran")]),
        sampling=pb.Sampling(max_tokens=TOKENS, temperature=0.8, seed=4, ignore_eos=True),
        thinking=pb.Thinking(**limits),
    )


async def answered(fleet: Fleet, message: pb.GenerateRequest, crash_after_s: float | None) -> Answer:
    await fleet.server.start()
    for name in WORKERS:
        fleet.start(name)
    fleet.start_gateway()
    await fleet.are_ready(WORKERS)
    call = fleet.client().finish(GATEWAY, message, name="thinking")
    if crash_after_s is not None:
        await asyncio.sleep(crash_after_s)
        fleet.crash("decode-0")
        fleet.crash("decode-1")
        await asyncio.sleep(0.1)
        for name in ("decode-0", "decode-1"):
            fleet.start(name)
    return await call


def answer_of(
    model: Path, message: pb.GenerateRequest, *, seed: int = 1, crash_after_s: float | None = None
) -> Answer:
    with fleet_of(seed, model) as fleet:
        return fleet.world.run(answered(fleet, message, crash_after_s), limit_s=LIMIT_S)


def closing(model: Path) -> int:
    return int(json.loads((model / "tokenizer.json").read_text())["model"]["vocab"][MARKS[1]])


def test_a_thinking_is_closed_at_its_budget_also_when_every_decode_worker_is_lost(model: Path) -> None:
    plain = answer_of(model, request(max_tokens=BUDGET))
    assert plain.ids.index(closing(model)) == BUDGET + 1  # behind a line break
    assert plain.end is not None
    assert plain.end.usage.reasoning_tokens == BUDGET + 2
    lost = answer_of(model, request(max_tokens=BUDGET), seed=2, crash_after_s=0.1)
    assert lost.end is not None
    assert lost.end.usage.replacements > 0
    assert (lost.ids, lost.text) == (plain.ids, plain.text)


def test_a_thinking_is_closed_at_its_deadline(model: Path) -> None:
    plain = answer_of(model, request())
    early = answer_of(model, request(deadline_ms=150))
    place = early.ids.index(closing(model))
    assert early.ids[: place - 1] == plain.ids[: place - 1]
    assert closing(model) not in plain.ids[: place + 1]
    assert 0 < place < TOKENS


# ---- at another gateway -----------------------------------------------------------------------------

OTHER_GATEWAY = "gateway-1"


@dataclass(slots=True)
class Heard:
    """A stream as its client has it: its token, its tokens, and what was thought and said."""

    token: str = ""
    ids: list[int] = field(default_factory=list)
    thought: str = ""
    said: str = ""
    end: pb.Terminal | None = None

    async def take(self, call: AsyncIterable[pb.GenerateEvent], most: int) -> None:
        """Take events in up to the one that brings token `most`."""
        async for event in call:
            self.token = event.prompt.resume_token or self.token
            self.ids += event.text.token_ids
            self.thought += event.text.reasoning
            self.said += event.text.text
            if event.HasField("end"):
                self.end = event.end
            if len(self.ids) >= most:
                return


async def gone_on_with(fleet: Fleet, message: pb.GenerateRequest, received: int) -> Heard:
    """Leave a gateway that is gone after so many tokens, and go on at another one."""
    await fleet.server.start()
    gateways = [GATEWAY, OTHER_GATEWAY]
    for name in [*WORKERS, *gateways]:
        fleet.start(name)
    await fleet.are_ready(WORKERS)
    heard = Heard()
    client = fleet.client()

    async def ask() -> None:
        await heard.take(client.stub(GATEWAY).Generate(message, timeout=LIMIT_S), received)

    async def resume() -> None:
        resumed = pb.ResumeRequest(token=heard.token, received_tokens=len(heard.ids), request=message)
        await heard.take(client.stub(OTHER_GATEWAY).Resume(resumed, timeout=LIMIT_S), TOKENS + 1)

    await client.start(ask(), "asked")
    if received <= TOKENS:
        fleet.crash(GATEWAY)
        await client.start(resume(), "resumed")
    return heard


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> Heard:
    return heard_of(model, TOKENS + 1)


def heard_of(model: Path, received: int) -> Heard:
    message = request(max_tokens=BUDGET)
    message.resumable = True
    with fleet_of(received, model) as fleet:
        return fleet.world.run(gone_on_with(fleet, message, received), limit_s=LIMIT_S)


@pytest.mark.thorough(but="21")
@pytest.mark.parametrize("received", [BUDGET // 2 + 1, BUDGET + 1, BUDGET + 20])
def test_a_stream_goes_on_at_another_gateway_in_its_thinking_and_behind_it(
    model: Path, undisturbed: Heard, received: int
) -> None:
    heard = heard_of(model, received)
    assert (heard.thought, heard.said) == (undisturbed.thought, undisturbed.said)
    assert heard.ids == undisturbed.ids
    assert heard.end is not None
    assert heard.end.usage.reasoning_tokens == BUDGET + 2
    assert undisturbed.thought
    assert undisturbed.said
