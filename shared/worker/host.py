"""Host the actor of a model service: engines, ticks, events of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import structlog

from shared.bus.bulk import BulkConnection
from shared.bus.subjects import CANCEL_ALL, inbox
from shared.deadline import Deadline
from shared.engine import Engine
from shared.engine.affinity import stay_on
from shared.engine.loading.checkpoint_digest import checkpoint_digest
from shared.errors import PenstockError, Unavailable
from shared.process.niceness import give_way
from shared.process.service import Service
from shared.seams.threads import THREADS
from shared.telemetry import metrics
from shared.text.model_source import ModelSource
from shared.worker.adapters import WorkerAdapters
from shared.worker.config import EngineServiceConfig
from shared.worker.engine_actor import EngineActor
from shared.worker.events import TICK_S, InstanceLost, Started, Tick
from shared.worker.prefix_mirror import PrefixMirror

log = structlog.get_logger()

START_TIMEOUT_S = 600.0
"""The longest wait until the actor has its engine, which is loaded by then."""


def announce_checkpoint(service: Service[Any], model: ModelSource) -> None:
    """Say what the engine has loaded."""
    service.announce_model(
        model.name,
        tokenizer_digest=model.tokenizer_digest(),
        weights_digest=checkpoint_digest(model.path),
    )


class EngineSource:
    """The one engine of a process, loaded before its actor starts: a model that cannot be loaded stops the
    process with its error.
    """

    def __init__(self, load: Callable[[], Engine]) -> None:
        self._load = load
        self._engine: Engine

    async def preload(self) -> Engine:
        # A thread of its own loads it: loading may tie its thread to the engine's CPUs, which is not undone.
        loader = THREADS.pool(1, "engine-loader", initializer=give_way)
        try:
            self._engine = await asyncio.get_running_loop().run_in_executor(loader, self._load)
        finally:
            loader.shutdown(wait=False)  # a stop while it loads must not wait for the rest
        return self._engine

    def take_engine(self) -> Engine:
        """Hand the engine over to its thread."""
        stay_on(self._engine.config.cpus)  # it was loaded in another thread
        return self._engine


class EngineHost:
    """A loaded engine with its adapters, and the life of the service around the actor that gets it."""

    def __init__(
        self, service: Service[Any], engines: EngineSource, engine: Engine, adapters: WorkerAdapters
    ) -> None:
        self._service = service
        self._engine = engine
        self.adapters = adapters
        self.take_engine = engines.take_engine
        self.mirror = PrefixMirror()

    @classmethod
    async def load(cls, service: Service[Any], model: ModelSource, build: Callable[[], Engine]) -> Self:
        """Load the model, say what it is, then load the adapters that come with it and those of the adapter
        file: with all a worker is ready."""
        config: EngineServiceConfig = service.config
        engines = EngineSource(build)
        engine = await engines.preload()
        announce_checkpoint(service, model)
        adapters = WorkerAdapters(
            Path(config.adapter_file) if config.adapter_file else None,
            model.name,
            shipped=model.adapters,
            most=config.max_adapters,
            changed=service.changed,
        )
        await adapters.follow(engine)
        return cls(service, engines, engine, adapters)

    async def serve(self, make_actor: Callable[[], EngineActor]) -> None:
        """Give the actor its engine, then everything sent to this instance, until the service has drained.

        A fault of the actor or its engine ends the process: nothing is repaired in place, the launcher or
        container starts it again.
        """
        service = self._service
        actor = service.supervisor.start_once(make_actor())
        await keep_informed(service, actor)
        await service.bus.serve(inbox(service.role, service.instance), actor.receive)
        await service.bus.serve(CANCEL_ALL, actor.receive)
        service.on_drain(actor.drained)
        service.supervisor.start_task(
            "adapters", lambda: self.adapters.watch_file(self._engine, actor.adapters_in_use)
        )
        await service.ready(actor.status)
        await service.run()


@asynccontextmanager
async def kv_connection(service: Service[Any]) -> AsyncIterator[BulkConnection]:
    """Connect for KV; at the end the actor, which uses the connection, stops before it is closed."""
    bulk = await BulkConnection.connect(
        service.config.nats_url,
        name=f"{service.role}/{service.instance}/kv",
        credentials=service.credentials,
    )
    try:
        yield bulk
    finally:
        await service.supervisor.stop()
        await bulk.close()


async def keep_informed(service: Service[Any], actor: EngineActor) -> None:
    """Keep the actor informed of time and of lost instances; returns when it has its engine."""

    def on_lost(role: str, instance: str, why: str) -> None:
        _notify(actor, InstanceLost(role, instance, why))

    async def tick() -> None:
        while True:
            await actor.until_work()
            _notify(actor, Tick())
            await asyncio.sleep(TICK_S)

    service.fleet.on_lost(on_lost)
    await actor.ask(Started(), Deadline.after(START_TIMEOUT_S))
    service.supervisor.start_task("tick", tick)


def _notify(actor: EngineActor, item: InstanceLost | Tick) -> None:
    try:
        actor.tell_control(item)
    except Unavailable:
        log.debug("actor_has_ended", item=type(item).__name__)  # between two lives, or while stopping
    except PenstockError as error:
        metrics.DROPPED_MESSAGES.labels(reason=error.code).inc()
        log.warning("actor_not_told", item=type(item).__name__, error=error.message)
