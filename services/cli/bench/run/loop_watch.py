"""Whether the generator itself is the bottleneck: how late its loop is, and how busy its core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.cli.bench.stats.quantiles import sorted_quantile

TICK_S = 0.02
LATE_MS = 10.0
"""A generator whose sends or turns of its loop are later than this at p99 is a bottleneck."""
BUSY_SHARE = 0.85
"""One that keeps a core busy for more of the time is a bottleneck, too."""


@dataclass(frozen=True, slots=True)
class GeneratorLoad:
    """The state of a process that made load. `send_late_p99_ms`: of requests of an open loop."""

    send_late_p99_ms: float
    loop_late_p99_ms: float
    cpu_share: float

    def warnings(self) -> list[str]:
        """Return a sentence for each sign that figures are the generator's own."""
        found = []
        if self.send_late_p99_ms > LATE_MS:
            found.append(f"requests left {self.send_late_p99_ms:.1f} ms late at p99, which latencies include")
        if self.loop_late_p99_ms > LATE_MS:
            found.append(f"the generator saw events {self.loop_late_p99_ms:.1f} ms late at p99")
        if self.cpu_share > BUSY_SHARE:
            found.append(f"the generator kept its core {self.cpu_share:.0%} busy")
        return found


def worst_of(loads: Sequence[GeneratorLoad]) -> GeneratorLoad:
    return GeneratorLoad(
        max(load.send_late_p99_ms for load in loads),
        max(load.loop_late_p99_ms for load in loads),
        max(load.cpu_share for load in loads),
    )


class LoopWatch:
    """Wakes up again and again, and notes how late. `now_s` and `cpu_s` are clocks."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._lags_s: list[float] = []
        self._began_s, self._began_cpu_s = now_s(), cpu_s()

    async def watch(self) -> None:
        """Go on until cancelled."""
        while True:
            due_s = self._now_s() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lags_s.append(max(0.0, self._now_s() - due_s))

    def load(self, send_late_s: Sequence[float]) -> GeneratorLoad:
        """Return the load since the start; the share of a core that a time below a tick has is none."""
        spent_s = self._now_s() - self._began_s
        cpu_share = (self._cpu_s() - self._began_cpu_s) / spent_s if spent_s >= TICK_S else 0.0
        return GeneratorLoad(_p99_ms(send_late_s), _p99_ms(self._lags_s), cpu_share)


def _p99_ms(values_s: Sequence[float]) -> float:
    return 1e3 * sorted_quantile(np.sort(np.asarray(values_s)), 0.99) if len(values_s) else 0.0
