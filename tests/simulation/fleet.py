"""A whole fleet in a world: services as their programs run them, but for what would leave the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.decode import __main__ as decode
from services.decode.config import DecodeConfig
from services.detokenizer import __main__ as detokenizer
from services.detokenizer.config import DetokenizerConfig
from services.gateway import gateway as gateway_module
from services.gateway.config import GatewayConfig
from services.gateway.gateway import Gateway
from services.gateway.request.choices import Choices
from services.gateway.session.call_sessions import CallSessions
from services.gateway.session.ingress import Ingress
from services.prefill import __main__ as prefill
from services.prefill.config import PrefillConfig
from services.speculator import __main__ as speculator
from services.speculator.config import SpeculatorConfig
from services.tokenizer import __main__ as tokenizer
from services.tokenizer.config import TokenizerConfig
from shared.blocks.block_hash import BlockHasher
from shared.bus.subjects import inbox
from shared.config.fields import ServiceConfig
from shared.deadline import Deadline
from shared.engine import Engine
from shared.errors import PenstockError
from shared.messages import AuditReport, AuditRequest, Held
from shared.process.service import Service
from shared.worker.config import EngineServiceConfig
from tests.simulation.bus import Latency, MemoryServer
from tests.simulation.bus.loop_clock import nats_in_loop_time
from tests.simulation.node_network import NodeNetwork
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.step_profile import USUAL
from tests.simulation.world import World
from tests.support.wait import until

LATENCY = Latency(0.0001, 0.002)
ENGINE = {"kv_blocks": 256, "max_sequences": 8}
WORKERS: dict[str, tuple[ModuleType, type[ServiceConfig], dict[str, Any]]] = {
    "tokenizer": (tokenizer, TokenizerConfig, {}),
    "detokenizer": (detokenizer, DetokenizerConfig, {}),
    "prefill": (prefill, PrefillConfig, ENGINE),
    "decode": (decode, DecodeConfig, {**ENGINE, "kv_transport": "nats"}),
    "speculator": (speculator, SpeculatorConfig, ENGINE),
}
GATEWAY = "gateway-0"


class NodeService(Service[Any]):
    """A service whose metrics nobody reads, and whose watchdog would be a real thread."""

    def __init__(self, config: ServiceConfig, name: str) -> None:
        super().__init__(name.rpartition("-")[0], config, name)
        self.http.start = self.http.close = _nothing  # type: ignore[method-assign, assignment]
        self.watchdog.start = lambda: None  # type: ignore[method-assign]


async def _nothing(*_: object) -> None: ...


class NoEdge:
    """A gRPC edge that nobody calls: gRPC's core has threads and sockets of its own."""

    def __init__(self, *_: object) -> None:
        self.address = ""

    def can_serve(self) -> bool:
        return True

    async def watch_fleet(self) -> None:
        """There is nobody to tell."""


class Answer:
    """What the client of one call has got."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.end: pb.Terminal | None = None

    async def write_prompt(self, prompt: pb.PromptInfo) -> None: ...
    async def write_prompt_logprobs(self, told: pb.PromptLogprobs) -> None: ...

    async def write_text(self, event: pb.GenerateEvent) -> None:
        self.ids += event.text.token_ids
        self.text += event.text.text

    async def write_end(self, end: pb.Terminal) -> None:
        self.end = end


class Fleet:
    def __init__(self, world: World, model: Path) -> None:
        self.world = world
        self.network = NodeNetwork(world, LATENCY)
        self.server = MemoryServer(self.network, Random(f"server {world.seed}"))
        self._model = str(model)
        self._gateway: Service[Any]
        self._ingress: Ingress

    def build_engine(
        self,
        config: EngineServiceConfig,
        model_dir: Path,
        _model_name: str,
        pool_buffer: Callable[[int], memoryview] | None = None,
        **_: object,
    ) -> Engine:
        """Stand in for `shared.worker.engine_builder.build_engine`."""
        return Engine(
            replace(config.engine_config(model_dir), threads=1),
            pool_buffer,
            hasher=BlockHasher.of(config.fleet_key),
            make_model=SimulatedModel.maker(USUAL, self.world.spend_us),
        )

    # ---- its nodes --------------------------------------------------------------------------------

    def start(self, name: str, *, skew_s: float = 0.0, drift_ppb: int = 0) -> None:
        """Begin a life of a worker."""
        module, config_type, settings = WORKERS[name.rpartition("-")[0]]
        config = config_type(instance=name, nats_url=self.server.url, model=self._model, **settings)
        self._begin(NodeService, config, name, module.body, skew_s, drift_ppb)

    def start_gateway(self) -> None:
        config = GatewayConfig(instance=GATEWAY, nats_url=self.server.url)
        self._begin(NodeService, config, GATEWAY, self._run_gateway, 0.0, 0)

    def _begin(
        self,
        make: Callable[[ServiceConfig, str], Service[Any]],
        config: ServiceConfig,
        name: str,
        body: Callable[[Service[Any]], Awaitable[None]],
        skew_s: float,
        drift_ppb: int,
    ) -> None:
        async def live() -> None:
            with self.network.at(name):
                service = make(config, name)
                try:
                    await service.open()
                    await body(service)
                finally:
                    await service.close()

        node = self.world.add_node(name, skew_s=skew_s, drift_ppb=drift_ppb)
        self.world.start(node, live(), name)

    async def _run_gateway(self, service: Service[Any]) -> None:
        """What `services/gateway/__main__.py` runs, without the edges."""
        gateway = Gateway.build(
            service.instance,
            service.config,
            service.bus,
            service.fleet,
            incarnation=service.incarnation,
            heartbeat=service.heartbeat,
            changed=service.changed,
            begin_drain=service.begin_drain,
        )
        await service.bus.serve(inbox("gateway", service.instance), gateway.registry.receive)
        for name, watch in gateway.watchers(service.changed).items():
            service.supervisor.start_task(name, watch)
        self._ingress = Ingress(gateway.registry, gateway.key_gate, service.config)
        await service.ready(gateway.registry.status)
        self._gateway = service
        await service.run()

    def crash(self, name: str) -> None:
        """Kill a node: its connections are reset, as a kernel does with those of a process that is gone."""
        self.world.nodes[name].crash()
        self.cut(name)

    def cut(self, name: str) -> None:
        for cable in self.network.cables(name):
            cable.cut()

    # ---- asked of it ------------------------------------------------------------------------------

    async def are_ready(self, names: list[str]) -> None:
        def ready() -> bool:
            views = self._gateway.fleet.all() if hasattr(self, "_gateway") else ()
            return {*names} <= {v.heartbeat.instance for v in views if v.heartbeat.state == "ready"}

        await until(ready)

    def generate(self, prompt: list[int], seed: int, max_tokens: int) -> asyncio.Task[Answer]:
        """Ask the gateway, in its node, as an edge does. The task raises what the call ended with."""
        sampling = pb.Sampling(max_tokens=max_tokens, temperature=0.8, seed=seed, ignore_eos=True)
        message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=sampling)

        async def call() -> Answer:
            calls = await CallSessions.open(self._ingress, self._ingress.identify([]), Choices.of(message))
            answer = Answer()
            error: PenstockError | None = await calls.relay_all([answer])
            calls.end_call()
            if error is not None:
                raise error
            return answer

        return self.world.start(self.world.nodes[GATEWAY], call(), f"call-{seed}")

    async def held(self, names: list[str]) -> list[Held]:
        """What these workers hold for requests, as they say."""
        return [one for name in names for one in await self._audit(name)]

    async def _audit(self, name: str) -> tuple[Held, ...]:
        bus = self._gateway.bus
        deadline = Deadline.after(5.0)
        address = inbox(name.rpartition("-")[0], name)
        report = await bus.ask(address, AuditRequest(), bus.envelope(deadline=deadline), deadline)
        assert isinstance(report, AuditReport)
        return report.held


@contextmanager
def fleet_of(seed: int, model: Path) -> Iterator[Fleet]:
    """A world with a fleet, none of which has begun."""
    with pytest.MonkeyPatch.context() as patch, World(seed) as world, nats_in_loop_time():
        fleet = Fleet(world, model)
        patch.setattr(gateway_module, "EdgeServer", NoEdge)
        for module in (prefill, decode, speculator):
            patch.setattr(module, "build_engine", fleet.build_engine)
        yield fleet
