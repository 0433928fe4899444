"""Nats: the bus is three servers, one of which is killed, paused, cut off or rolled; passwords are renewed.

Clients stream meanwhile and connect anew. What is on its way at a server that dies is lost without a word,
and nothing that counts is kept there: who misses something asks for it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shared.bus.credentials import Credentials
from tests.chaos.report import DrillReport, spread
from tests.chaos.steady_load import SteadyLoad, steady_load
from tests.chaos.world import Models, drill_stack, held_for, until_serving
from tests.support.nats_cluster import NatsCluster
from tests.support.percentile import percentile
from tests.support.stack import Stack
from tests.support.wait import until

USER = "penstock"
ROOM = {"PENSTOCK_DECODE_MAX_SEQUENCES": "64"}
IDLE_LIMIT_S = 30.0
PAUSE_LIMIT_S = 2.5
"""A server that hangs is left after 1.5 s; then what it has lost is asked for again."""
STARTED_TIMEOUT_S = 120.0

Disturbance = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scale:
    """`stops_s` are the lengths of SIGSTOP, `cut_s` that of a cut; `rest_s` comes after each disturbance."""

    streams: int
    tokens: int
    anew: int
    stops_s: tuple[float, ...]
    cut_s: float
    rest_s: float


FULL = Scale(12, 600, 2, (3.0, 30.0), 8.0, 3.0)


class NatsDrill:
    def __init__(
        self, stack: Stack, cluster: NatsCluster, passwords: Path, scale: Scale, report: DrillReport
    ) -> None:
        self._stack = stack
        self._cluster = cluster
        self._passwords = passwords
        self._scale = scale
        self._report = report
        self._pauses_s: list[float] = []

    async def hold_all(self) -> None:
        await self._disturb("nothing", self._rest)
        for _ in self._cluster.servers:
            await self._disturb("kill -9", self._kill)
        for stop_s in self._scale.stops_s:
            await self._disturb(f"SIGSTOP {stop_s:g} s", partial(self._stop, stop_s))
        await self._disturb("cut off, closed", partial(self._cut, silently=False))
        await self._disturb("cut off, no bytes pass", partial(self._cut, silently=True))
        await self._disturb("rolled, one after another", self._roll)
        await self._disturb("new passwords", self._renew_passwords)
        self._report.claim(
            f"a server that is gone pauses streams {PAUSE_LIMIT_S:g} s at most (p99)",
            spread([1e3 * pause_s for pause_s in self._pauses_s]),
            holds=percentile(self._pauses_s, 0.99) <= PAUSE_LIMIT_S,
            timed=True,
        )

    async def _disturb(self, what: str, disturbance: Disturbance) -> None:
        async with steady_load(
            self._stack, self._scale.streams, self._scale.tokens, self._scale.anew
        ) as load:
            await self._all_at_work(load)
            has = self._shares()
            await disturbance()
            await self._rest()
        await self._cluster.until_whole()
        idle_s = await held_for(self._stack, IDLE_LIMIT_S)
        self._pauses_s += load.pauses_s
        pauses = spread([1e3 * pause_s for pause_s in load.pauses_s])
        self._report.add(what, has, self._shares(), load.answers, len(load.wrong), pauses, f"{idle_s:.1f} s")
        self._report.claim(
            f"no call fails and none is answered otherwise: {what}", load.wrong[:3], holds=not load.wrong
        )
        await until_serving(self._stack)

    async def _all_at_work(self, load: SteadyLoad) -> None:
        await until(lambda: load.answers >= self._scale.streams, timeout_s=STARTED_TIMEOUT_S)

    async def _rest(self) -> None:
        await asyncio.sleep(self._scale.rest_s)

    def _shares(self) -> str:
        """How many connections each server has."""
        return " ".join(str(len(server_connections(server.port))) for server in self._cluster.servers)

    def _busiest(self) -> int:
        """The number of the server with the most connections."""
        counts = [len(server_connections(server.port)) for server in self._cluster.servers]
        return counts.index(max(counts))

    # ---- what happens -------------------------------------------------------------------------------

    async def _kill(self) -> None:
        victim = self._busiest()
        await self._cluster.servers[victim].kill()
        await self._rest()
        await self._cluster.servers[victim].start()

    async def _stop(self, for_s: float) -> None:
        with self._cluster.servers[self._busiest()].paused():
            await asyncio.sleep(for_s)

    async def _cut(self, *, silently: bool) -> None:
        self._cluster.cut_off(self._busiest(), silently=silently)
        await asyncio.sleep(self._scale.cut_s)
        self._cluster.mend()

    async def _roll(self) -> None:
        for server in self._cluster.servers:
            await server.stop()
            await server.start()
            await self._cluster.until_whole()

    async def _renew_passwords(self) -> None:
        """First those of the services, then each server's."""
        Credentials(USER, "after").write(self._passwords)
        for server in self._cluster.servers:
            server.reload('"before"', '"after"')
            await asyncio.sleep(1.0)


def server_connections(port: int) -> list[str]:
    """The clients' ends of what is open at a server."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[2] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]


@asynccontextmanager
async def clustered_stack(
    models: Models, *more: str, environ: dict[str, str] | None = None
) -> AsyncIterator[tuple[Stack, NatsCluster, Path]]:
    """A stack whose bus is three servers, and the file with the password that it shows them."""
    passwords = models.target.parent / "passwords.toml"
    Credentials(USER, "before").write(passwords)
    users = f'authorization {{ user: {USER}, password: "before" }}'
    async with NatsCluster(users=users).running() as cluster:
        await cluster.until_whole()
        told = {**ROOM, "PENSTOCK_NATS_CREDENTIALS": str(passwords), **(environ or {})}
        stack = drill_stack(models, "--nats-url", cluster.url, *more, environ=told)
        await asyncio.to_thread(stack.__enter__)  # the links need this loop meanwhile
        try:
            yield stack, cluster, passwords
        finally:
            await asyncio.to_thread(stack.stop)


def new_report(scale: Scale) -> DrillReport:
    return DrillReport(
        f"nats: three servers, {scale.streams} streams of {scale.tokens} tokens and clients that come anew",
        (
            *("what", "connections before", "after", "answers", "failed or changed"),
            *("longest pause p50 / p99 / max", "zero held after"),
        ),
    )


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report(scale)
    async with clustered_stack(models) as (stack, cluster, passwords):
        await NatsDrill(stack, cluster, passwords, scale, report).hold_all()
    return report
