"""Background work of the gateway: kept until it is done, its errors logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from shared.tasks import cancel_until_done, start_task

log = structlog.get_logger()


class Tasks:
    """Every task is referenced here while it runs, and none fails in silence."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = start_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, timeout_s: float) -> None:
        """Wait for all, then cancel what is left."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        await cancel_until_done(*self._running)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task_failed", task=task.get_name(), exc_info=task.exception())
