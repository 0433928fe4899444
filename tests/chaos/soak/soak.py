"""Hold a soak: rounds of load under disturbances; after each a look at what is held while nothing runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from penstock.client import AsyncClient
from shared.blocks.block_hash import FLEET_KEY_BYTES
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from tests.chaos.drill_nats import clustered_stack
from tests.chaos.report import DrillReport, spread
from tests.chaos.soak.asks import Door
from tests.chaos.soak.clients import Clients, ask_undisturbed
from tests.chaos.soak.disturber import Disturber
from tests.chaos.soak.footprint import POOL_MB, Footprints, footprint_of, shared_memory
from tests.chaos.world import Models, held_for
from tests.support.nats_cluster import NatsCluster
from tests.support.stack import Stack, value_of
from tests.support.wait import until

TENANTS = ("red", "green", "blue")
ROUND_S = 40.0
QUIET_LIMIT_S = 60.0
"""Nothing is held and every instance serves so long after the last call and disturbance."""
SHED_SHARE = 0.02
"""The most calls that may be shed: there is room for all, but for moments in which half of a role is gone."""
CLIENTS = 8
DOORS_PER_TENANT = 2
NOT_FLAT = "NO"
POOLS = tuple(f"PENSTOCK_{role}_KV_MEMORY_MB" for role in ("PREFILL", "DECODE", "SPECULATOR"))
OPTIONS = ("--gateway", "2", "--retriever", "2", "--speculator", "2")


@dataclass(frozen=True, slots=True)
class Tenants:
    """The key of each."""

    secrets: tuple[str, ...]

    @classmethod
    def written_to(cls, file: Path) -> Tenants:
        secrets = tuple(new_api_key() for _ in TENANTS)
        keys = [ApiKey(name, name, hash_api_key(s)) for name, s in zip(TENANTS, secrets, strict=True)]
        file.write_text("\n".join(map(describe_api_key, keys)))
        return cls(secrets)

    @asynccontextmanager
    async def doors(self, stack: Stack, each: int) -> AsyncIterator[list[Door]]:
        """`each` doors for every tenant, with connections of their own."""
        async with AsyncExitStack() as opened:
            doors = []
            for secret in self.secrets * each:
                client = await opened.enter_async_context(AsyncClient(stack.grpc, api_key=secret))
                session = await opened.enter_async_context(
                    aiohttp.ClientSession(
                        f"http://{stack.http}", headers={"authorization": f"Bearer {secret}"}
                    )
                )
                model, *_ = await client.models()
                doors.append(Door(client, session, model.name))
            yield doors


class Soak:
    def __init__(
        self, stack: Stack, cluster: NatsCluster, tenants: Tenants, disturber: Disturber, seed: int
    ) -> None:
        self._stack = stack
        self._cluster = cluster
        self._tenants = tenants
        self._disturber = disturber
        self._seed = seed
        self._footprints = Footprints()
        self._quiet_s: list[float] = []
        self.clients: Clients
        self.troubles: list[str] = []

    async def hold(self, seconds: float) -> None:
        """Rounds for so long; a stack that does not come to rest after one ends it."""
        async with self._tenants.doors(self._stack, 1) as doors:
            undisturbed = await ask_undisturbed(doors[0])
            self.clients = Clients(
                doors, undisturbed, self._seed, CLIENTS, gone_since=self._disturber.gone_since
            )
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds and not self.troubles:
            await self._round(min(ROUND_S, seconds - passed_s), passed_s / seconds)

    async def _round(self, for_s: float, share: float) -> None:
        async with self._tenants.doors(self._stack, DOORS_PER_TENANT) as doors:
            self.clients.doors = doors
            self.clients.start()
            await self._disturber.disturb(for_s, share)
            await self.clients.finish()
        try:
            self._quiet_s.append(await self._until_quiet())
        except (AssertionError, TimeoutError) as error:
            self.troubles.append(str(error)[:600])
        else:
            await asyncio.to_thread(self._look)

    async def _until_quiet(self) -> float:
        """Return after how many seconds all instances serve and nothing is held. Raises AssertionError."""
        began_s = time.monotonic()
        await self._cluster.until_whole()
        await until(self._all_run, timeout_s=QUIET_LIMIT_S)
        await held_for(self._stack, QUIET_LIMIT_S)
        return time.monotonic() - began_s

    def _all_run(self) -> bool:
        return all(instance.metrics for instance in self._stack.instances())

    def _look(self) -> None:
        for instance in self._stack.instances():
            tasks = value_of(instance, "penstock_tasks")
            self._footprints.add(instance.id, instance.pid, footprint_of(instance.pid, tasks))
        for number, server in enumerate(self._cluster.servers):
            self._footprints.add(f"nats-server {number}", server.pid, footprint_of(server.pid))
        self._footprints.add("launcher", self._stack.process.pid, footprint_of(self._stack.process.pid))

    # ---- what it tells --------------------------------------------------------------------------------

    def tell(self, report: DrillReport) -> None:
        tally = self.clients.tally
        for (kind, outcome), count in sorted(tally.outcomes.items()):
            pauses = spread([1e3 * s for s in tally.pauses_s.get(kind, ())])
            report.add(kind, outcome, count, pauses if outcome == "as undisturbed" else "")
        happened = sorted(self._disturber.happened.items())
        report.details.append((("what happened", "times"), [(what, str(n)) for what, n in happened]))
        report.details.append(
            (("process", "looks", "what", "second quarter", "last", "flat"), self._growth())
        )
        calls = sum(tally.outcomes.values())
        shed = sum(count for (_, outcome), count in tally.outcomes.items() if outcome == "shed")
        report.claim(
            "every answer is what it would be undisturbed", tally.wrong[:5] or calls, holds=not tally.wrong
        )
        report.claim(
            f"at most {SHED_SHARE:.0%} are shed", f"{shed} of {calls}", holds=shed <= SHED_SHARE * calls
        )
        report.claim(
            "who has little time hears its end in time",
            f"after the deadline {spread([1e3 * s for s in tally.late_s])}",
            holds=True,  # who does not is among the wrong answers
        )
        report.claim(
            f"nothing is held and all serve {QUIET_LIMIT_S:g} s after a round",
            self.troubles or spread(self._quiet_s, "s"),
            holds=not self.troubles,
        )
        wrong = self._disturber.wrong
        report.claim("what is ended, rolled or restarted ends well", wrong[:5] or "all", holds=not wrong)
        grown = [" ".join(row[:-1]) for row in self._growth() if row[-1] == NOT_FLAT]
        lives = f"{len({row[0] for row in self._growth()})} processes that were looked at often enough"
        report.claim("what processes hold stays flat over their lives", grown or lives, holds=not grown)

    def _growth(self) -> list[tuple[str, ...]]:
        return [
            (name, str(looks), what, f"{before:.1f}", f"{after:.1f}", "yes" if flat else NOT_FLAT)
            for name, looks, what, before, after, flat in self._footprints.judged()
        ]


def new_report(seed: int, minutes: float) -> DrillReport:
    return DrillReport(
        f"soak: {minutes:g} minutes, seed {seed}",
        ("calls", "outcome", "how many", "longest pause p50 / p99 / max"),
    )


async def hold(models: Models, seed: int, minutes: float, log: Path | None = None) -> DrillReport:
    """`log` gets what the stack has said."""
    report = new_report(seed, minutes)
    before = shared_memory()
    keys = models.target.parent / "keys.toml"
    tenants = Tenants.written_to(keys)
    told = {
        **dict.fromkeys(POOLS, f"{POOL_MB:g}"),
        "PENSTOCK_GATEWAY_API_KEYS": str(keys),
        "PENSTOCK_FLEET_KEY": "5a" * FLEET_KEY_BYTES,
    }
    async with clustered_stack(models, *OPTIONS, environ=told) as (stack, cluster, _):
        environ = {
            **stack.environ,
            "PENSTOCK_MODEL": str(models.target),
            "PENSTOCK_MODEL_ADAPTER_FILE": str(stack.state_dir / "adapters.toml"),
            "PENSTOCK_NATS_URL": cluster.url,
        }
        bus = await stack.connect("soak")
        try:
            soak = Soak(stack, cluster, tenants, Disturber(stack, cluster, bus, environ, seed), seed)
            await soak.hold(60 * minutes)
        finally:
            await bus.close()
            if log is not None:
                await asyncio.to_thread(log.write_text, "\n".join(stack.log))
        soak.tell(report)
    left = shared_memory() - before
    report.claim("nothing is left in /dev/shm", sorted(left) or "nothing", holds=not left)
    return report
