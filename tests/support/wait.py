"""The one way tests wait for something: poll until a bounded deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

POLL_S = 0.005
TIMEOUT_S = 150.0
"""Far more than anything waited for takes on an idle machine, for one that is not."""


async def until(predicate: Callable[[], object | Awaitable[object]], timeout_s: float = TIMEOUT_S) -> object:
    """The first truthy value of `predicate` (plain or async); AssertionError after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                value = predicate()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise AssertionError(f"nothing came of {predicate} within {timeout_s} s") from error
