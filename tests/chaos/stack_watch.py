"""What an outsider sees of a stack: who holds what, and how requests ended."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from shared.bus import Bus
from tests.chaos.world import counted, open_files
from tests.support.stack import Stack, audit, resident_mb
from tests.support.wait import until

GIVE_UP_S = 20.0
FREE_LIMIT_S = 1.0
OUTCOMES = ("finished", "cancelled", "expired", "shed", "failed")


@dataclass(slots=True)
class StackWatch:
    """`slow`: what was still held where that took longer than FREE_LIMIT_S."""

    stack: Stack
    bus: Bus
    slow: list[str] = field(default_factory=list)

    async def sessions(self) -> set[str]:
        """The ids of the live requests."""
        held = await audit(self.bus, self.stack.instances("gateway"))
        return {thing.request_id for things in held.values() for thing in things}

    async def free_ms(self, others: set[str], begun: float) -> float:
        """From `begun` until nothing is held but what `others` hold; gives up after GIVE_UP_S."""
        last_held: list[str] = []

        async def free() -> bool:
            found = await audit(self.bus, self.stack.instances())
            held = [
                f"{name}: {one}"
                for name, things in found.items()
                for one in things
                if one.request_id not in others
            ]
            last_held[:] = held or last_held
            return not held

        with contextlib.suppress(AssertionError):  # its time says the same, and the table goes on
            await until(free, timeout_s=GIVE_UP_S)
        ms = (time.perf_counter() - begun) * 1e3
        if ms > FREE_LIMIT_S * 1e3:
            self.slow.append(f"{ms:.0f} ms: {last_held[:3]}")
        return ms

    def ends(self) -> Counter[str]:
        """How the requests of all gateways ended so far."""
        gateways = self.stack.instances("gateway")
        counts = {
            outcome: sum(counted(one, "penstock_requests_total", outcome=outcome) for one in gateways)
            for outcome in OUTCOMES
        }
        return Counter({outcome: round(count) for outcome, count in counts.items() if count})

    def footprint(self) -> dict[str, tuple[float, int]]:
        """Resident MB and open files of every instance."""
        return {row.id: (resident_mb(row.pid), open_files(row.pid)) for row in self.stack.instances()}


@contextlib.asynccontextmanager
async def watching(stack: Stack) -> AsyncIterator[StackWatch]:
    bus = await stack.connect("drill-audit")
    try:
        yield StackWatch(stack, bus)
    finally:
        await bus.close()
