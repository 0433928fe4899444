"""Tasks that are cancelled until they end."""

from __future__ import annotations

import asyncio
from typing import Any

CANCEL_AGAIN_S = 0.05


async def cancel_until_done(*tasks: asyncio.Task[Any]) -> None:
    """Return when all have ended; what they ended with is for the caller to look at, or to leave.

    One cancel is not enough: Python 3.11's `wait_for` swallows one that meets its answer, and so does a
    library that retries. A loop around either would then go on for ever.
    """
    try:
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
    finally:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # seen, so that nobody calls it never retrieved
