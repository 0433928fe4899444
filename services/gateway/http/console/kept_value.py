"""Make a value once for all who ask for it at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from shared.deadline import Clock

MADE_FOR_S = 0.25
"""The time for which a value is given again: 1000 who watch cost four of them a second."""

T = TypeVar("T")


class KeptValue(Generic[T]):
    """A value that is made anew when the last one is older than `MADE_FOR_S`. Who comes while it is made
    waits for that, so `make` has to end by itself."""

    def __init__(self, make: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._made: tuple[float, T] | None = None
        self._making = asyncio.Lock()

    async def get(self) -> T:
        async with self._making:
            now_s = self._clock.monotonic_s()
            if self._made is None or now_s - self._made[0] >= MADE_FOR_S:
                self._made = now_s, await self._make()
            return self._made[1]
