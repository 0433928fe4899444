"""Whatever is computed while passages are found, answers are those of a gateway that has nothing computed."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.bus.fleet import FleetView
from tests.support.client import Answer, connect, generate
from tests.support.cross_encoder import save_cross_encoder
from tests.support.other_gateway import OtherGateway, open_nats
from tests.support.stack import Stack, metrics_of
from tests.support.wait import until

pytestmark = pytest.mark.thorough(but="changed")
ANIMALS = ("cat", "dog", "bird", "fish", "horse", "cow", "mouse", "frog")
HISTORY = "Once upon a time there was a little girl who lived near the forest. She had a dog and a cat. " * 4
WAIT_S = 60.0
"""A worker starts again meanwhile, on whatever machine."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """`stack` warms what is likely; `plain` is the address of a gateway of its fleet that warms nothing."""

    stack: Stack
    plain: str

    def counted(self, role: str, sample: str) -> float:
        """Of all instances of the role."""
        lines = [
            line.split() for each in self.stack.instances(role) for line in metrics_of(each).splitlines()
        ]
        return sum(
            float(value) for name, value in (line for line in lines if len(line) == 2) if name == sample
        )

    async def until_told_idle(self) -> None:
        """No worker has anything, and gateways have heard so."""
        await self.stack.until_idle()
        bus, view, since_s = await self.stack.connect("test-fleet"), FleetView(), time.monotonic()
        try:
            await view.start(bus)
            roles = ("prefill", "decode")
            await until(
                lambda: all(
                    found and all(each.last_seen_s > since_s and not each.heartbeat.live for each in found)
                    for found in map(view.instances, roles)
                ),
                timeout_s=WAIT_S,
            )
        finally:
            await view.stop()
            await bus.close()

    @contextmanager
    def retrieval_held(self) -> Iterator[None]:
        """The retriever finds nothing until this ends."""
        (retriever,) = self.stack.instances("retriever")
        os.kill(retriever.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(retriever.pid, signal.SIGCONT)

    @property
    def tokens(self) -> float:
        return sum(self.counted(role, "penstock_warmed_tokens_total") for role in ("prefill", "decode"))

    @property
    def hints(self) -> float:
        return self.counted("gateway", 'penstock_warm_hints_total{result="asked"}')


@pytest.fixture(scope="module", params=["kept", "changed"])
def warmed(
    request: pytest.FixtureRequest, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warmed]:
    """The reranker keeps the order and a prefill worker computes prompts, or it changes the order and the
    decode worker may, too."""
    keeps = request.param == "kept"
    folder = tmp_path_factory.mktemp("warmed")
    docs = folder / "docs"
    docs.mkdir()
    for number, animal in enumerate(ANIMALS):
        (docs / f"{animal}.md").write_text(f"The {animal} likes to play with {number + 2} red balls.")
    reranker = save_cross_encoder(folder / "reranker", keeps_order=keeps)
    fleet_key = secrets.token_hex(32)
    gateway = {"admit_wait_s": str(WAIT_S), **({"local_prefill_tokens": "0"} if keeps else {})}
    environ = {
        "PENSTOCK_FLEET_KEY": fleet_key,
        "PENSTOCK_RETRIEVER_RERANKER": str(reranker),
        "PENSTOCK_GATEWAY_WARM_WHILE_RETRIEVING": "likely",
        **{f"PENSTOCK_GATEWAY_{name.upper()}": value for name, value in gateway.items()},
    }
    models = ("--model", str(model_dir), "--draft", "none", "--speculator", "0")
    with (
        open_nats() as url,
        Stack("--nats-url", url, *models, "--corpus", str(docs), environ=environ) as stack,
        OtherGateway(url, fleet_key, warm_while_retrieving="off", **gateway) as plain,
    ):
        yield Warmed(stack, plain.grpc)


def asking(animal: str, number: int) -> pb.GenerateRequest:
    """Each one has a history of its own, so that nothing of it is known before."""
    message = pb.GenerateRequest()
    message.chat.template_optional = True
    message.chat.messages.add(role="system", content=f"{number}. {HISTORY}")
    message.chat.messages.add(role="user", content=f"What does the {animal} like to play with?")
    message.retrieval.enabled = True
    message.retrieval.k = 2
    message.sampling.CopyFrom(pb.Sampling(temperature=0.9, seed=number, max_tokens=12, ignore_eos=True))
    message.deadline_ms = message.ttft_deadline_ms = round(2000 * WAIT_S)
    return message


async def ask(address: str, message: pb.GenerateRequest) -> Answer:
    async with connect(address) as stub:
        answer = await generate(stub, message, timeout_s=2 * WAIT_S)
    assert answer.outcome == "finished", answer.details
    return answer


def said(answer: Answer) -> tuple[object, ...]:
    assert answer.prompt is not None
    passages = [(passage.text, passage.prompt_place) for passage in answer.prompt.passages]
    return answer.ids, answer.text, answer.finish_reason, passages, answer.prompt.prompt_tokens


async def test_answers_are_the_same_whether_anything_is_warmed_or_not(warmed: Warmed) -> None:
    before = warmed.tokens
    for number, animal in enumerate(ANIMALS):
        addresses = [warmed.stack.grpc, warmed.plain]
        first, other = addresses if number % 2 else reversed(addresses)
        assert said(await ask(first, asking(animal, number))) == said(
            await ask(other, asking(animal, number))
        )
    with warmed.retrieval_held():  # of the others, retrieval may have been over before anything was warmed
        call = asyncio.create_task(ask(warmed.stack.grpc, asking("frog", 50)))
        await until(lambda: warmed.tokens > before, timeout_s=WAIT_S)
    assert said(await call) == said(await ask(warmed.plain, asking("frog", 50)))
    await warmed.stack.until_idle()


@pytest.mark.thorough
async def test_requests_at_once_get_the_answers_that_they_get_alone(warmed: Warmed) -> None:
    messages = [asking(animal, 100 + number) for number, animal in enumerate(ANIMALS)]
    together = await asyncio.gather(*(ask(warmed.stack.grpc, message) for message in messages))
    alone = [await ask(warmed.plain, message) for message in messages]
    assert list(map(said, together)) == list(map(said, alone))
    await warmed.stack.until_idle()


async def test_workers_that_are_killed_while_they_warm_change_nothing(warmed: Warmed) -> None:
    await warmed.until_told_idle()
    asked, victims = warmed.hints, [*warmed.stack.instances("prefill"), *warmed.stack.instances("decode")]
    with warmed.retrieval_held():  # on a fast machine it is over before anything is warmed
        call = asyncio.create_task(ask(warmed.stack.grpc, asking("frog", 200)))
        await until(lambda: warmed.hints > asked, timeout_s=WAIT_S)
        for victim in victims:
            os.kill(victim.pid, signal.SIGKILL)
    answer = await call
    assert said(answer) == said(await ask(warmed.plain, asking("frog", 200)))
    await warmed.stack.until_idle(WAIT_S)


async def test_a_client_that_leaves_while_passages_are_found_leaves_nothing(warmed: Warmed) -> None:
    async with connect(warmed.stack.grpc) as stub:
        for delay_ms in range(0, 24, 2):
            call = stub.Generate(asking("cow", 300 + delay_ms))
            await asyncio.wait([asyncio.ensure_future(call.read())], timeout=delay_ms / 1000)
            call.cancel()
    await warmed.stack.until_idle()


async def test_the_phases_of_the_timeline_still_partition_the_request(warmed: Warmed) -> None:
    answer = await ask(warmed.stack.grpc, asking("bird", 400))
    assert answer.end is not None
    timeline = answer.end.timeline
    at = 0
    for phase in timeline.phases:
        assert phase.start_us == at
        at += phase.duration_us
    assert at == timeline.total_us
    names = [phase.name for phase in timeline.phases]
    assert names.index("retrieve") < names.index("tokenize") < names.index("route")
