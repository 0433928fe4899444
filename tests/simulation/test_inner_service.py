"""A detokenizer in a gateway's process, whole, on a closed bus in memory: it serves, drains and fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from services.detokenizer import service_body as detokenizer
from services.detokenizer.config import DetokenizerConfig
from shared.bus import Bus, Delivery
from shared.bus.credentials import load_credentials
from shared.bus.permissions import role_user
from shared.bus.subjects import inbox
from shared.config.fields import ConfigError, ServiceConfig
from shared.deadline import Deadline
from shared.errors import Unavailable
from shared.messages import Accepted, Cancel, CancelAck, Lost, Message, Open, Text, Tokens, pack_ids
from shared.process.inner_service import InnerService, inner_service
from shared.process.service import Service
from shared.text.tokenizer import TextTokenizer
from tests.simulation.bus import Latency, MemoryServer, Network, ServerSettings
from tests.simulation.test_fleet_in_memory import file_of
from tests.support.tokenizer_kinds import library_tokenizer
from tests.support.wait import until

GATEWAY, INNER, DECODE = "gateway-0", "detokenizer-gateway0", "decode-0"
USERS = tuple((role_user(name.partition("-")[0], name), f"pass {name}") for name in (GATEWAY, INNER, DECODE))
REQUEST = f"{GATEWAY}.1"
ANSWER_S = 60.0


@dataclass
class Outer:
    """A gateway that does nothing but ask, with what it has heard; its drain waits until `drained`."""

    service: Service[ServiceConfig]
    got: list[Message] = field(default_factory=list)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    inner: InnerService[DetokenizerConfig] | None = None

    async def body(self, service: Service[ServiceConfig]) -> None:
        async with inner_service(service, "detokenizer", DetokenizerConfig, detokenizer.body) as self.inner:
            await service.bus.serve(inbox("gateway", GATEWAY), self.receive)
            service.on_drain(self.finish)
            await service.ready()
            await service.run()

    def receive(self, delivery: Delivery) -> None:
        self.got.append(delivery.message)

    async def finish(self) -> None:
        await self.drained.wait()

    async def ask(self, message: Message, epoch: int = 1) -> Message:
        bus, deadline = self.service.bus, Deadline.after(ANSWER_S)
        envelope = bus.envelope(REQUEST, epoch, deadline, GATEWAY)
        return await bus.ask(inbox("detokenizer", INNER), message, envelope, deadline)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    library_tokenizer("byte_fallback").save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@dataclass
class World:
    outer: Outer
    life: asyncio.Task[None]
    decode: Bus
    network: Network


@pytest.fixture
async def world(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    network = Network(Random(1), Latency(0.0001, 0.002))
    server = MemoryServer(network, Random(1), ServerSettings(users=USERS))
    with network.joined():
        await server.start()
        monkeypatch.setenv("PENSTOCK_NATS_URL", server.url)
        monkeypatch.setenv("PENSTOCK_MODEL", str(model))
        monkeypatch.setenv("PENSTOCK_DETOKENIZER_NATS_CREDENTIALS", file_of(tmp_path, INNER))
        async with gateway(network, server, tmp_path) as outer:
            life = asyncio.create_task(outer.body(outer.service))
            with network.at(DECODE):
                credentials = load_credentials(file_of(tmp_path, DECODE))
                decode = await Bus.connect(server.url, name=DECODE, credentials=credentials)
            await until(lambda: outer.service.state == "ready" or life.done())
            yield World(outer, life, decode, network)
            outer.drained.set()
            outer.service.begin_drain()
            await asyncio.gather(life, return_exceptions=True)
            await decode.close()
        await server.stop()


@asynccontextmanager
async def gateway(network: Network, server: MemoryServer, folder: Path) -> AsyncIterator[Outer]:
    config = ServiceConfig(
        instance=GATEWAY,
        nats_url=server.url,
        nats_credentials=file_of(folder, GATEWAY),
        metrics_host="127.0.0.1",
        metrics_port=0,
    )
    service = Service("gateway", config, GATEWAY)
    with network.at(GATEWAY):
        await service.open()
    yield Outer(service)
    await service.close()


async def test_it_decodes_for_the_gateway_beside_it_and_is_a_whole_instance(
    world: World, model: Path
) -> None:
    outer = world.outer
    assert outer.inner is not None
    ids = TextTokenizer.load(model).encode_text("a text")
    assert await outer.ask(opened()) == Accepted()
    tokens = Tokens((REQUEST,), (1,), (0,), (tuple(ids),), ("length",), ((),), ((),))
    await world.decode.publish(inbox("detokenizer", INNER), tokens)
    await until(lambda: outer.got)
    (text,) = outer.got
    assert isinstance(text, Text)
    assert (text.texts, text.finish) == (("a text",), ("length",))
    assert outer.inner.instance == INNER
    assert outer.inner.bus.is_near(inbox("gateway", GATEWAY))  # whose lease needs no heartbeat
    assert outer.inner.http.address not in ("", outer.service.http.address)
    assert outer.inner.heartbeat().pid == outer.service.heartbeat().pid


async def test_a_drain_of_it_is_the_gateway_s_first_which_it_serves_until_then(world: World) -> None:
    outer = world.outer
    assert outer.inner is not None
    outer.inner.begin_drain()
    await until(lambda: outer.service.state == "draining")
    assert await outer.ask(opened()) == Accepted()
    assert await outer.ask(Cancel("done")) == CancelAck(True, "detokenizing")
    assert outer.inner.state == "ready"
    outer.drained.set()
    await world.life
    assert outer.inner.state == "draining"


async def test_what_fails_it_ends_the_gateway(world: World) -> None:
    assert world.outer.inner is not None
    world.outer.inner.bus.lost.set()
    with pytest.raises(Unavailable, match="for good"):
        await world.life


async def test_what_fails_the_gateway_lets_it_give_all_back_in_order(world: World) -> None:
    outer = world.outer
    assert await outer.ask(opened()) == Accepted()
    outer.service.fail(Unavailable("the gateway is broken"))
    with pytest.raises(Unavailable, match="is broken"):
        await world.life
    (lost,) = outer.got
    assert isinstance(lost, Lost)
    assert "open the request elsewhere" in lost.message


async def test_what_keeps_it_from_being_ready_is_what_the_gateway_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DETOKENIZER_MAX_SESSIONS", "none")
    other = Outer(world.outer.service)
    with pytest.raises(ConfigError, match="MAX_SESSIONS"):
        await other.body(other.service)


def opened() -> Open:
    return Open(GATEWAY, pack_ids([]), pack_ids([]), 0, 0, (), decode=DECODE)


async def test_its_end_sets_no_clock_that_ends_the_process(world: World) -> None:
    """The outer one's end is bounded; a second bound outlives both where the process goes on, as here."""
    before = set(threading.enumerate())
    world.outer.drained.set()
    world.outer.service.begin_drain()
    await world.life
    assert [each for each in set(threading.enumerate()) - before if isinstance(each, threading.Timer)] == []
