"""Leave a server that has lost the rest of its cluster.

Parts of a cluster that do not reach each other go on serving: who is with the smaller one hears nobody of the
larger one, and its own server answers every ping. But a server tells its clients which servers it reaches, at
their arrival and whenever that changes. Who hears of less than half looks at the other servers, and goes to
one that reaches more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import urlsplit

import structlog

from shared.seams.chance import CHANCE
from shared.tasks import start_task

log = structlog.get_logger()

LOOK_WAIT_S = 0.5
"""The time between two looks at the other servers."""
LOOK_TIMEOUT_S = 1.0
MAX_INFO_BYTES = 1 << 16
"""The longest first line of a server that is read; one that says more is not looked at."""
DEFAULT_PORT = 4222
CHOICE_BITS = 32

Move = Callable[[str], Awaitable[bool]]


class ClusterWatch:
    """Watches over one connection. `move(HOST:PORT)` leaves its server for that one, and returns whether it
    could."""

    def __init__(self, move: Move) -> None:
        self._move = move
        self._reached = 0
        self._whole = 0
        self._others: tuple[str, ...] = ()
        self._look: asyncio.Task[None] | None = None

    @property
    def is_cut_off(self) -> bool:
        """Return whether our server reaches less than half of what there is."""
        return 2 * self._reached < self._whole

    def heard(self, reached: Collection[str], known: Collection[str], named: int) -> None:
        """Take what our server says: the addresses HOST:PORT that it `reached`, its own among them.

        `known` are all addresses that there have been, `named` is how many servers there are to be at least.
        """
        self._reached = len(reached)
        self._whole = max(self._whole, named, self._reached)
        self._others = tuple(address for address in known if address not in reached)
        if self.is_cut_off and (self._look is None or self._look.done()):
            self._look = start_task(self._leave(), name="bus-cluster-watch")

    def stop(self) -> None:
        """The connection is lost or closed; at the next one `heard` is called anew."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

    async def _leave(self) -> None:
        """Look until there is a server that reaches more, or ours does again."""
        while self.is_cut_off:
            reach = await asyncio.gather(*map(servers_reached_from, self._others))
            best = max(reach, default=0)
            if self.is_cut_off and best > self._reached:
                found = [other for other, count in zip(self._others, reach, strict=True) if count == best]
                address = found[CHANCE.bits(CHOICE_BITS) % len(found)]  # or all would go to the same one
                log.warning("bus_server_cut_off", reaches=self._reached, going_to=address, which_reaches=best)
                if await self._move(address):
                    return
            await asyncio.sleep(LOOK_WAIT_S)


async def servers_reached_from(address: str) -> int:
    """Return how many servers the one at HOST:PORT reaches, itself included; 0 where it does not say."""
    place = urlsplit(f"nats://{address}")
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                place.hostname, place.port or DEFAULT_PORT, limit=MAX_INFO_BYTES
            )
            try:
                line = await reader.readuntil(b"\n")
            finally:
                writer.transport.abort()
        info = json.loads(line.removeprefix(b"INFO "))
    except (OSError, EOFError, ValueError, RecursionError, asyncio.LimitOverrunError):
        return 0
    urls = info.get("connect_urls") if isinstance(info, dict) else None
    return len({url for url in urls if isinstance(url, str)}) if isinstance(urls, list) else 0
