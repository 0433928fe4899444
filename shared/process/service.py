"""Make a service process: config, logs, metrics, bus, fleet, supervisor, signals.

    async def body(service: Service[TokenizerConfig]) -> None:
        actor = service.supervisor.start(lambda: TokenizerActor(service, ...))
        await serve_actor(service, actor)

    run_service("tokenizer", TokenizerConfig, body)

Exit codes: 0 drained and stopped, 1 could not start, failed or hung, 2 wrong configuration, 130/143 a
second signal, or Ctrl-C while it still loads.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

import structlog
import uvloop

from shared.actor import Supervisor
from shared.bus import Bus
from shared.bus.credentials import Credentials, load_credentials
from shared.bus.fleet import FleetView
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.config.fields import ConfigError, ServiceConfig
from shared.config.settings import load_config
from shared.deadline import SYSTEM_CLOCK, Deadline
from shared.errors import InvalidRequest, PenstockError, Unavailable
from shared.health import Activity, LoopActivity, Stall, Watchdog
from shared.messages import MAX_DRAIN_S, Heartbeat
from shared.process.descriptors import raise_descriptor_limit
from shared.process.file_pages import give_back_program_pages
from shared.process.heap import settle_heap
from shared.process.niceness import step_back
from shared.process.quiet_end import end_quietly
from shared.roles import FOLLOWED_ROLES
from shared.seams.chance import CHANCE
from shared.tasks import start_task
from shared.telemetry import logging as telemetry_logging
from shared.telemetry import metrics
from shared.telemetry.build import VERSION
from shared.telemetry.http import TelemetryServer

log = structlog.get_logger()

C = TypeVar("C", bound=ServiceConfig)

EXIT_FAILED = 1
EXIT_CONFIG = 2
STOP_TIMEOUT_S = 5.0
EXIT_GRACE_S = 15.0
"""Everything must be closed within this after the drain timeout, or the process ends by force."""
LAST_WORDS_S = 2.0
"""A hung process may take so long to say so; its log may hang too."""
STACK_FRAMES = 8
"""The frames of each thread in those last words."""

Status = Callable[[], Heartbeat]
Body = Callable[["Service[C]"], Coroutine[Any, Any, None]]


class Service(Generic[C]):
    """One running instance. Made by `run_service`; a body gets it."""

    def __init__(self, role: str, config: C, instance: str, *, inside: str = "") -> None:
        """`inside`: the role of the service in whose process this one is, "" where it has one of its own."""
        self.role = role
        self.config = config
        self.instance = instance
        self.incarnation = SYSTEM_CLOCK.unix_us()
        """Unix µs of the start: a new one tells everybody that all state is gone."""
        self.state = "loading"
        self.stopping = asyncio.Event()
        self.drain_s = config.drain_timeout_s
        """The longest time for what is there to finish, once a drain begins."""
        self.supervisor = Supervisor()
        self.fleet = FleetView(roles=FOLLOWED_ROLES[role], places=role == "gateway")
        self.watchdog = Watchdog(self._activities, self._end_hung, limit_s=config.watchdog_s)
        self.http = TelemetryServer(role, self._is_ready, lambda: self.watchdog.why, inside=inside)
        self.bus: Bus
        self.credentials: Credentials | None = None
        self._heartbeats: HeartbeatPublisher | None = None
        self._resources = AsyncExitStack()
        self._on_drain: list[Callable[[], Awaitable[None]]] = []
        self._model = self._weights_digest = self._tokenizer_digest = ""
        self._failure: Exception | None = None
        self.running = False
        """Whether the body has come to `run`; before that a drain simply ends it."""
        self.loaded_steps = 0
        """The steps of a long way to readiness: who waits for it sees that it moves."""

    # ---- for bodies -------------------------------------------------------------------------------

    def heartbeat(self) -> Heartbeat:
        """Say who this is, what it serves and whether it moves; the caller adds its load and its report."""
        return Heartbeat(
            self.role,
            self.instance,
            self.incarnation,
            "stalled" if self.state == "ready" and self.watchdog.stalled else self.state,
            host=socket.gethostname(),
            pid=os.getpid(),
            metrics=self.http.address,
            model=self._model,
            weights_digest=self._weights_digest,
            tokenizer_digest=self._tokenizer_digest,
            steps=self.loaded_steps if self.state == "loading" else 0,
            stalled_ms=round(self.watchdog.worst.stalled_s * 1e3),
            region=self.config.region,
            zone=self.config.zone,
        )

    def announce_model(self, name: str, *, tokenizer_digest: str = "", weights_digest: str = "") -> None:
        """Say from the next heartbeat on what is served here, by the name that clients ask for."""
        self._model, self._weights_digest, self._tokenizer_digest = name, weights_digest, tokenizer_digest
        metrics.SERVED_MODEL.clear()
        metrics.SERVED_MODEL.labels(model=name).set(1)

    async def ready(self, status: Status | None = None) -> None:
        """Everything is loaded and served: say so to the fleet, with `status` from now on."""
        assert self._heartbeats is not None
        give_back_program_pages()
        settle_heap()
        self.state = "ready"
        self._heartbeats.status = status or self.heartbeat
        self._loop = LoopActivity(asyncio.get_running_loop())
        self.watchdog.start()  # not before: loading takes as long as it takes
        self._resources.callback(self.watchdog.stop)
        self.changed()
        log.info("ready", metrics=self.http.address, pid=os.getpid())

    def changed(self) -> None:
        """Something that others place by has changed: a heartbeat follows soon."""
        if self._heartbeats is not None:
            self._heartbeats.changed()

    def on_drain(self, callback: Callable[[], Awaitable[None]]) -> None:
        """`callback` returns once the work in hand is finished; bounded by `drain_s`."""
        self._on_drain.append(callback)

    def begin_drain(self, patience_s: int = 0) -> None:
        """Take no new work, finish, exit. SIGTERM is the same without `patience_s`."""
        if not self.stopping.is_set():
            self.drain_s = max(self.config.drain_timeout_s, min(patience_s, MAX_DRAIN_S))
            self.state = "draining"
            log.info("draining")
            self.changed()
            self.stopping.set()

    async def run(self) -> None:
        """Run until the drain begins and its callbacks are done. Raises what failed the service."""
        self.running = True
        await self.supervisor.run_until(self.stopping)
        self.check()
        try:
            async with asyncio.timeout(self.drain_s):
                for callback in reversed(self._on_drain):
                    await callback()
        except TimeoutError:
            log.warning("drain_incomplete", drain_s=self.drain_s)

    def fail(self, error: Exception) -> None:
        """End with this error: what this service needs has failed."""
        self._failure = self._failure or error
        self.stopping.set()

    def check(self) -> None:
        """Raises what has failed it, and Unavailable where the connection to NATS is gone for good."""
        if self._failure is not None:
            raise self._failure
        if self.bus.lost.is_set():
            raise Unavailable(self.bus.why_lost)

    # ---- life, by run_service -----------------------------------------------------------------------

    async def open(self) -> None:
        """Metrics first, so that /live answers while the rest is still to come."""
        loop = asyncio.get_running_loop()
        metrics.TASKS.set_function(lambda: len(asyncio.all_tasks(loop)))  # asked by another thread
        await self.http.start(self.config.metrics_host, self.config.metrics_port)
        self._resources.push_async_callback(self.http.close)
        self.credentials = _credentials(self.config)
        self.bus = await Bus.connect(
            self.config.nats_url,
            name=f"{self.role}/{self.instance}",
            credentials=self.credentials,
            sender=self.instance,
        )
        self._resources.push_async_callback(self.bus.close)
        await self.bus.announce(
            self.role,
            {"instance": self.instance, "metrics": self.http.address},
            VERSION,
        )
        await self.fleet.listen(self.bus)
        self._resources.push_async_callback(self.fleet.stop)
        self._heartbeats = HeartbeatPublisher(self.bus, self.role, self.instance, self.heartbeat, rests=True)
        await self._heartbeats.answer_heartbeat_requests()
        self._resources.push_async_callback(self._heartbeats.stop)
        self._resources.push_async_callback(self._stop_children)
        self.supervisor.start_task("heartbeat", self._heartbeats.run)
        self.supervisor.start_task("fleet", self.fleet.run)
        self.supervisor.start_task("bus-watch", self._watch_bus)

    async def close(self) -> None:
        """Close all in reverse order of `open`; every step is bounded."""
        await self._resources.aclose()

    async def _stop_children(self) -> None:
        await self.supervisor.stop(Deadline.after(STOP_TIMEOUT_S))

    async def _watch_bus(self) -> None:
        await self.bus.lost.wait()
        self.stopping.set()

    def bound_end(self) -> None:
        """End the process by force where the end that begins now does not come in time."""
        _force_exit_after(self.drain_s + EXIT_GRACE_S)

    def _activities(self) -> Iterator[Activity]:
        yield self._loop
        yield from self.supervisor.activities()

    def _end_hung(self, stall: Stall) -> None:
        """Nothing that hangs can be closed in order: the process ends at once and is started again."""
        _force_exit_after(LAST_WORDS_S)
        print(f"penstock {self.role}: {stall}", file=sys.stderr, flush=True)
        log.error("hung", what=stall.name, stalled_s=round(stall.stalled_s, 1), stacks=_stacks())
        os._exit(EXIT_FAILED)

    def _is_ready(self) -> bool:
        return self.state == "ready" and self.bus.connected and self.supervisor.failure is None


def run_service(role: str, config_type: type[C], body: Body[C]) -> None:
    """Run one service until it is told to stop; ends the process with one of the exit codes above."""
    sys.exit(end_quietly(lambda: _run_to_its_end(role, config_type, body)))


def _run_to_its_end(role: str, config_type: type[C], body: Body[C]) -> int:
    try:
        config = load_config(config_type, role)
    except ConfigError as error:
        print(f"penstock {role}: {error}", file=sys.stderr)
        return EXIT_CONFIG
    step_back(role)
    raise_descriptor_limit()
    instance = config.instance or f"{role}-{CHANCE.hex_digits(3)}"
    config = dataclasses.replace(config, instance=instance)
    telemetry_logging.configure(config.log_level, role, instance, log_format=config.log_format)
    if not config.fleet_key:
        log.warning("fleet_key_missing", help="block names can be forged; set PENSTOCK_FLEET_KEY everywhere")
    return uvloop.run(_main(role, config, body))


def _credentials(config: ServiceConfig) -> Credentials | None:
    try:
        return load_credentials(config.nats_credentials)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from error


async def _main(role: str, config: C, body: Body[C]) -> int:
    service = Service(role, config, config.instance)
    _handle_signals(service)
    try:
        if await _is_opened(service):
            await run_body(service, body)
    except ConfigError as error:  # settings that only the model or the machine shows to be wrong
        print(f"penstock {role}: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except (PenstockError, OSError) as error:
        print(f"penstock {role}: {error}", file=sys.stderr)
        log.error("failed", error=str(error))  # noqa: TRY400 - a sentence for the operator, not a bug
        return EXIT_FAILED
    except Exception:
        log.exception("failed")
        return EXIT_FAILED
    finally:
        await service.close()
        log.info("stopped")
    return 0


async def _is_opened(service: Service[C]) -> bool:
    """False when a signal came first: a NATS server that does not answer is waited for a while."""
    opening = start_task(service.open(), name="open")
    told = start_task(service.stopping.wait(), name="told")
    try:
        await asyncio.wait([opening, told], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            await opening
        return opening.done()
    finally:
        opening.cancel()
        told.cancel()
        await asyncio.gather(opening, told, return_exceptions=True)


async def run_body(service: Service[C], body: Body[C]) -> None:
    """The body to its end. While it still loads, a signal or a failed supervisor cancels it; once it is
    in `service.run` that is where both arrive."""
    body_task = start_task(body(service), name="body")
    watch = start_task(service.supervisor.run_until(service.stopping), name="watch")
    try:
        await asyncio.wait([body_task, watch], return_when=asyncio.FIRST_COMPLETED)
        service.bound_end()
        if service.running or body_task.done():
            await body_task
        else:
            await watch
            service.check()
    finally:
        body_task.cancel()
        watch.cancel()
        await asyncio.gather(body_task, watch, return_exceptions=True)


def _handle_signals(service: Service[C]) -> None:
    def on_signal(number: int) -> None:
        if service.stopping.is_set():
            os._exit(128 + number)
        service.begin_drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _force_exit_after(seconds: float) -> None:
    """A model thread that never returns must not keep the process alive."""
    timer = threading.Timer(seconds, os._exit, (EXIT_FAILED,))
    timer.daemon = True
    timer.start()


def _stacks() -> dict[str, list[str]]:
    """Say where each thread is, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, str(ident)): [
            f"{call.filename}:{call.lineno} {call.name}"
            for call in traceback.extract_stack(frame)[-STACK_FRAMES:]
        ]
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - there is no other way to see them
    }
