"""Pause a timer of transfers between two looks at them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sized

from shared.kv.limits import REST_TICK_S, TICK_S


class TimerPause:
    """TICK_S while there are `transfers`; otherwise until `end`, which whoever adds one calls."""

    def __init__(self, transfers: Sized) -> None:
        self._transfers = transfers
        self._ended = asyncio.Event()

    def end(self) -> None:
        self._ended.set()

    async def wait(self) -> None:
        if not self._transfers:
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REST_TICK_S):
                    await self._ended.wait()
        else:
            await asyncio.sleep(TICK_S)
