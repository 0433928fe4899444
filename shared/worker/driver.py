"""Drives an engine from the event loop: short calls between steps, one step at a time beside the loop.

The engine lives in its own thread. The loop never waits for a step: it begins one, goes on with its
mailbox, and is woken when the step is done. What the loop knows of the engine (free blocks, who holds how
many, whether there is work) are copies taken in the thread after each call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from shared.actor.idle_looks import IdleLooks
from shared.deadline import SYSTEM_CLOCK, Clock
from shared.engine import BlockEvent, Engine
from shared.errors import PenstockError
from shared.health import Activity
from shared.telemetry import metrics
from shared.worker.engine_thread import EngineThread
from shared.worker.prefix_mirror import PrefixMirror
from shared.worker.warming.warm_part import WarmPart, WarmPrefix, compute_part

CHECK_EVERY_S = 1.0
"""The least time between two checks of an engine with nothing to do that all its counts are explained."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine as it was after the last call."""

    has_work: bool = False
    free_blocks: int = 0
    resident_blocks: int = 0
    held: dict[str, int] = field(default_factory=dict)  # blocks by sequence key
    events: tuple[BlockEvent, ...] = ()


@dataclass(slots=True, eq=False)
class _LayerOrder:
    """An order that is carried out once, at its turn or before that between two layers of a step."""

    call: Callable[[Engine], object]
    taken: bool = False

    def __call__(self, engine: Engine) -> None:
        if not self.taken:
            self.taken = True
            self.call(engine)


class EngineDriver(Generic[R]):
    """R is what a step ends with. `wake` is called on the event loop when one is done."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Engine],
        mirror: PrefixMirror,
        wake: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.activity = Activity(f"the engine ({name})")
        """Busy from a call's beginning to its end, on the loop and in the engine's thread alike."""
        self._thread = EngineThread(name, self.activity)
        self._load = load
        self._mirror = mirror
        self._wake = wake
        self._orders: deque[Callable[[Engine], object]] = deque()  # in turn; the engine's thread takes them
        self._step: asyncio.Future[tuple[R, EngineSnapshot]] | None = None
        self._part: WarmPart | None = None  # the engine's thread writes it
        self.computes_part = False
        """A part of a prefix that is warmed was ordered, and its result has not been taken."""
        self._unchecked_blocks = 0  # of those that may have changed since they were checked
        self._idle_looks = IdleLooks(wake, clock)
        self._clock = clock
        self._checked_s = clock.monotonic_s()
        self._free_gauge = metrics.KV_BLOCKS.labels(state="free")  # once: finding it costs more than setting
        self._held_gauge = metrics.KV_BLOCKS.labels(state="held")
        self._resident_gauge = metrics.KV_RESIDENT_BYTES
        self.snapshot = EngineSnapshot()
        self.steps = 0
        """Steps whose results were taken."""
        self.faulty = False
        """A step has failed."""
        self.loaded = False
        self.engine: Engine
        """The engine; only its constants (config, layout, limits) and `threads_now` may be read outside of
        its thread."""

    async def load_engine(self) -> None:
        """Load the model."""
        self.engine = await self._thread.run(self._load)
        self._mirror.groups = self.engine.layout.groups.counts
        self._learn(await self._thread.run(self._take_snapshot))
        self.loaded = True

    def show_blocks(self) -> None:
        """Show the blocks of the pool in the metrics."""
        free = self.snapshot.free_blocks
        self._free_gauge.set(free)
        self._held_gauge.set(self._num_blocks - free)
        self._resident_gauge.set(self.snapshot.resident_blocks * self.engine.layout.block_bytes)

    def kv_bytes(self, key: str) -> int:
        """Return the bytes of KV that a sequence holds."""
        return self.snapshot.held.get(key, 0) * self.engine.layout.block_bytes

    @property
    def _num_blocks(self) -> int:
        return self.engine.config.kv_blocks

    @property
    def has_work(self) -> bool:
        """Return whether there is anything to begin a step for."""
        return self.snapshot.has_work

    # ---- between steps --------------------------------------------------------------------------

    def release_later(self, key: str) -> None:
        """Give a sequence back as soon as no step runs. Unknown keys are fine."""
        self.later(lambda engine: engine.release(key))

    def later(self, order: Callable[[Engine], object]) -> None:
        """Carry out an order as soon as no step runs; nobody waits for it."""
        self._orders.append(order)

    async def between_steps(self, call: Callable[[Engine], T]) -> T:
        """Run `call` in the engine's thread, after the releases that wait. Not while a step runs."""
        assert self._step is None
        orders = len(self._orders)

        def run() -> tuple[T, EngineSnapshot]:
            self._carry_out_orders(orders)
            return call(self.engine), self._take_snapshot()

        value, snapshot = await self._thread.run(run)
        self._learn(snapshot)
        return value

    def call_soon(self, call: Callable[[Engine], T], *, between_layers: bool = False) -> asyncio.Future[T]:
        """Run `call` in the engine's thread when no step runs, behind the releases that wait by now; the
        future gets what it returns, or the PenstockError that it raises. A cancel of it comes too late for
        the call.

        `between_layers`: it does not wait for the end of a step, but comes between two layers of it. It may
        hold blocks that are there, and may neither take any nor give any back.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: PenstockError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(cast(T, result))

        def order(engine: Engine) -> None:
            try:
                result = call(engine)
            except PenstockError as error:
                loop.call_soon_threadsafe(tell, None, error)
            else:
                loop.call_soon_threadsafe(tell, result, None)

        self._orders.append(_LayerOrder(order) if between_layers else order)
        self._wake()
        return answer

    async def flush_releases(self) -> None:
        """Once a turn. With nothing to release and nothing to do, the engine gives back memory that is idle,
        and checks its counts: a reference that nobody explains ends this worker now, instead of somebody's
        memory later."""
        if self._orders:
            await self.between_steps(lambda _: None)
        elif self.has_work:
            return
        elif self._idle_looks.due:
            self._idle_looks.look_in(await self.between_steps(Engine.give_back_idle))
        elif self._unchecked_blocks:
            await self._check()

    async def _check(self) -> None:
        """A part a turn, until all of the pool was looked at with nothing happening in between."""
        begins = self._unchecked_blocks == self._num_blocks
        now_s = self._clock.monotonic_s()
        if begins and now_s - self._checked_s < CHECK_EVERY_S:
            return
        if begins:
            self._checked_s = now_s
        checked = await self._thread.run(self.engine.check_part)
        self._unchecked_blocks = max(0, self._unchecked_blocks - checked)

    # ---- warming ----------------------------------------------------------------------------------

    def order_part(self, prefix: WarmPrefix, start: int) -> None:
        """Let the engine compute some of `prefix`, from the token `start` on, unless it has work by then."""

        def order(engine: Engine) -> None:
            self._part = compute_part(engine, prefix, start, self.activity.move)

        self.computes_part = True
        self._orders.append(order)

    def take_part(self) -> WarmPart | None:
        """The part that was ordered, once it is done and the loop knows what it has changed."""
        if self._part is None or self.stepping:
            return None
        part, self._part = self._part, None
        self.computes_part = False
        return part

    @property
    def failed_over_part(self) -> bool:
        """The engine has failed, and over a part."""
        return self.faulty and self.computes_part and self._part is None

    # ---- steps ------------------------------------------------------------------------------------

    @property
    def stepping(self) -> bool:
        """A step runs, or its result has not been taken."""
        return self._step is not None

    def begin_step(self, step: Callable[[Engine], R]) -> None:
        """Start `step` in the engine's thread, after the releases that wait; `wake` follows."""
        assert self._step is None
        orders = len(self._orders)  # what is said from now on comes after the step: it may be about it

        def run() -> tuple[R, EngineSnapshot]:
            self._carry_out_orders(orders)
            return step(self.engine), self._take_snapshot()

        self._step = self._thread.start(run)
        self._step.add_done_callback(lambda _: self._wake())

    def end_wait(self, *, for_others: bool = False) -> None:
        """A step in which all wait for masks ends where there is something else to do."""
        if self._orders or for_others:
            self.engine.rouse()

    def take_result(self) -> R | None:
        """The result of the step that was begun, None while it runs. Raises what the engine raised."""
        ended = self._take_ended()
        if ended is None:
            return None
        result, snapshot = ended
        self.steps += 1
        self._learn(snapshot)
        return result

    def _take_ended(self) -> tuple[R, EngineSnapshot] | None:
        if self._step is None or not self._step.done():
            return None
        step, self._step = self._step, None
        self.faulty = step.cancelled() or step.exception() is not None
        return step.result()

    async def close_engine(self) -> None:
        """Waits for the step that runs."""
        self._idle_looks.cancel()
        await self._thread.close()
        if self._step is not None and self._step.done() and not self._step.cancelled():
            self._step.exception()  # a failure that nobody takes any more is no news at this point
        self._step = None
        if self.loaded:
            self.engine.close()
        self._mirror.clear()

    # ---- in the engine's thread -------------------------------------------------------------------

    def _carry_out_orders(self, count: int) -> None:
        for _ in range(count):
            self._orders.popleft()(self.engine)

    def carry_out_between_layers(self) -> None:
        """Carry out the orders that do not wait for the end of the step that runs."""
        for order in tuple(self._orders):
            if isinstance(order, _LayerOrder):
                order(self.engine)

    def _take_snapshot(self) -> EngineSnapshot:
        engine = self.engine
        blocks = engine.blocks
        return EngineSnapshot(
            engine.has_work,
            blocks.num_free,
            blocks.num_resident,
            engine.held(),
            tuple(blocks.drain_events()),
        )

    # ---- on the loop --------------------------------------------------------------------------------

    def _learn(self, snapshot: EngineSnapshot) -> None:
        self.snapshot = snapshot
        self._unchecked_blocks = self._num_blocks
        self._mirror.apply(snapshot.events)
        if self.engine.gives_back_idle and snapshot.resident_blocks + snapshot.free_blocks > self._num_blocks:
            self._idle_looks.used()
