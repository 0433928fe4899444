"""An actor that owns an engine: what prefill, decode and speculator say of themselves alike."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog

from shared.actor import Ask, BusActor
from shared.bus.heartbeats.repeated_beats import beat_with
from shared.health import Activity
from shared.messages import NO_FETCHES, DecodeReport, FetchReport, Heartbeat, Held, Snapshot, WorkerReport
from shared.process.service import Service
from shared.telemetry import metrics
from shared.telemetry.labelled import labelled
from shared.worker.adapters import WorkerAdapters
from shared.worker.driver import EngineDriver
from shared.worker.events import CONTROL_LIMIT, InstanceLost, Started, Tick
from shared.worker.job_book import WorkerLoad
from shared.worker.outbox import Outbox
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.rate import TokenRate

log = structlog.get_logger()


class EngineActor(BusActor):
    """Subclasses override `worker_load`, `on_message`, `turn`, and what a tick or a loss asks of them."""

    def __init__(
        self,
        service: Service[Any],
        driver: EngineDriver[Any],
        mirror: PrefixMirror,
        adapters: WorkerAdapters | None = None,
    ) -> None:
        super().__init__(service.role, service, control_limit=CONTROL_LIMIT)
        self._service = service
        self._driver = driver
        self._mirror = mirror
        self._adapters = adapters or WorkerAdapters()
        self._rate = TokenRate()
        self._outbox = Outbox(service.bus, service.role)
        self._ages = asyncio.Event()
        """The messages that left something here which ages: it may expire, or is to be sent later."""

    # ---- for subclasses ---------------------------------------------------------------------------

    @abstractmethod
    def worker_load(self) -> WorkerLoad:
        """Asked only while there is an engine."""

    @abstractmethod
    def holds_work(self) -> bool:
        """Return whether a message has left anything here; asked only while there is an engine."""

    @abstractmethod
    def adapters_in_use(self) -> set[str]:
        """Return the engine's names of the adapters that something held here is computed with."""

    async def on_tick(self) -> None:
        """Time has passed; nothing else may have happened. None comes while nothing is held."""

    async def on_instance_lost(self, role: str, instance: str, why: str) -> None:
        """Handle the loss of an instance of the fleet; `why` is suspect, stopped or restarted."""

    async def drained(self) -> None:
        """Returns when nothing is left to do; bounded by the service's drain timeout."""

    # ---- life -------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        await self._driver.load_engine()
        log.info("engine_ready", kv_blocks=self._driver.engine.config.kv_blocks)

    async def on_stop(self) -> None:
        self._service.changed()  # no work for us any more
        await self._driver.close_engine()

    # ---- what it says of itself ---------------------------------------------------------------------

    def activities(self) -> tuple[Activity, ...]:
        return (*super().activities(), self._driver.activity)

    def status(self) -> Heartbeat:
        if self._ended:  # after a crash: the process ends too
            return replace(self._service.heartbeat(), state="draining")
        if not self._driver.loaded:
            return replace(self._service.heartbeat(), state="loading")
        engine, delta = self._driver.engine, self._mirror.drain()
        threads, most = engine.threads_now, engine.config.threads
        labelled(metrics.ENGINE_THREADS, "now").set(threads)
        labelled(metrics.ENGINE_THREADS, "most").set(most)
        load = self.worker_load()
        report = WorkerReport(
            layout=engine.layout.fingerprint(),
            kv_blocks=engine.config.kv_blocks,
            kv_blocks_free=load.kv_blocks_free,
            kv_groups=engine.layout.groups.counts,
            queued_tokens=load.queued_tokens,
            tenant_queues=load.tenant_queues,
            due_tokens=load.due_tokens,
            tokens_per_s=self._rate.tokens_per_s,
            best_tokens_per_s=self._rate.best_tokens_per_s,
            threads=threads,
            most_threads=most,
            backend=engine.backend,
            adapters=self._adapters.reports(),
            prefix_event_id=delta.event_id,
            added=delta.added,
            removed=delta.removed,
            fetch=self.fetch_report(),
            kv_block_bytes=engine.layout.block_bytes,
            kv_blocks_resident=self._driver.snapshot.resident_blocks,
        )
        return beat_with(
            self._service.heartbeat(),
            steps=self._driver.steps,
            context_tokens=engine.max_model_len,
            capacity=load.capacity,
            live=load.live,
            queued=load.queued,
            worker=report,
            decode=self.decode_report(),
        )

    def decode_report(self) -> DecodeReport:
        """Return what a decode worker says beside that; other workers say nothing of it."""
        return DecodeReport()

    def fetch_report(self) -> FetchReport:
        """Return what a prefill worker says of prefixes from others; other workers fetch none."""
        return NO_FETCHES

    def snapshot(self, bucket: int) -> Snapshot:
        return self._mirror.snapshot(bucket)

    def held(self) -> Iterable[Held]:
        for key, blocks in self._driver.snapshot.held.items():
            yield Held(key.rpartition("/")[0], "kv_blocks", blocks, "")

    # ---- what its process tells it ------------------------------------------------------------------

    async def until_work(self) -> None:
        """Return while something is held or waits to be sent: to nothing else does time matter."""
        while not self._is_aging():
            self._ages.clear()
            await self._ages.wait()

    def _is_aging(self) -> bool:
        return self._outbox.waiting > 0 or self.holds_work()

    async def handle(self, item: Any) -> None:
        try:
            await super().handle(item)
        finally:
            if self._is_aging():
                self._ages.set()

    async def on_item(self, item: Any) -> None:
        match item:
            case Ask(item=Started()):
                item.answer()
            case Tick():
                await self.on_tick()
            case InstanceLost(role, instance, why):
                await self.on_instance_lost(role, instance, why)
            case _:
                await super().on_item(item)
