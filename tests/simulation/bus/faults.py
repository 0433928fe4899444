"""Faults, drawn from a seed: the same ones at the same times in every run of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.bus.memory_server import MemoryServer
from tests.simulation.bus.network import Network


@dataclass(frozen=True, slots=True)
class Pace:
    """The mean time between two faults, and the longest that one lasts."""

    mean_s: float = 1.0
    longest_s: float = 3.0


class Faults:
    """Faults of one bus. `random` draws nothing else; all that is broken heals by itself."""

    def __init__(
        self, network: Network, server: MemoryServer, random: Random, pace: Pace | None = None
    ) -> None:
        self._network = network
        self._server = server
        self._random = random
        self._pace = pace or Pace()
        self.kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self.partition,
            self.pause,
            self.cut,
            self.slow_consumer,
            self.restart,
        )

    async def run(self, seconds: float) -> int:
        """Break something now and then for so long; return how often, when all is whole again."""
        loop, count = asyncio.get_running_loop(), 0
        end_s = loop.time() + seconds
        while (wait_s := self._random.expovariate(1 / self._pace.mean_s)) < end_s - loop.time():
            await asyncio.sleep(wait_s)
            await self._random.choice(self.kinds)()
            count += 1
        return count

    async def partition(self) -> None:
        """Cut one place off for a while."""
        places = sorted({cable.place for cable in self._network.cables()})
        if places:
            place = self._random.choice(places)
            self._network.partition(place)
            await self._while()
            self._network.heal(place)

    async def pause(self) -> None:
        """Let one connection carry nothing to its client for a while, as of a process that is stopped."""
        cables = self._network.cables()
        if cables:
            cable = self._random.choice(cables)
            self._network.trace.note("pause", cable.name)
            cable.to_client.hold()
            await self._while()
            cable.to_client.release()

    async def cut(self) -> None:
        """Reset one connection; what is on its way is lost."""
        cables = self._network.cables()
        if cables:
            cable = self._random.choice(cables)
            self._network.trace.note("cut", cable.name, cable.cut())

    async def slow_consumer(self) -> None:
        """Have the server drop one client, as one that does not read fast enough."""
        clients = self._server.clients
        if clients:
            self._random.choice(clients).drop("a fault")

    async def restart(self) -> None:
        """Kill the server, and start it after a while: everybody reconnects."""
        await self._server.kill()
        await self._while()
        await self._server.start()

    async def _while(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._pace.longest_s))
