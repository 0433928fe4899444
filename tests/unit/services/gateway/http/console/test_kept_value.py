"""What the console shows is made once for all who ask at about the same time."""

from __future__ import annotations

import asyncio

from services.gateway.http.console.kept_value import MADE_FOR_S, KeptValue
from tests.support.clock import FakeClock


async def test_a_value_is_made_anew_when_its_time_is_over() -> None:
    clock, made = FakeClock(), list[int]()

    async def make() -> int:
        await asyncio.sleep(0)
        made.append(1)
        return len(made)

    value = KeptValue(make, clock)
    assert set(await asyncio.gather(*(value.get() for _ in range(1000)))) == {1}
    clock.advance(MADE_FOR_S - 0.001)
    assert await value.get() == 1
    clock.advance(0.001)
    assert await value.get() == 2
