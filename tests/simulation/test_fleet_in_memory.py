"""Whole services, as their programs run them, on one bus in memory in one loop, while that bus breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from services.detokenizer import service_body as detokenizer
from services.detokenizer.config import DetokenizerConfig
from services.tokenizer import __main__ as tokenizer
from services.tokenizer.config import TokenizerConfig
from shared.bus import Bus
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.fleet import FleetView
from shared.bus.permissions import role_user
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import NoListener, Unavailable
from shared.messages import Envelope, Tokenize, Tokenized, unpack_ids
from shared.process.service import Service
from shared.text.tokenizer import TextTokenizer
from tests.simulation.bus import Faults, Latency, MemoryServer, Network, ServerSettings
from tests.simulation.bus.faults import Pace
from tests.support.tokenizer_kinds import library_tokenizer
from tests.support.wait import until

GATEWAY, TOKENIZER, DETOKENIZER = "gateway-0", "tokenizer-0", "detokenizer-0"
NAMES = (GATEWAY, TOKENIZER, DETOKENIZER)
USERS = tuple((role_user(name.rpartition("-")[0], name), f"pass {name}") for name in NAMES)
ANSWER_S = 60.0
"""Far longer than all faults take together."""
ASKS = 60
PACE = Pace(mean_s=0.05, longest_s=0.1)
FAULTY_S = 1.0


@dataclass
class Fleet:
    """A gateway's connection and view, beside services that run whole."""

    network: Network
    server: MemoryServer
    bus: Bus
    view: FleetView

    async def ask(self, text: str) -> Tokenized:
        answer = await self.bus.ask(
            inbox("tokenizer", TOKENIZER), Tokenize(text), Envelope(text), Deadline.after(ANSWER_S)
        )
        assert isinstance(answer, Tokenized)
        return answer

    async def ask_until_heard(self, text: str) -> Tokenized:
        """Ask again where nobody listens: a session would ask somebody else."""
        while True:
            try:
                return await self.ask(text)
            except NoListener:
                await asyncio.sleep(0.01)

    def is_ready(self, role: str, instance: str) -> bool:
        seen = self.view.get(role, instance)
        return seen is not None and seen.heartbeat.state == "ready"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    library_tokenizer("byte_fallback").save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def file_of(folder: Path, user: str) -> str:
    file = folder / f"{user}.toml"
    Credentials(user, f"pass {user}").write(file)
    return str(file)


@asynccontextmanager
async def running(network: Network, service: Service[Any], body: Any) -> AsyncIterator[None]:
    """A service from its start to the end of its drain, at a place of its own."""
    with network.at(service.instance):
        await service.open()
        task = asyncio.create_task(body(service))
    try:
        yield
        service.begin_drain()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await service.close()


@pytest.fixture
async def fleet(model: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    network = Network(Random(1), Latency(0.0001, 0.002))
    server = MemoryServer(network, Random(1), ServerSettings(users=USERS))
    with network.joined():
        await server.start()
        async with AsyncExitStack() as stack:
            for body, config, name in (
                (tokenizer.body, TokenizerConfig, TOKENIZER),
                (detokenizer.body, DetokenizerConfig, DETOKENIZER),
            ):
                settings = config(
                    nats_url=server.url,
                    nats_credentials=file_of(tmp_path, name),
                    model=str(model),
                    metrics_host="127.0.0.1",
                    metrics_port=0,
                )
                service: Service[Any] = Service(name.rpartition("-")[0], settings, name)
                await stack.enter_async_context(running(network, service, body))
            with network.at(GATEWAY):
                credentials = load_credentials(file_of(tmp_path, GATEWAY))
                bus = await Bus.connect(server.url, name=f"gateway/{GATEWAY}", credentials=credentials)
            stack.push_async_callback(bus.close)
            view = FleetView(roles=("tokenizer", "detokenizer"))
            await view.listen(bus)
            stack.push_async_callback(view.stop)
            fleet = Fleet(network, server, bus, view)
            await until(lambda: fleet.is_ready("tokenizer", TOKENIZER))
            await until(lambda: fleet.is_ready("detokenizer", DETOKENIZER))
            yield fleet
        await server.stop()


async def test_services_are_found_and_asked_over_a_closed_bus_in_memory(fleet: Fleet, model: Path) -> None:
    text = "a prompt"
    answer = await fleet.ask(text)
    assert list(unpack_ids(answer.token_ids)) == list(TextTokenizer.load(model).encode_text(text))
    with pytest.raises(Unavailable):
        await fleet.bus.serve(inbox("tokenizer", TOKENIZER), print)
    for place in (TOKENIZER, DETOKENIZER, GATEWAY):
        assert len(fleet.network.cables(place)) == 1


async def test_every_ask_is_answered_whatever_breaks(fleet: Fleet, model: Path) -> None:
    faults = Faults(fleet.network, fleet.server, Random(7), PACE)
    breaking = asyncio.create_task(faults.run(FAULTY_S))
    asks: dict[str, asyncio.Task[Tokenized]] = {}
    for number in range(ASKS):
        text = f"prompt {number}"
        asks[text] = asyncio.create_task(fleet.ask_until_heard(text))
        await asyncio.sleep(FAULTY_S / ASKS)
    answers = await asyncio.gather(*asks.values())
    assert await breaking > 0
    ids = TextTokenizer.load(model)
    for text, answer in zip(asks, answers, strict=True):
        assert list(unpack_ids(answer.token_ids)) == ids.encode_text(text)
    await until(lambda: fleet.is_ready("tokenizer", TOKENIZER) and fleet.is_ready("detokenizer", DETOKENIZER))
