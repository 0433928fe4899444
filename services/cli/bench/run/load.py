"""A load: clients that come when they come (open), or so many of which each is always busy (closed)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.cli.bench.plan.dialogue import Dialogue
from services.cli.bench.run.call_record import CallRecord
from services.cli.bench.run.client import BenchClient, ClientHabits
from services.cli.bench.run.cut import unless_cut
from services.cli.bench.run.loop_watch import GeneratorLoad, LoopWatch
from services.cli.bench.run.server_watch import ServerUse
from services.cli.bench.targets.target import BenchTarget
from shared.errors import PenstockError
from shared.tasks import cancel_until_done

MAX_IN_FLIGHT = 100_000
"""The dialogues of an open loop that run at once; the ones beyond wait, and are late by that."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """`duration_s`: no dialogue begins later. `dialogues`: so many at most; None is any number."""

    duration_s: float
    dialogues: int | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`cut_calls` had begun when the load was cut, and are no records; None: it was not cut.

    `server`: what the server's processes spent, where they are known.
    """

    records: list[CallRecord]
    generator: GeneratorLoad
    cut_calls: int | None = None
    server: ServerUse | None = None


class LoadRun:
    """Runs one load, which begins at `start_s` on `clock`; `ended` is told each call. Once `cut` is set, what
    still runs is cancelled."""

    def __init__(
        self,
        target: BenchTarget,
        habits: ClientHabits,
        limits: LoadLimits,
        start_s: float,
        ended: Callable[[CallRecord], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        cut: asyncio.Event | None = None,
    ) -> None:
        self._clock = clock
        self._cut = cut or asyncio.Event()
        self._start_s = start_s
        self._limits = limits
        self._tell = ended
        self._client = BenchClient(target, habits, self.now_s, self._end)
        self._records: list[CallRecord] = []
        self._refused: PenstockError | None = None
        """The fault of a file of dialogues, which is raised when what runs has ended."""

    def now_s(self) -> float:
        return self._clock() - self._start_s

    async def open(self, dialogues: Iterator[Dialogue]) -> LoadResult:
        """Begin each at its time, whatever became of others, and wait until all have ended.

        Raises InvalidRequest for a dialogue that cannot be read.
        """
        async with self._watched() as watch:
            await unless_cut(self._cut, self._open(dialogues))
        late_s = [record.sent_s - record.intended_s for record in self._records if record.turn == 0]
        return self._result(watch, late_s)

    async def closed(self, dialogues: Iterator[Dialogue], clients: int) -> LoadResult:
        """Keep so many clients, each of which takes the next dialogue when its last has ended.

        Raises InvalidRequest for a dialogue that cannot be read.
        """
        await unless_cut(self._cut, asyncio.sleep(max(0.0, -self.now_s())))
        async with self._watched() as watch:
            await unless_cut(self._cut, self._closed(self._due(dialogues), clients))
        return self._result(watch, ())

    async def _open(self, dialogues: Iterator[Dialogue]) -> None:
        places = asyncio.Semaphore(MAX_IN_FLIGHT)
        async with asyncio.TaskGroup() as clients:
            for dialogue in self._due(dialogues):
                await asyncio.sleep(max(0.0, (dialogue.at_s or 0.0) - self.now_s()))
                await places.acquire()
                client = clients.create_task(self._client.run(dialogue))
                client.add_done_callback(lambda _: places.release())

    async def _closed(self, due: Iterator[Dialogue], clients: int) -> None:
        async def client() -> None:
            for dialogue in due:
                await self._client.run(dialogue)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    def _result(self, watch: LoopWatch, late_s: Sequence[float]) -> LoadResult:
        if self._refused is not None:
            raise self._refused
        cut_calls = self._client.cut_calls if self._cut.is_set() else None
        return LoadResult(self._records, watch.load(late_s), cut_calls)

    def _due(self, dialogues: Iterator[Dialogue]) -> Iterator[Dialogue]:
        """Yield until the limits are reached; the text of one is made before its time has come."""
        for count in itertools.count():
            try:
                dialogue = next(dialogues, None)
            except PenstockError as error:
                self._refused = error
                return
            if dialogue is None or (self._limits.dialogues is not None and count >= self._limits.dialogues):
                return
            begins_s = self.now_s() if dialogue.at_s is None else dialogue.at_s
            if begins_s >= self._limits.duration_s:
                return
            yield dialogue

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[LoopWatch]:
        watch = LoopWatch(self._clock)
        task = asyncio.create_task(watch.watch())
        try:
            yield watch
        finally:
            await cancel_until_done(task)

    def _end(self, record: CallRecord) -> None:
        self._records.append(record)
        self._tell(record)
