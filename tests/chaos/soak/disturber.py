"""Let things happen to a stack and its nats-servers, as a schedule says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from services.cli.fleet.draining import begin_drain
from shared.bus import Bus
from shared.errors import PenstockError
from tests.chaos.drill_roll import told
from tests.chaos.soak.extra_worker import extra_worker
from tests.chaos.soak.schedule import Disturbance, Schedule
from tests.chaos.world import stopped
from tests.support.nats_cluster import NatsCluster
from tests.support.stack import Instance, Stack
from tests.support.wait import until

BACK_TIMEOUT_S = 120.0
"""The longest until an instance that was ended is there again."""
DRAIN_TIMEOUT_S = 20.0
"""An instance may be paused when it is told to drain."""


PATIENCE_WITH_GATEWAYS_S = 0.5
"""The launcher ends a gateway that stands still for longer: others share its ports."""


class Disturber:
    """The first instance of each role is stopped at most, but for rolls: it lives long enough to be judged.

    `happened` counts what was done, `wrong` tells of what did not end as it should.
    """

    def __init__(
        self, stack: Stack, cluster: NatsCluster, bus: Bus, environ: Mapping[str, str], seed: int
    ) -> None:
        self.happened: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._stack = stack
        self._cluster = cluster
        self._bus = bus
        self._environ = environ
        self._schedule = Schedule(seed)
        self._gone: list[tuple[float, str]] = []
        self._numbers = itertools.count()
        self._ending = asyncio.Lock()  # a roll is not to meet the end of one that it rolls
        self._of_role: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one of two at a time
        self._servers = asyncio.Lock()  # one of three at a time

    def gone_since(self, since_s: float) -> set[str]:
        """Return the roles of which an instance was ended since then (monotonic)."""
        return {role for when_s, role in self._gone if when_s >= since_s}

    async def disturb(self, for_s: float, share: float) -> None:
        """Let things happen for so long, and return when they are over; `share` of the whole time has
        passed."""
        until_s = time.monotonic() + for_s
        running: list[asyncio.Task[None]] = []
        while True:
            disturbance = self._schedule.draw(share)
            if time.monotonic() + disturbance.after_s > until_s:
                break
            await asyncio.sleep(disturbance.after_s)
            running.append(asyncio.create_task(self._let_happen(disturbance)))
        await asyncio.sleep(max(0.0, until_s - time.monotonic()))
        await asyncio.gather(*running)

    async def _let_happen(self, disturbance: Disturbance) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {disturbance}", file=sys.stderr, flush=True)
        happens = getattr(self, f"_{disturbance.kind.replace(' ', '_')}")
        try:
            async with self._of_role[disturbance.whom]:
                await happens(disturbance)
                await until(lambda: self._all_run(disturbance.whom), timeout_s=BACK_TIMEOUT_S)
        except (AssertionError, PenstockError, ProcessLookupError, TimeoutError) as error:
            self.wrong.append(f"{disturbance}: {type(error).__name__} {error}"[:400])
        self.happened[disturbance.kind] += 1

    def _all_run(self, role: str) -> bool:
        return all(instance.metrics for instance in self._stack.instances(role))

    def _ended(self, role: str) -> None:
        self._gone.append((time.monotonic(), role))

    def _victim(self, role: str) -> Instance:
        """The last one of the role that runs."""
        return self._stack.instances(role)[-1]

    # ---- instances ----------------------------------------------------------------------------------

    async def _kill(self, it: Disturbance) -> None:
        async with self._ending:
            with contextlib.suppress(ProcessLookupError):  # it is being started anew
                os.kill(self._victim(it.whom).pid, signal.SIGKILL)
            self._ended(it.whom)

    async def _stop(self, it: Disturbance) -> None:
        victim = self._stack.instances(it.whom)[0 if it.firmly else -1]
        ends = it.whom == "gateway" and it.for_s > PATIENCE_WITH_GATEWAYS_S
        with contextlib.suppress(ProcessLookupError):
            async with stopped(victim):
                for _ in range(2):  # it is ended somewhere in between
                    if ends:
                        self._ended(it.whom)
                    await asyncio.sleep(it.for_s / 2)
            if ends:
                self._ended(it.whom)

    async def _drain(self, it: Disturbance) -> None:
        async with self._ending:
            self._ended(it.whom)
            with contextlib.suppress(PenstockError):  # it is being started anew
                await begin_drain(self._bus, it.whom, self._victim(it.whom).id, DRAIN_TIMEOUT_S)
            self._ended(it.whom)

    async def _restart(self, it: Disturbance) -> None:
        async with self._ending:
            self._ended(it.whom)
            await self._command("restart", self._victim(it.whom).id, "--yes")
            self._ended(it.whom)

    async def _roll(self, it: Disturbance) -> None:
        async with self._ending:
            self._ended(it.whom)
            await self._command("roll", it.whom)
            self._ended(it.whom)

    async def _add(self, it: Disturbance) -> None:
        name = f"{it.whom}-extra-{next(self._numbers)}"
        async with extra_worker(it.whom, name, self._environ, firmly=it.firmly):
            await asyncio.sleep(it.for_s)
            self._ended(it.whom)

    async def _command(self, command: str, *arguments: str) -> None:
        code, said = await told(self._stack, command, *arguments)
        assert code == 0, said.splitlines()[-1:]

    # ---- nats-servers ---------------------------------------------------------------------------------

    async def _nats_kill(self, it: Disturbance) -> None:
        async with self._servers:
            await self._cluster.servers[int(it.whom)].kill()
            await asyncio.sleep(it.for_s)
            await self._cluster.servers[int(it.whom)].start()

    async def _nats_stop(self, it: Disturbance) -> None:
        async with self._servers:
            with self._cluster.servers[int(it.whom)].paused():
                await asyncio.sleep(it.for_s)

    async def _nats_cut(self, it: Disturbance) -> None:
        async with self._servers:
            self._cluster.cut_off(int(it.whom), silently=it.firmly)
            await asyncio.sleep(it.for_s)
            self._cluster.mend()
