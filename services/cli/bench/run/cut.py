"""A load that is cut, as by Ctrl-C: what still runs of it is cancelled, what has ended counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from shared.tasks import cancel_until_done

Returned = TypeVar("Returned")


async def unless_cut(cut: asyncio.Event, body: Coroutine[Any, Any, Returned]) -> Returned | None:
    """Return what `body` returns, or None where it was cancelled because `cut` was set before its end."""
    if cut.is_set():
        body.close()
        return None
    running = asyncio.create_task(body)
    cutting = asyncio.create_task(cut.wait())
    try:
        await asyncio.wait((running, cutting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_until_done(running, cutting)
    return None if running.cancelled() else running.result()
