"""A world of clients on a bus in memory that breaks, in time that no real clock moves: all of it from a seed.

`python -m tests.simulation.random_world SEED` prints the digest of what has happened in it.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from nats.aio.msg import Msg

from tests.simulation.bus import Faults, Latency, MemoryServer, Network, Trace
from tests.simulation.bus.faults import Pace
from tests.simulation.bus.loop_clock import nats_in_loop_time
from tests.simulation.clients import Told, told

PLACES = ("gateway-0", "prefill-0", "decode-0", "decode-1")
SUBJECTS = ("work.a", "work.b", "news.a", "news.b")
LATENCY = Latency(0.0002, 0.004, late_share=0.01, late_s=0.1)
BROKEN_S = 20.0
"""The time in which things go wrong, of the world's own."""
HEALED_S = 20.0
"""The time in which everybody must be back then: stale connections take six seconds to be noticed."""
MEAN_PAUSE_S = 0.05
PACE = Pace(mean_s=1.0, longest_s=3.0)

Result = TypeVar("Result")


class _NoSockets(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is to be done, and nothing is waited for"
            self.now_s += max(timeout, 0)
        return ready


class SocketlessLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes while nothing is to be done, and then at once."""

    def __init__(self) -> None:
        self._none = _NoSockets()
        super().__init__(self._none)

    def time(self) -> float:
        return self._none.now_s


def run_socketless(main: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=SocketlessLoop) as runner:
        return runner.run(main)


@dataclass
class Lived:
    """What has happened: `heard` are the numbers that each subscription had from each sender on a subject."""

    digest: str = ""
    events: list[str] = field(default_factory=list)
    count: int = 0
    sent: int = 0
    faults: int = 0
    heard: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)
    last_words: dict[str, set[str]] = field(default_factory=dict)


class World:
    """Everybody says numbers on random subjects, and hears some alone and some in a group."""

    def __init__(self, seed: int, broken_s: float = BROKEN_S) -> None:
        self.trace = Trace()
        self.network = Network(Random(f"network {seed}"), LATENCY, self.trace)
        self.server = MemoryServer(self.network, Random(f"server {seed}"))
        self.faults = Faults(self.network, self.server, Random(f"faults {seed}"), PACE)
        self.lived = Lived()
        self._seed = seed
        self._broken_s = broken_s

    async def live(self) -> Lived:
        """Live through the faults and until all has healed."""
        lived = self.lived
        with self.network.joined(), nats_in_loop_time():
            await self.server.start()
            async with AsyncExitStack() as stack:
                clients = [await self._settle_down(stack, place) for place in PLACES]
                stop_s = asyncio.get_running_loop().time() + self._broken_s
                talks = [
                    asyncio.create_task(self._talk(place, client, stop_s))
                    for place, client in zip(PLACES, clients, strict=True)
                ]
                lived.faults = await self.faults.run(self._broken_s)
                for talk in talks:
                    await talk
                await asyncio.sleep(HEALED_S)
                for place, client in zip(PLACES, clients, strict=True):
                    await client.say("last.words", place.encode())
                await asyncio.sleep(1)
            await self.server.stop()
        lived.digest, lived.events, lived.count = self.trace.digest(), self.trace.events, self.trace.count
        return lived

    async def _settle_down(self, stack: AsyncExitStack, place: str) -> Told:
        with self.network.at(place):
            client = await stack.enter_async_context(
                told(self.server.url, name=place, ping_interval=2, connect_timeout=1)
            )
            await self._listen(client, place, "work.*", "workers")
            await self._listen(client, place, "news.>", "")
            await client.client.subscribe("last.words", cb=self._last_words(place))
            await client.settle()
        return client

    async def _listen(self, client: Told, place: str, pattern: str, queue: str) -> None:
        async def hear(message: Msg) -> None:
            sender, _, number = message.data.decode().partition(" ")
            self.trace.note("hears", place, message.subject, message.data.decode())
            key = (place, queue, message.subject, sender)
            self.lived.heard.setdefault(key, []).append(int(number))

        await client.client.subscribe(pattern, queue=queue, cb=hear)

    def _last_words(self, place: str) -> Any:
        async def hear(message: Msg) -> None:
            self.lived.last_words.setdefault(place, set()).add(message.data.decode())

        return hear

    async def _talk(self, place: str, client: Told, stop_s: float) -> None:
        random, loop = Random(f"{place} {self._seed}"), asyncio.get_running_loop()
        while loop.time() < stop_s:
            await asyncio.sleep(random.expovariate(1 / MEAN_PAUSE_S))
            subject = random.choice(SUBJECTS)
            await client.client.publish(subject, f"{place} {self.lived.sent}".encode())
            self.lived.sent += 1


def live(seed: int) -> Lived:
    async def main() -> Lived:
        return await World(seed).live()

    return run_socketless(main())


if __name__ == "__main__":
    print(live(int(sys.argv[1])).digest)
