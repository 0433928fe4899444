"""Run a service in the process of another one, where the two say much to each other.

    async with inner_service(service, "detokenizer", DetokenizerConfig, detokenizer_body) as inner:
        ...  # the outer one serves

The inner one is a whole instance: it has its name, its connection to the bus, its heartbeats, mailbox,
watchdog and page of metrics, and others use it as any of its role. What it and the outer one say to each
other goes through no socket (`shared.bus.near`). The two begin and end together: a drain of either is
one of both, the outer one first, and what fails either ends the process.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, TypeVar

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars

from shared.bus.near.near_inboxes import NearInboxes
from shared.config.fields import ServiceConfig
from shared.config.settings import load_config
from shared.errors import InternalError
from shared.process.service import Body, Service, Status, run_body
from shared.roles import inner_instance
from shared.tasks import cancel_until_done, start_task

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 8.0
"""The longest time in which an inner service closes all that it has, once its process ends."""

C = TypeVar("C", bound=ServiceConfig)


class InnerService(Service[C]):
    """The service in the process of `outer`, which it is near to."""

    def __init__(self, role: str, config: C, outer: Service[Any], near: NearInboxes) -> None:
        super().__init__(role, config, config.instance, inside=outer.role)
        self._outer = outer
        self._outer_context = copy_context()
        self._near = near
        self._is_ready_once = asyncio.Event()

    def begin_drain(self, patience_s: int = 0) -> None:
        """Let both drain: the outer one's requests may need this one to their end."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._outer.begin_drain, patience_s, context=self._outer_context)

    def bound_end(self) -> None:
        """Leave that to the outer one, which ends with this one and is bounded."""

    async def open(self) -> None:
        await super().open()
        self.bus.join(self._near, self.role)

    async def ready(self, status: Status | None = None) -> None:
        await super().ready(status)
        self._is_ready_once.set()

    async def live(self, body: Body[C]) -> None:
        """Run from the first connection to the end; log lines that begin here say whose they are."""
        bind_contextvars(**self._identity)
        try:
            await self.open()
            await run_body(self, body)
        finally:
            await self.close()
            log.info("stopped")

    @property
    def _identity(self) -> dict[str, str]:
        """Return what its log lines say of it."""
        return {"role": self.role, "instance": self.instance}

    async def until_ready(self, life: asyncio.Task[None]) -> None:
        """Raises what has ended it before."""
        ready = start_task(self._is_ready_once.wait(), name="inner-ready")
        try:
            await asyncio.wait([ready, life], return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
        finally:
            await cancel_until_done(ready)

    async def finish(self, life: asyncio.Task[None]) -> None:
        """Drain, now that the outer one has, and return at the end."""
        with bound_contextvars(**self._identity):
            super().begin_drain()
        await asyncio.wait([life])


@asynccontextmanager
async def inner_service(
    outer: Service[Any], role: str, config_type: type[C], body: Body[C]
) -> AsyncIterator[InnerService[C]]:
    """Have a service of `role` in the process of `outer`, ready on entry, whose end is that of `outer`.

    Enter before `outer` serves anything. Raises ConfigError, and what keeps the service from its readiness.
    """
    near = NearInboxes()
    inner = InnerService(role, _config_inside(outer, role, config_type), outer, near)
    outer.bus.join(near, outer.role)
    life = start_task(inner.live(body), name=inner.instance)
    try:
        await inner.until_ready(life)
        life.add_done_callback(lambda ended: _note_end(outer, inner, ended))
        outer.on_drain(lambda: inner.finish(life))
        yield inner
    finally:
        life.cancel()  # once: what it holds is given back in order
        await asyncio.wait([life], timeout=CLOSE_TIMEOUT_S)
        await cancel_until_done(life)


def _config_inside(outer: Service[Any], role: str, config_type: type[C]) -> C:
    """Return the settings of the inner service, which is named by the outer one; a port that is said for both
    is the outer one's."""
    config = load_config(config_type, role)
    port = 0 if config.metrics_port == outer.config.metrics_port else config.metrics_port
    name = inner_instance(role, outer.instance)
    return dataclasses.replace(config, instance=name, metrics_port=port)


def _note_end(outer: Service[Any], inner: InnerService[Any], life: asyncio.Task[None]) -> None:
    """End the outer one with what has failed the inner one."""
    error = None if life.cancelled() else life.exception()
    if isinstance(error, Exception):
        outer.fail(error)
    elif error is not None:
        outer.fail(InternalError(f"{inner.instance} ended with {type(error).__name__}; the log has more"))
