"""Which bus a test of both runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.simulation.bus import ServerSettings
from tests.simulation.buses import EitherBus, RealBus, memory_bus

StartBus = Callable[[ServerSettings], Awaitable[EitherBus]]


@pytest.fixture(params=["real", "memory"])
async def start_bus(request: pytest.FixtureRequest) -> AsyncIterator[StartBus]:
    """Start a bus with settings; it ends with the test."""
    async with AsyncExitStack() as stack:

        async def start(settings: ServerSettings) -> EitherBus:
            bus: EitherBus
            if request.param == "real":
                bus = RealBus(settings)
            else:
                bus = await stack.enter_async_context(memory_bus(settings))
            await bus.start()
            stack.push_async_callback(bus.kill)
            return bus

        yield start
        await asyncio.sleep(0)


@pytest.fixture
async def bus(start_bus: StartBus) -> EitherBus:
    return await start_bus(ServerSettings())
