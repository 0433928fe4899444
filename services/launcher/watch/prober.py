"""Probe whether the services live: GET /live of each that is not heard of, once a second.

A process ends itself when something in it hangs; this is for what cannot: one that is stopped, or whose
interpreter never comes to its watchdog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from services.launcher.processes.instance import Instance
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.ticks import until_tick

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 1.0
HUNG_AFTER_PROBES = 40
"""The probes in a row without a good answer after which a process is ended: longer than one may be stopped
and go on where it was (half a minute), and than it takes to end itself. Probes are counted and not seconds:
what a starved machine or a stopped launcher did not ask blames nobody."""
LATE_S = 2 * PROBE_TIMEOUT_S
"""A round that takes longer was held up with ourselves: it does not count."""
MAX_ANSWER_BYTES = 4096
"""The longest answer to a probe that is read."""


class Prober:
    """`targets` names who is to be probed at each round: an instance and the HOST:PORT of its process."""

    def __init__(
        self, targets: Callable[[], Iterable[tuple[Instance, str]]], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._targets = targets
        self._clock = clock
        self._missed: dict[int, int] = {}  # by process: probes in a row without a good answer

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            if self._missed or any(True for _ in self._targets()):
                await asyncio.gather(self.probe_all(), until_tick(PROBE_EVERY_S))
            else:
                await until_tick(PROBE_EVERY_S)

    async def probe_all(self) -> None:
        """One round; kills whoever has missed too many."""
        began_s = self._clock.monotonic_s()
        targets = [(instance, instance.pid, address) for instance, address in self._targets()]
        troubles = await asyncio.gather(*(trouble_of(address) for _, _, address in targets))
        if self._clock.monotonic_s() - began_s > LATE_S:
            return
        missed: dict[int, int] = {}
        for (instance, pid, _), trouble in zip(targets, troubles, strict=True):
            missed[pid] = self._missed.get(pid, 0) + 1 if trouble else 0
            if missed[pid] == HUNG_AFTER_PROBES and instance.pid == pid:
                instance.kill_hung(trouble)
        self._missed = missed


async def trouble_of(address: str) -> str:
    """Return what is wrong with the process that serves there, as it says or looks; "" when it is alive."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(b"GET /live HTTP/1.1\r\nHost: probe\r\n\r\n")
                answer = await reader.read(MAX_ANSWER_BYTES)
            finally:
                writer.close()
    except (TimeoutError, OSError):
        return "/live does not answer"
    head, _, body = answer.partition(b"\r\n\r\n")
    alive = head.split(b" ")[1:2] == [b"200"]
    return "" if alive else body.decode(errors="replace").strip() or "/live is no HTTP"
