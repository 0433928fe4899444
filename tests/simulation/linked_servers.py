"""Nats-servers of several regions that are one bus, in memory, and the long ways between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random

from tests.simulation.bus import Latency, MemoryServer, Network
from tests.simulation.bus.interest import ServerSubscription
from tests.simulation.bus.server_connection import ServerConnection

FLEET = b"penstock.fleet."
"""The subjects of heartbeats, which every region hears."""
APART_S = 1e-6
"""Timers of one moment come in any order, and messages of one way do not."""


class LinkedServers(MemoryServer):
    """One server for the clients of all regions, at no distance from each; `regions` says where a place is.

    A message between two regions takes `way`, in order behind those before it. While they are cut off from
    each other it is lost, and nobody is told, as nats-servers do that have not missed each other yet.
    """

    def __init__(self, network: Network, random: Random, regions: Mapping[str, str], way: Latency) -> None:
        super().__init__(network, random)
        self.way = way
        self.is_cut = False
        self.crossed: list[bytes] = []
        """The payloads of all that has left a region, but for heartbeats."""
        self._regions = regions
        self._arrives_s: dict[tuple[str, str], float] = {}

    def _deliver(
        self,
        sender: ServerConnection,
        to: ServerSubscription,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_bytes: int,
    ) -> bool:
        deliver = super()._deliver
        link = self._region_of(sender), self._region_of(to.client)
        if link[0] == link[1]:
            return deliver(sender, to, subject, reply, payload, header_bytes)
        if not subject.startswith(FLEET):
            self.crossed.append(payload)
        self._send(link, lambda: deliver(sender, to, subject, reply, payload, header_bytes))
        return True

    def _region_of(self, client: ServerConnection) -> str:
        place, _ = client.transport.get_extra_info("peername")
        return self._regions.get(place, "")

    def _send(self, link: tuple[str, str], arrive: Callable[[], object]) -> None:
        if self.is_cut:
            return
        loop = asyncio.get_running_loop()
        earliest_s = loop.time() + self.way.draw_s(self.random)
        self._arrives_s[link] = max(earliest_s, self._arrives_s.get(link, 0.0) + APART_S)
        loop.call_at(self._arrives_s[link], self._arrive, arrive)

    def _arrive(self, arrive: Callable[[], object]) -> None:
        if not self.is_cut:
            arrive()
