"""Show how far a load is, while it runs: one line, again every second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.cli.bench.report.load_words import number
from services.cli.bench.run.call_record import CallRecord
from services.cli.view.live_text import LiveText
from shared.tasks import cancel_until_done

SHOW_S = 1.0
KEPT = 200
"""The last calls whose median the line tells."""


class BenchProgress:
    """`show` gets the line, None shows nothing. What is added is a call that has ended."""

    def __init__(self, show: LiveText | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._began_s = clock()
        self._outcomes: Counter[str] = Counter()
        self._ttfts_ms: list[float] = []

    def add(self, record: CallRecord) -> None:
        self._outcomes[record.outcome.value] += 1
        if record.pieces_s:
            self._ttfts_ms = [*self._ttfts_ms[1 - KEPT :], 1e3 * record.ttft_s]

    def line(self, label: str) -> str:
        ended = ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.most_common())
        median = sorted(self._ttfts_ms)[len(self._ttfts_ms) // 2] if self._ttfts_ms else float("nan")
        spent_s = self._clock() - self._began_s
        return f"{label}{spent_s:.0f} s: {ended or 'nothing has ended yet'}; ttft {number(median)} ms"

    @asynccontextmanager
    async def shown(self, label: str) -> AsyncIterator[None]:
        """Show it until the block is left."""
        task = asyncio.create_task(self._again(label))
        try:
            yield
        finally:
            await cancel_until_done(task)

    async def _again(self, label: str) -> None:
        while True:
            await asyncio.sleep(SHOW_S)
            if self._show is not None:
                self._show.show(self.line(label))
