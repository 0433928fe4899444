"""Scripted services on a real bus, for tests of the gateway: they answer as the real ones would."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import grpc
import grpc.aio

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from services.gateway.asks.text_calls import TextCalls
from services.gateway.config import GatewayConfig
from services.gateway.context import SessionContext
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.gateway import Gateway
from services.gateway.grpc import wide_server
from services.gateway.grpc.edge_server import EdgeServer
from services.gateway.http.server import HttpServer
from services.gateway.keys.key_gate import KeyGate
from services.gateway.session.session_registry import SessionRegistry
from shared.bus import Bus, Delivery
from shared.bus.fleet import FleetView
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.degradation import DegradationLevel
from shared.errors import PenstockError
from shared.messages import (
    Accepted,
    Cancel,
    CancelAck,
    Envelope,
    Failure,
    Heartbeat,
    Lost,
    Mark,
    Message,
    Open,
    Prefill,
    Reserve,
    Text,
    Tokenize,
    Tokenized,
    pack_hashes,
    pack_ids,
    unpack_ids,
)
from shared.sampling.parameters import TokenLogprob
from shared.tasks import cancel_until_done
from tests.support.block_hashes import hashes_of
from tests.support.heartbeats import make_heartbeat
from tests.support.wait import until

MODEL = "test-model"
GATEWAY = "gateway-t"
Answer = Message | PenstockError | None
"""The answer of a peer; None: it stays silent."""


def heartbeat(role: str, instance: str, **fields: object) -> Heartbeat:
    """Return the heartbeat of an instance of MODEL with room for all that tests ask."""
    room = {"model": MODEL, "capacity": 8, "kv_blocks": 1000, "kv_blocks_free": 1000}
    return make_heartbeat(role, instance, **{**room, **fields})


def tokenized(message: Tokenize) -> Tokenized:
    """One token per character."""
    if message.token_ids is not None:
        ids = unpack_ids(message.token_ids)
    else:
        ids = [ord(c) for c in message.text or "".join(turn.content for turn in message.chat)]
    return Tokenized(
        pack_ids(ids),
        pack_hashes(hashes_of(ids, message.layout, message.tenant, message.adapter)),
        passage_places=tuple(range(1, len(message.passages) + 1)),
    )


def default_answer(message: Message) -> Answer:
    match message:
        case Tokenize():
            return tokenized(message)
        case Open() | Reserve() | Prefill():
            return Accepted(cached_tokens=3)
        case Cancel():
            return CancelAck(True, "test")
        case _:
            return None


@dataclass(slots=True)
class Peer:
    """One instance. `answers` may be replaced by a test; `got` is all it was sent."""

    role: str
    instance: str
    bus: Bus
    beats: HeartbeatPublisher
    fields: dict[str, object] = field(default_factory=dict)
    """The fields of its heartbeats; `say` changes them."""
    answers: Callable[[Message], Answer] = default_answer
    got: list[tuple[Envelope, Message]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    on_message: Callable[[Delivery], None] | None = None
    """Takes the place of `receive` where a test needs more than an answer."""

    def deliver(self, delivery: Delivery) -> None:
        (self.on_message or self.receive)(delivery)

    def receive(self, delivery: Delivery) -> None:
        self.got.append((delivery.envelope, delivery.message))
        answer = self.answers(delivery.message)
        if isinstance(answer, PenstockError):
            answer = Failure.of(answer)
        if answer is not None and delivery.envelope.reply:
            task = asyncio.ensure_future(self.bus.reply(delivery.envelope, answer))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def of(self, kind: type[Message]) -> list[tuple[Envelope, Message]]:
        return [(envelope, message) for envelope, message in self.got if isinstance(message, kind)]

    def say(self, **fields: object) -> None:
        """From the next heartbeat on."""
        self.fields.update(fields)
        self.beats.changed()

    async def stop(self) -> None:
        await self.beats.stop()


@dataclass(slots=True)
class Fleet:
    """The scripted services, and what they broadcast or heard."""

    bus: Bus
    peers: dict[str, Peer] = field(default_factory=dict)
    broadcasts: list[Envelope] = field(default_factory=list)

    async def add(self, role: str, number: int = 0, **fields: object) -> Peer:
        instance = f"{role}-{number}"
        beats = HeartbeatPublisher(self.bus, role, instance, lambda: heartbeat(role, instance, **fields))
        peer = Peer(role, instance, self.bus, beats, fields)
        await self.bus.serve(inbox(role, instance), peer.deliver)
        beats.start()
        self.peers[instance] = peer
        return peer

    def __getitem__(self, instance: str) -> Peer:
        return self.peers[instance]

    async def text(
        self,
        request_id: str,
        position: int,
        text: str,
        *,
        ids: tuple[int, ...] | None = None,
        epoch: int = 1,
        finish: str = "",
        marks: tuple[Mark, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        """One row to the gateway; ids are the characters unless given."""
        row = ids if ids is not None else tuple(ord(c) for c in text)
        await self.bus.publish(
            inbox("gateway", GATEWAY),
            Text((request_id,), (epoch,), (position,), (row,), (text,), (finish,), (logprobs,), (marks,)),
        )

    async def lost(self, request_id: str, epoch: int, code: str = "gap") -> None:
        await self.bus.publish(
            inbox("gateway", GATEWAY),
            Lost(code, "it cannot go on", "detokenizer"),
            self.bus.envelope(request_id, epoch),
        )

    async def placed(self, epoch: int = 1, prefill: str = "prefill-0") -> tuple[Envelope, Prefill]:
        """The Prefill of `epoch`, once prefill has it and decode and detokenizer have theirs."""

        def has(instance: str, kind: type[Message], request_id: str) -> bool:
            return any(e.request_id == request_id and e.epoch == epoch for e, _ in self[instance].of(kind))

        def asked() -> tuple[Envelope, Prefill] | None:
            for envelope, message in self[prefill].of(Prefill):
                assert isinstance(message, Prefill)
                if (
                    envelope.epoch == epoch
                    and has(message.decode, Reserve, envelope.request_id)
                    and has(message.detokenizer, Open, envelope.request_id)
                ):
                    return envelope, message
            return None

        found = await until(asked)
        assert isinstance(found, tuple)
        return found

    async def routed_locally(self, epoch: int = 1) -> tuple[Envelope, Reserve]:
        """The Reserve of `epoch`, once a decode worker has it and is to compute the prompt, and a detokenizer
        has its part."""

        def asked() -> tuple[Envelope, Reserve] | None:
            for peer in self.peers.values():
                for envelope, message in peer.of(Reserve):
                    assert isinstance(message, Reserve)
                    opened = self[message.detokenizer].of(Open)
                    if envelope.epoch == epoch and any(
                        (e.request_id, e.epoch) == (envelope.request_id, epoch) for e, _ in opened
                    ):
                        assert message.prefill == ""
                        return envelope, message
            return None

        found = await until(asked)
        assert isinstance(found, tuple)
        return found

    def cancels(self) -> dict[str, list[tuple[int, str]]]:
        """What each instance was told to stop: (epoch, reason)."""
        return {
            instance: [(e.epoch, m.reason) for e, m in peer.of(Cancel) if isinstance(m, Cancel)]
            for instance, peer in self.peers.items()
            if peer.of(Cancel)
        }


@asynccontextmanager
async def fleet(url: str, *roles: str) -> AsyncIterator[Fleet]:
    """One instance of each role; default: all that a plain request needs."""
    bus = await Bus.connect(url, name="peers")
    result = Fleet(bus)
    await bus.serve(CANCEL_ALL, lambda delivery: result.broadcasts.append(delivery.envelope))
    for role in roles or ("tokenizer", "prefill", "decode", "detokenizer"):
        await result.add(role)
    try:
        yield result
    finally:
        for peer in result.peers.values():
            await peer.stop()
        await bus.close()


@dataclass(slots=True)
class Running:
    """A gateway in this process, with its real edge."""

    stub: rpc.InferenceStub
    channel: grpc.aio.Channel
    registry: SessionRegistry
    server: EdgeServer
    fleet: FleetView
    key_gate: KeyGate
    http: HttpServer
    text_calls: TextCalls
    context: SessionContext
    drain: Callable[[], Coroutine[object, object, None]]

    def degrade(self, level: DegradationLevel) -> None:
        """Put what is left out of MODEL at this level, from where it follows the pressure."""
        self.context.degradation.ladder(ModelIdentity(MODEL)).level = level

    async def knows(self, role: str, count: int) -> None:
        await until(lambda: len(self.fleet.instances(role)) == count)


def gateway(url: str, **options: object) -> AbstractAsyncContextManager[Running]:
    """A gateway in this process; `options` are its settings."""
    return gateway_named(url, GATEWAY, SYSTEM_CLOCK, options)


@asynccontextmanager
async def gateway_named(
    url: str, instance: str, clock: Clock, options: Mapping[str, object], incarnation: int = 7
) -> AsyncIterator[Running]:
    """The same with a name of its own; the limits of keys go by `clock`."""
    fields = {
        "http_port": 0,
        "local_prefill_tokens": 0,
        "grpc_server": os.environ.get("PENSTOCK_GATEWAY_GRPC_SERVER", "native"),
        **options,
    }  # scripted prefill workers are to be asked
    config = GatewayConfig(**fields)  # type: ignore[arg-type]  # the options are fields of the class
    bus, view = await Bus.connect(url, name=instance, sender=instance), FleetView(places=True)
    await view.start(bus)
    built = Gateway.build(
        instance,
        config,
        bus,
        view,
        incarnation=incarnation,
        heartbeat=partial(heartbeat, "gateway", instance),
        changed=lambda: None,
        begin_drain=lambda _: None,
        clock=clock,
    )
    await built.start()
    watchers = [asyncio.create_task(watch()) for watch in built.watchers(lambda: None).values()]
    with wide_server.events_drained(asyncio.get_running_loop()):
        channel = grpc.aio.insecure_channel(built.grpc.address)
    try:
        stub = rpc.InferenceStub(channel)
        yield Running(
            *(stub, channel, built.registry, built.grpc, view, built.key_gate, built.http, built.text_calls),
            built.context,
            built.drain,
        )
    finally:
        await channel.close(None)
        await cancel_until_done(*watchers)
        await built.stop()
        await view.stop()
        await bus.close()


def ask(text: str = "hello", **sampling: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, sampling=pb.Sampling(**sampling))  # type: ignore[arg-type]  # its fields
