"""A whole fleet in a world: services as their programs run them, but for what would leave the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch

from protos.penstock.v1 import inference_pb2 as pb
from services.decode import __main__ as decode
from services.decode import driver as decode_driver
from services.decode.config import DecodeConfig
from services.detokenizer import service_body as detokenizer
from services.detokenizer.config import DetokenizerConfig
from services.gateway import __main__ as gateway
from services.gateway.config import GatewayConfig
from services.gateway.grpc import edge_server
from services.gateway.grpc.idle_connections import IdleConnections
from services.prefill import __main__ as prefill
from services.prefill.config import PrefillConfig
from services.retriever import __main__ as retriever
from services.retriever.config import RetrieverConfig
from services.speculator import __main__ as speculator
from services.speculator.config import SpeculatorConfig
from services.tokenizer import __main__ as tokenizer
from services.tokenizer.config import TokenizerConfig
from shared import accepting
from shared.blocks.block_hash import BlockHasher
from shared.bus.subjects import inbox
from shared.config.fields import ServiceConfig
from shared.deadline import Deadline
from shared.engine import Engine
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.engine.memory import disk_tier, kv_content
from shared.engine.sampling import sampler
from shared.kv.receiving.receiver import KvReceiver
from shared.messages import AuditReport, AuditRequest, Heartbeat, Held
from shared.process import service as service_module
from shared.process.service import Service
from shared.retrieval.encoders.embedder import Embedder
from shared.worker import grammar_compiler, host
from shared.worker.config import EngineServiceConfig
from tests.simulation.bus import Latency, MemoryServer
from tests.simulation.bus.loop_clock import nats_in_loop_time
from tests.simulation.client_node import GRPC_PORT, HTTP_PORT, ClientNode
from tests.simulation.edges.grpc_server import MemoryGrpcServer
from tests.simulation.edges.memory_sockets import MemorySockets
from tests.simulation.node import NodeState
from tests.simulation.node_network import NodeNetwork
from tests.simulation.simulated_embedder import SimulatedEmbedder
from tests.simulation.simulated_grammars import SimulatedMasks, SimulatedTrials
from tests.simulation.simulated_model import SimulatedModel
from tests.simulation.step_profile import USUAL
from tests.simulation.world import World
from tests.support.client import Answer
from tests.support.wait import until

LATENCY = Latency(0.0001, 0.002)
ENGINE = {"kv_blocks": 256, "max_sequences": 8}
WORKERS: dict[str, tuple[ModuleType, type[ServiceConfig], dict[str, Any]]] = {
    "tokenizer": (tokenizer, TokenizerConfig, {}),
    "detokenizer": (detokenizer, DetokenizerConfig, {}),
    "prefill": (prefill, PrefillConfig, {**ENGINE, "kv_transport": "nats"}),
    "decode": (decode, DecodeConfig, {**ENGINE, "kv_transport": "nats"}),
    "speculator": (speculator, SpeculatorConfig, ENGINE),
    "retriever": (retriever, RetrieverConfig, {"index_wait_s": 0.0}),
    "gateway": (gateway, GatewayConfig, {}),
}
"""The program of each role, its configuration, and what that says in a simulation."""
STEPS_OF_A_JOB = 1
"""The steps that a decode worker takes in one job of its thread: a job is done at one moment, so that what
comes while its steps run would wait for the end of them all."""
NEEDS_MODEL = {"tokenizer", "detokenizer", "prefill", "decode", "speculator"}
GATEWAY = "gateway-0"
CLIENT = "client-0"


class NodeService(Service[Any]):
    """A service on a host of its own, whose metrics nobody reads, and whose watchdog would be a real
    thread."""

    def __init__(self, config: ServiceConfig, name: str) -> None:
        super().__init__(name.rpartition("-")[0], config, name)
        self.http.start = self.http.close = _nothing  # type: ignore[method-assign, assignment]
        self.watchdog.start = lambda: None  # type: ignore[method-assign]

    def heartbeat(self) -> Heartbeat:
        return replace(super().heartbeat(), host=self.instance)


async def _nothing(*_: object) -> None: ...


class Fleet:
    """`settings` of roles are laid over what their configuration says by itself."""

    def __init__(self, world: World, model: Path, settings: dict[str, dict[str, Any]] | None = None) -> None:
        self.world = world
        self.network = NodeNetwork(world, LATENCY)
        self.sockets = MemorySockets(self.network)
        self.server = MemoryServer(self.network, Random(f"server {world.seed}"))
        self.services: dict[str, Service[Any]] = {}
        """The last life of each node, from when it has begun."""
        self.steps_ahead = STEPS_OF_A_JOB
        """The most steps that a decode worker takes before its loop has heard of the first. What a job does
        is there at once in a world, so that tokens of so many steps come together."""
        self.profile = USUAL
        """The time that steps of its engines take."""
        self._model = str(model)
        self._settings = settings or {}
        self._clients: dict[str, ClientNode] = {}

    def build_engine(
        self,
        config: EngineServiceConfig,
        model_dir: Path,
        model_name: str,
        pool_buffer: Callable[[int], memoryview] | None = None,
        **named: object,
    ) -> Engine:
        """Stand in for `shared.worker.engine_builder.build_engine`."""
        del model_name, named
        return Engine(
            replace(config.engine_config(model_dir), threads=1),
            pool_buffer,
            hasher=BlockHasher.of(config.fleet_key),
            make_model=SimulatedModel.maker(self.profile, self.world.spend_us),
        )

    def kv_receiver(self, *args: Any, **named: Any) -> KvReceiver:
        """Stand in for the `KvReceiver` that a decode worker makes: it is one."""
        return KvReceiver(*args, **named)

    def load_embedder(self, **_: object) -> Embedder:
        """Stand in for `Embedder.load`."""
        return SimulatedEmbedder(self.world.spend_us).as_embedder()

    def temporary_file(self, **how: Any) -> Any:
        """Stand in for the `TemporaryFile` of KV on disk."""
        return TemporaryFile(**how)

    def grammar_trials(self, module: str) -> SimulatedTrials:
        """Stand in for the `LimitedJobs` that tries grammars."""
        return SimulatedTrials(module, self.world.spend_us, lambda: False)

    def grpc_server(self, options: Any, interceptors: Any) -> MemoryGrpcServer:
        """Stand in for `services.gateway.grpc.wide_server.wide_server`."""
        return MemoryGrpcServer(self.network, options, interceptors)

    async def watch_connections(self, _port: int) -> None:
        """Stand in for `IdleConnections.watch`: a connection in memory ends with its one call."""

    # ---- its nodes --------------------------------------------------------------------------------

    def start(self, name: str, *, skew_s: float = 0.0, drift_ppb: int = 0) -> asyncio.Task[None]:
        """Begin a life of an instance; it ends with the task, which does not where the node crashes."""
        self.services.pop(name, None)  # that of its life before
        role = name.rpartition("-")[0]
        module, config_type, settings = WORKERS[role]
        said = {**settings, **self._settings.get(role, {}), **self._settings.get(name, {})}
        if role in NEEDS_MODEL:
            said["model"] = self._model
        elif role == "gateway":
            said |= {"grpc_host": name, "grpc_port": GRPC_PORT, "http_host": name, "http_port": HTTP_PORT}
            said["grpc_server"] = "grpcio"  # which `grpc_server` stands in for
        config = config_type(instance=name, nats_url=self.server.url, **said)

        async def live() -> None:
            with self.network.at(name):
                service = self.services[name] = NodeService(config, name)
                try:
                    await service.open()
                    await module.body(service)
                finally:
                    await service.close()

        node = self.world.add_node(name, skew_s=skew_s, drift_ppb=drift_ppb)
        return self.world.start(node, live(), name)

    def start_gateway(self) -> None:
        self.start(GATEWAY)

    def crash(self, name: str) -> None:
        """Kill a node: its connections are reset, as a kernel does with those of a process that is gone."""
        self.world.nodes[name].crash()
        self.network.close_process(name)

    def cut(self, name: str) -> None:
        for cable in self.network.cables(name):
            cable.cut()

    # ---- asked of it ------------------------------------------------------------------------------

    def client(self, name: str = CLIENT) -> ClientNode:
        """Return the client of this name, which is a node too."""
        if name not in self._clients:
            self._clients[name] = ClientNode(self.network, self.world.add_node(name))
        return self._clients[name]

    async def are_ready(self, names: list[str]) -> None:
        def ready() -> bool:
            watcher = self._watcher()
            views = watcher.fleet.all() if watcher is not None else ()
            return {*names} <= {v.heartbeat.instance for v in views if v.heartbeat.state == "ready"}

        await until(ready)

    def live_at(self, role: str, name: str) -> int:
        """Return how many requests an instance has, as it has told a gateway."""
        watcher = self._watcher()
        view = None if watcher is None else watcher.fleet.get(role, name)
        return 0 if view is None else view.heartbeat.live

    def generate(self, prompt: list[int], seed: int, max_tokens: int) -> asyncio.Task[Answer]:
        """Ask a gateway over gRPC. The task raises CallFailed where the call does not finish."""
        sampling = pb.Sampling(max_tokens=max_tokens, temperature=0.8, seed=seed, ignore_eos=True)
        message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=sampling)
        return self.client().finish(GATEWAY, message, name=f"call-{seed}")

    async def held(self, names: list[str]) -> list[Held]:
        """Return what these instances hold for requests, as they say."""
        return [one for name in names for one in await self._audit(name)]

    def _watcher(self) -> Service[Any] | None:
        """Return a gateway that lives, of which the fleet can be asked."""
        for name, service in self.services.items():
            living = self.world.nodes[name].state is NodeState.RUNNING
            if service.role == "gateway" and living and service.state == "ready":
                return service
        return None

    async def _audit(self, name: str) -> tuple[Held, ...]:
        watcher = self._watcher()
        assert watcher is not None, "no gateway lives"
        bus, deadline = watcher.bus, Deadline.after(5.0)
        address = inbox(name.rpartition("-")[0], name)
        report = await bus.ask(address, AuditRequest(), bus.envelope(deadline=deadline), deadline)
        assert isinstance(report, AuditReport)
        return report.held


_digest_once = cache(checkpoint_digest)
"""Files of a model stay as they are, and each worker of each world would read them."""

FleetType = TypeVar("FleetType", bound=Fleet)


@contextmanager
def fleet_of(seed: int, model: Path, settings: dict[str, dict[str, Any]] | None = None) -> Iterator[Fleet]:
    """A world with a fleet, none of which has begun."""
    with any_fleet_of(seed, lambda world: Fleet(world, model, settings)) as fleet:
        yield fleet


@contextmanager
def any_fleet_of(seed: int, make: Callable[[World], FleetType]) -> Iterator[FleetType]:
    """The same for a fleet of one's own."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, World(seed) as world, nats_in_loop_time():
        fleet = make(world)
        patch.setattr(edge_server, "wide_server", fleet.grpc_server)
        patch.setattr(IdleConnections, "watch", fleet.watch_connections)
        patch.setattr(accepting, "listening_socket", fleet.sockets.listen)
        patch.setattr(Embedder, "load", fleet.load_embedder)
        patch.setattr(grammar_compiler, "LimitedJobs", fleet.grammar_trials)
        patch.setattr(sampler, "MaskThreads", SimulatedMasks)
        patch.setattr(disk_tier, "TemporaryFile", fleet.temporary_file)
        for of_the_process in ("settle_heap", "give_back_program_pages"):  # which is that of all nodes
            patch.setattr(service_module, of_the_process, lambda: None)
        patch.setattr(decode, "KvReceiver", fleet.kv_receiver)
        patch.setattr(host, "checkpoint_digest", _digest_once)
        patch.setattr(kv_content, "checkpoint_digest", _digest_once)
        patch.setattr(decode_driver, "MAX_UNTAKEN_REPORTS", fleet.steps_ahead)
        for module in (prefill, decode, speculator):
            patch.setattr(module, "build_engine", fleet.build_engine)
        yield fleet
    torch.set_num_threads(threads)
